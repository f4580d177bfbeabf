"""The schema of a SQLite history, and the migrations to it."""

import asyncio
import logging
import sqlite3
import time
from functools import partial
from pathlib import Path

from agent.errors import ConfigError, HistoryError
from agent.history.codec import load_entries, load_undamaged
from agent.history.search import fold, searchable_text
from agent.history.sqlite_connection import SqliteConnection
from agent.history.sqlite_file import transaction

log = logging.getLogger(__name__)

FILL_CONVERSATIONS = 500
"""The most conversations in one transaction of `fill_search`."""
FILL_SECONDS = 0.5
"""Seconds after which `fill_search` begins no further conversation in a transaction: other processes wait for it."""
FILL_PAUSE_SECONDS = 0.15
"""Seconds between these transactions. A process that waits for the lock looks every 0.1 s whether it is free."""

_TO_FILL = "SELECT id, record FROM conversations WHERE folded_title IS NULL LIMIT ?"
_ROWS = "SELECT rowid FROM entries WHERE conversation_id = ? ORDER BY rowid"
_SET_TITLE = "UPDATE conversations SET title = ?, folded_title = ? WHERE id = ?"
_FORGET_TEXTS = "DELETE FROM entry_texts WHERE conversation_id = ?"
# It reads one message at a time, however large they are. A message without text is NULL, which the column refuses.
_FILL_TEXT = """
INSERT OR IGNORE INTO entry_texts (conversation_id, entry_id, text)
SELECT conversation_id, id, searchable_text(entry) FROM entries WHERE rowid = ?
"""
PUT_TEXT = "INSERT INTO entry_texts (conversation_id, entry_id, text) VALUES (?, ?, ?)"

# One tuple of statements per version of the file. `user_version` counts the migrations that were applied. Never edit a
# released one: add the next.
MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        # `place` orders an owner's conversations by their last save. A clock can stand still or step back.
        """CREATE TABLE conversations (
            id TEXT PRIMARY KEY,
            owner TEXT NOT NULL,
            place INTEGER NOT NULL,
            revision INTEGER NOT NULL,
            head_id TEXT,
            expires_at REAL,
            record TEXT NOT NULL,
            FOREIGN KEY (id, head_id) REFERENCES entries (conversation_id, id) DEFERRABLE INITIALLY DEFERRED
        )""",
        # The key begins with the conversation, so that no chain can lead out of it. The text is the last column: a walk
        # along the links then reads no page of a large message.
        """CREATE TABLE entries (
            conversation_id TEXT NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
            id TEXT NOT NULL,
            parent_id TEXT CHECK (parent_id <> id),
            entry TEXT NOT NULL,
            PRIMARY KEY (conversation_id, id),
            FOREIGN KEY (conversation_id, parent_id) REFERENCES entries (conversation_id, id)
        )""",
        "CREATE INDEX conversations_by_owner ON conversations (owner, place)",
        "CREATE INDEX conversations_by_expiry ON conversations (expires_at) WHERE expires_at IS NOT NULL",
        # Without it, deleting a conversation would search all entries for the children of each entry.
        "CREATE INDEX entries_by_parent ON entries (conversation_id, parent_id)",
    ),
    (
        # The bytes of a conversation's text. They are stored, because adding up all entries would read the whole file.
        "ALTER TABLE conversations ADD COLUMN size INTEGER NOT NULL DEFAULT 0",
        """UPDATE conversations SET size = length(CAST(record AS BLOB)) + (
            SELECT coalesce(sum(length(CAST(entry AS BLOB))), 0) FROM entries WHERE conversation_id = conversations.id
        )""",
        "CREATE INDEX conversations_by_size ON conversations (owner, size)",
    ),
    (
        # `last` is the number of the newest event, `saved` of the newest one that the entries contain.
        """CREATE TABLE runs (
            id TEXT PRIMARY KEY,
            conversation_id TEXT NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
            last INTEGER NOT NULL,
            saved INTEGER NOT NULL,
            ended_at REAL
        )""",
        # One row has the events of about two seconds, a line each.
        """CREATE TABLE run_events (
            run_id TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
            last INTEGER NOT NULL,
            first INTEGER NOT NULL,
            events TEXT NOT NULL,
            PRIMARY KEY (run_id, last)
        )""",
        "CREATE INDEX runs_by_conversation ON runs (conversation_id)",
        "CREATE INDEX runs_by_end ON runs (ended_at)",
    ),
    (
        # The label of a conversation. The title in its record is only the one of the first save.
        "ALTER TABLE conversations ADD COLUMN title TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE conversations ADD COLUMN pinned INTEGER NOT NULL DEFAULT 0",
        # The title as it is searched. NULL: `fill_search` has not seen this conversation.
        "ALTER TABLE conversations ADD COLUMN folded_title TEXT",
        "CREATE INDEX conversations_to_fill ON conversations (id) WHERE folded_title IS NULL",
        "CREATE INDEX conversations_pinned ON conversations (owner, place) WHERE pinned",
        # The text of each message as it is searched. Its own table, so that a search reads no other bytes.
        """CREATE TABLE entry_texts (
            number INTEGER PRIMARY KEY,
            conversation_id TEXT NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
            entry_id TEXT NOT NULL,
            text TEXT NOT NULL
        )""",
        "CREATE INDEX entry_texts_by_conversation ON entry_texts (conversation_id)",
    ),
    (
        # `ends_at` is when the link expires, NULL for never.
        """CREATE TABLE links (
            digest TEXT PRIMARY KEY,
            conversation_id TEXT NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
            ends_at REAL,
            link TEXT NOT NULL
        )""",
        "CREATE INDEX links_by_conversation ON links (conversation_id)",
    ),
    (
        # `place` has the microseconds since 1970, so that imported conversations stand between the others.
        """UPDATE conversations SET place = place + time FROM (
            SELECT id AS changed, max(CASE json_valid(record) WHEN 1 THEN
                coalesce((julianday(json_extract(record, '$.updated_at')) - 2440587.5) * 86400000000, 0) ELSE 0 END
            ) OVER (PARTITION BY owner ORDER BY place) AS time FROM conversations
        ) WHERE id = changed""",
        "UPDATE conversations SET place = CAST(place AS INTEGER)",
    ),
)


async def migrate(connection: SqliteConnection, path: Path) -> None:
    """Bring the file to the newest schema. Raises `ConfigError` if a newer version wrote it.

    A process that is killed meanwhile loses nothing: the next one goes on.
    """
    await connection.run(partial(_migrate, path))
    if filled := await fill_search(connection):
        log.info("%d conversations of an older version can be searched now", filled)


async def fill_search(connection: SqliteConnection) -> int:
    """Store the text to search of conversations that an older version wrote, and return their number."""
    filled = 0
    while some := await connection.run(_fill_some):
        filled += some
        await asyncio.sleep(FILL_PAUSE_SECONDS)
    return filled


def _migrate(path: Path, connection: sqlite3.Connection) -> None:
    # Read the version inside the transaction: another process may be migrating the same file.
    with transaction(connection):
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version > len(MIGRATIONS):
            raise ConfigError(
                f"The history file {str(path)!r} has schema {version}, and this version knows {len(MIGRATIONS)}: "
                "use a newer version, or name another file."
            )
        for statement in (statement for migration in MIGRATIONS[version:] for statement in migration):
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")


def _fill_some(connection: sqlite3.Connection) -> int:
    """Fill some conversations in one transaction, and return their number."""
    connection.create_function("searchable_text", 1, _text)
    with transaction(connection):
        found = connection.execute(_TO_FILL, (FILL_CONVERSATIONS,)).fetchall()
        deadline = time.monotonic() + FILL_SECONDS
        for filled, (id_, record) in enumerate(found, start=1):
            _fill(connection, id_, record)
            if time.monotonic() > deadline:
                return filled
    return len(found)


def _fill(connection: sqlite3.Connection, id_: str, record: str) -> None:
    connection.execute(_FORGET_TEXTS, (id_,))
    connection.executemany(_FILL_TEXT, connection.execute(_ROWS, (id_,)).fetchall())
    read = load_undamaged(record)
    title = read.title if read else ""
    connection.execute(_SET_TITLE, (title, fold(title), id_))


def _text(entry: str) -> str | None:
    """Return the text to search of a stored entry, None for an empty or damaged one."""
    try:
        return fold(searchable_text(load_entries([entry])[0])) or None
    except HistoryError as error:
        log.warning("a message cannot be searched: %s", error)
        return None
