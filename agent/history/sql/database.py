"""The protocol of a SQL database that the store runs on, its tables, and the form of its statements.

Statements are in the SQL that SQLite and PostgreSQL share. Each database translates the few things that differ:
parameters (`:name`; `:now` is the current Unix time, and `:steady` the one by which things
expire), `IN LIST(:name)` for a sequence of texts, `CONTAINS(column,
:name)`, `octet_length()`, `greatest()`, `IS NOT DISTINCT FROM` and the locks of rows. `rowid` orders the rows of a
table by their storage. Ids, owners, titles and digests can be any text, and the database finds them by their names.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol, TypeVar

T = TypeVar("T")
Value = str | float | bool | None | Sequence[str]
Values = Mapping[str, Value]
Row = Sequence[Any]
Steps = Generator[tuple[str, Values | Sequence[Values]], Sequence[Row], T]
"""A transaction: yields a statement with its parameters, and gets the rows. Many parameters are one write each, and
their one row has the number of changed rows."""
Work = Callable[[], Steps[T]]

LIVE = "(expires_at IS NULL OR expires_at > :steady)"
"""The condition for a conversation that has not expired."""


class Database(Protocol):
    """One database. `clock` returns the current time.

    A write is finished even if its caller is cancelled: all or nothing is stored.
    """

    @property
    def clock(self) -> Callable[[], datetime]:
        """Return the current time."""
        ...

    async def rows(self, sql: str, **values: Value) -> Sequence[Row]:
        """Return the rows of a query."""
        ...

    async def search(self, sql: str, **values: Value) -> Sequence[Row]:
        """Return the rows of a query that can take long."""
        ...

    async def write(self, work: Work[T], *, frees_space: bool = False, is_end: bool = False) -> T:
        """Run `work` in a transaction. With `frees_space`, also on a full disk. See `LockWait` for `is_end`."""
        ...

    async def erase(self, work: Work[T]) -> T:
        """Run `work`, which deletes text, in a transaction. If it returns something true, the text is wiped soon."""
        ...

    async def finish_erasing(self, id_: str) -> bool:
        """Wait until no erased conversation keeps this id. Return True if one did."""
        ...

    async def wipe(self) -> None:
        """Remove what deletions have left in the storage, now."""
        ...

    def load(self, load: Callable[[Sequence[str]], T], texts: Sequence[str]) -> T:
        """Return what `load` makes of stored texts. An error names the database."""
        ...

    async def aclose(self) -> None:
        """Close the connections. Writes in progress are finished first."""
        ...


def single(sql: str, **values: Value) -> Work[Sequence[Row]]:
    """Return the transaction of one statement, which returns its rows."""

    def work() -> Steps[Sequence[Row]]:
        return (yield sql, values)

    return work


VERSION = 8
"""The number of this schema. Files of versions 6 and 7 lack only `LEASE`."""
LEASE = (
    "leased_until DOUBLE PRECISION NOT NULL DEFAULT 0",
    "is_stopped BOOLEAN NOT NULL DEFAULT FALSE",
    "watched_until DOUBLE PRECISION NOT NULL DEFAULT 0",
)
"""The columns of a run for the processes that do not write it, see `agent.history.values.UnfinishedRun`."""

TABLES: tuple[str, ...] = (
    # `place` orders an owner's conversations: microseconds since 1970, and always above the one before. `title` and
    # `pinned` are the label; the title in the conversation is only the one of the first save. `folded_title` is what a
    # search compares. `size` has the bytes of the conversation and of all entries, because adding them up would read
    # everything.
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
