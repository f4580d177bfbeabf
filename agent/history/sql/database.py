"""The protocol of a SQL database that the store runs on, and the form of its statements.

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
