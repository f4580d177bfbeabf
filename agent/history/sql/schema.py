"""The tables of a history in SQL, the same in each database.

`ROWID` stands for a column with the order of storage, which SQLite has by itself. See `agent.history.sql.database`.
"""

VERSION = 8
"""The number of this schema. Files of versions 6 and 7 lack only `LEASE`."""
LEASE = (
    "leased_until DOUBLE PRECISION NOT NULL DEFAULT 0",
    "is_stopped BOOLEAN NOT NULL DEFAULT FALSE",
    "watched_until DOUBLE PRECISION NOT NULL DEFAULT 0",
)
"""The columns of a run for the processes that do not write it, see `agent.history.run_events.UnfinishedRun`."""

TABLES: tuple[str, ...] = (
    # `place` orders an owner's conversations: microseconds since 1970, and always above the one before. `title` and
    # `pinned` are the label; the title in the record is only the one of the first save. `folded_title` is what a search
    # compares. `size` has the bytes of the record and of all entries, because adding them up would read everything.
    """CREATE TABLE conversations (
        id TEXT PRIMARY KEY,
        owner TEXT NOT NULL,
        place BIGINT NOT NULL,
        revision BIGINT NOT NULL,
        head_id TEXT,
        expires_at DOUBLE PRECISION,
        title TEXT NOT NULL,
        folded_title TEXT NOT NULL,
        pinned BOOLEAN NOT NULL,
        size BIGINT NOT NULL,
        record TEXT NOT NULL
    )""",
    "CREATE INDEX conversations_by_owner ON conversations (owner, place)",
    "CREATE INDEX conversations_pinned ON conversations (owner, place) WHERE pinned",
    "CREATE INDEX conversations_by_size ON conversations (owner, size)",
    "CREATE INDEX conversations_by_expiry ON conversations (expires_at) WHERE expires_at IS NOT NULL",
    # The key begins with the conversation, so that no chain can lead out of it. The text is the last column: a walk
    # along the links then reads no page of a large message.
    """CREATE TABLE entries (
        conversation_id TEXT NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
        id TEXT NOT NULL,
        parent_id TEXT,
        ROWID,
        entry TEXT NOT NULL,
        PRIMARY KEY (conversation_id, id)
    )""",
    "CREATE INDEX entries_by_parent ON entries (conversation_id, parent_id)",
    # The text of each message as it is searched. Its own table, so that a search reads no other bytes.
    """CREATE TABLE entry_texts (
        ROWID,
        conversation_id TEXT NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
        entry_id TEXT NOT NULL,
        text TEXT NOT NULL
    )""",
    "CREATE INDEX entry_texts_by_conversation ON entry_texts (conversation_id)",
    # `last` is the number of the newest event, `saved` of the newest one that the entries contain.
    f"""CREATE TABLE runs (
        id TEXT PRIMARY KEY,
        ROWID,
        conversation_id TEXT NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
        last BIGINT NOT NULL,
        saved BIGINT NOT NULL,
        ended_at DOUBLE PRECISION,
        {", ".join(LEASE)}
    )""",
    "CREATE INDEX runs_by_conversation ON runs (conversation_id)",
    "CREATE INDEX runs_by_end ON runs (ended_at)",
    # One row has the events of about two seconds, a line each.
    """CREATE TABLE run_events (
        run_id TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
        last BIGINT NOT NULL,
        first BIGINT NOT NULL,
        events TEXT NOT NULL,
        PRIMARY KEY (run_id, last)
    )""",
    # `ends_at` is when the link expires, NULL for never.
    """CREATE TABLE links (
        digest TEXT PRIMARY KEY,
        conversation_id TEXT NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
        ends_at DOUBLE PRECISION,
        link TEXT NOT NULL
    )""",
    "CREATE INDEX links_by_conversation ON links (conversation_id)",
)
