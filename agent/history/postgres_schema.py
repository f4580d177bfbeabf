"""The schema of a PostgreSQL history, and the migrations to it.

Columns of text hold what `agent.history.postgres_text.escape` makes, and compare byte by byte.
"""

import logging
from collections.abc import Sequence

from psycopg import AsyncConnection, Error

from agent.errors import HistoryError
from agent.i18n import _

log = logging.getLogger(__name__)

_LOCK = "SELECT pg_advisory_xact_lock(7214593660021)"
"""Other processes that make the schema wait here. The number is arbitrary, and the same in all versions."""
# Not `to_regclass`, which can still have the answer from before the wait for the lock.
_HAS_VERSION = """
SELECT EXISTS (
    SELECT FROM pg_tables WHERE tablename = 'switchboard_schema' AND schemaname = ANY(current_schemas(false))
)
"""
_VERSION = "SELECT coalesce(max(version), 0) FROM switchboard_schema"
_TRIGRAMS = (
    "CREATE EXTENSION IF NOT EXISTS pg_trgm",
    "CREATE INDEX IF NOT EXISTS entry_texts_by_trigram ON entry_texts USING gin (text gin_trgm_ops)",
)

# One tuple of statements per version of the schema. `switchboard_schema` has the numbers of those that were applied.
# Never edit a released one: add the next.
MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        "CREATE TABLE switchboard_schema (version INTEGER PRIMARY KEY, applied_at TIMESTAMPTZ NOT NULL DEFAULT now())",
        # `place` orders conversations by their last save. A clock can stand still or step back.
        "CREATE SEQUENCE conversation_places",
        # `title` and `pinned` are the label. The title in the record is only the one of the first save. `exact` is the
        # text of a record that JSONB cannot hold. `size` has the bytes of the record and of all entries.
        """CREATE TABLE conversations (
            id TEXT COLLATE "C" PRIMARY KEY,
            owner TEXT COLLATE "C" NOT NULL,
            place BIGINT NOT NULL,
            revision BIGINT NOT NULL,
            head_id TEXT COLLATE "C",
            expires_at DOUBLE PRECISION,
            title TEXT COLLATE "C" NOT NULL,
            folded_title TEXT COLLATE "C" NOT NULL,
            pinned BOOLEAN NOT NULL,
            size BIGINT NOT NULL,
            record_size BIGINT NOT NULL,
            record JSONB NOT NULL,
            exact TEXT
        )""",
        "CREATE INDEX conversations_by_owner ON conversations (owner, place)",
        "CREATE INDEX conversations_pinned ON conversations (owner, place) WHERE pinned",
        "CREATE INDEX conversations_by_size ON conversations (owner) INCLUDE (size, expires_at)",
        "CREATE INDEX conversations_by_expiry ON conversations (expires_at) WHERE expires_at IS NOT NULL",
        "CREATE INDEX conversations_without_expiry ON conversations (id) WHERE expires_at IS NULL",
        # The key begins with the conversation, so that no chain can lead out of it. The message is text, because JSONB
        # would change it. A save checks parents while it holds the lock of the conversation's row.
        """CREATE TABLE entries (
            conversation_id TEXT COLLATE "C" NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
            id TEXT COLLATE "C" NOT NULL,
            parent_id TEXT COLLATE "C",
            number BIGINT GENERATED ALWAYS AS IDENTITY,
            entry TEXT NOT NULL,
            PRIMARY KEY (conversation_id, id)
        )""",
        # The text of each message as it is searched. Its own table, so that a search reads no other bytes.
        """CREATE TABLE entry_texts (
            number BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
            owner TEXT COLLATE "C" NOT NULL,
            conversation_id TEXT COLLATE "C" NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
            entry_id TEXT COLLATE "C" NOT NULL,
            text TEXT COLLATE "C" NOT NULL
        )""",
        "CREATE INDEX entry_texts_by_owner ON entry_texts (owner)",
        "CREATE INDEX entry_texts_by_conversation ON entry_texts (conversation_id)",
        # `last` is the number of the newest event, `saved` of the newest one that the entries contain.
        """CREATE TABLE runs (
            id TEXT COLLATE "C" PRIMARY KEY,
            number BIGINT GENERATED ALWAYS AS IDENTITY,
            conversation_id TEXT COLLATE "C" NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
            last BIGINT NOT NULL,
            saved BIGINT NOT NULL,
            ended_at DOUBLE PRECISION
        )""",
        # One row has the events of about two seconds, a line each.
        """CREATE TABLE run_events (
            run_id TEXT COLLATE "C" NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
            last BIGINT NOT NULL,
            first BIGINT NOT NULL,
            events TEXT NOT NULL,
            PRIMARY KEY (run_id, last)
        )""",
        "CREATE INDEX runs_by_conversation ON runs (conversation_id)",
        "CREATE INDEX runs_unfinished ON runs (number) WHERE ended_at IS NULL",
        "CREATE INDEX runs_by_end ON runs (ended_at) WHERE ended_at IS NOT NULL",
    ),
    (
        # `ends_at` is when the link expires, NULL for never.
        """CREATE TABLE links (
            digest TEXT COLLATE "C" PRIMARY KEY,
            conversation_id TEXT COLLATE "C" NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
            ends_at DOUBLE PRECISION,
            link TEXT NOT NULL
        )""",
        "CREATE INDEX links_by_conversation ON links (conversation_id)",
    ),
    (
        # The processes that share the database. `number` is the second half of the key of the replica's lock.
        """CREATE TABLE replicas (
            id TEXT COLLATE "C" PRIMARY KEY,
            number INTEGER GENERATED ALWAYS AS IDENTITY,
            seen_at TIMESTAMPTZ NOT NULL
        )""",
        # `replica` may write the run, '' is a process that has not joined. A visitor has stopped it if `is_stopped`.
        "ALTER TABLE runs ADD COLUMN replica TEXT COLLATE \"C\" NOT NULL DEFAULT ''",
        "ALTER TABLE runs ADD COLUMN is_stopped BOOLEAN NOT NULL DEFAULT FALSE",
        # When a page that another replica serves last said that it watches.
        "ALTER TABLE runs ADD COLUMN watched_at TIMESTAMPTZ",
    ),
    (
        # JSON: the bytes that the replica is about to store, by owner, or ''.
        "ALTER TABLE replicas ADD COLUMN reserved TEXT NOT NULL DEFAULT ''",
    ),
    (
        # `place` has the microseconds since 1970, so that imported conversations stand between the others.
        """UPDATE conversations SET place = place + time FROM (
            SELECT id AS changed, max(coalesce(
                (extract(epoch FROM (record ->> 'updated_at')::timestamptz) * 1000000)::bigint, 0
            )) OVER (PARTITION BY owner ORDER BY place) AS time FROM conversations
        ) AS found WHERE id = changed""",
        "DROP SEQUENCE IF EXISTS conversation_places",
    ),
    (
        # This index finds the entries that follow an entry, without a read of the whole conversation.
        "CREATE INDEX IF NOT EXISTS entries_by_parent ON entries (conversation_id, parent_id)",
    ),
)


async def migrate(connection: AsyncConnection) -> None:
    """Bring the database to the newest schema. Raises `HistoryError` with the reason if that is impossible.

    The usual start only reads the version. Several processes can do this at once, and a killed one leaves nothing.
    """
    if await _version(connection) == len(MIGRATIONS):
        return
    async with connection.transaction():
        await connection.execute(_LOCK)
        version = await _version(connection)  # again: another process may have migrated meanwhile
        if version > len(MIGRATIONS):
            raise HistoryError(_("it has schema {version}, of a newer version of this program", version=version))
        if (encoding := connection.info.parameter_status("server_encoding") or "") != "UTF8":
            raise HistoryError(_("its encoding is {encoding} instead of UTF8", encoding=encoding))
        for number, statements in enumerate(MIGRATIONS[version:], version + 1):
            for statement in statements:
                await connection.execute(statement.encode())
            await connection.execute("INSERT INTO switchboard_schema (version) VALUES (%s)", [number])
        if version == 0:
            await _index_trigrams(connection, _TRIGRAMS)
    log.info("the history database has schema %d now", len(MIGRATIONS))


async def _index_trigrams(connection: AsyncConnection, statements: Sequence[str]) -> None:
    """Make searches faster if the server has trigrams and the user may install them. They find the same without."""
    try:
        async with connection.transaction():
            for statement in statements:
                await connection.execute(statement.encode())
    except Error as error:
        log.info("searches read all text of a visitor, because pg_trgm is missing: %s", error.diag.message_primary)


async def _version(connection: AsyncConnection) -> int:
    if not await _value(connection, _HAS_VERSION):
        return 0
    return int(str(await _value(connection, _VERSION)))


async def _value(connection: AsyncConnection, sql: str) -> object:
    row = await (await connection.execute(sql.encode())).fetchone()
    return row[0] if row else None
