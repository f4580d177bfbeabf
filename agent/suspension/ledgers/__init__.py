"""The contract of a ledger, which remembers used ids, and a ledger in memory that forgets them with its process."""

from datetime import datetime
from pathlib import Path
from typing import Protocol

from agent.errors import ConfigError, HistoryError, StoreUnavailable
from agent.history import needing_driver, steady_now
from agent.history.server_errors import connection_reason, words_of
from agent.i18n import _


class Ledger(Protocol):
    """Remembers used ids."""

    async def use(self, id: str, expires_at: datetime | None) -> bool:
        """Return True if this is the first use of the id. Of any uses at once, in any processes, exactly one is first.

        The id can be forgotten after `expires_at` (None: never), because callers refuse expired ids themselves.
        Raises an `AgentError` if the ledger cannot be read or written.
        """
        ...


class MemoryLedger:
    """A `Ledger` in this process's memory. It needs no lock: it never awaits, so no other use can interrupt it."""

    def __init__(self) -> None:
        self._used: dict[str, datetime | None] = {}

    async def use(self, id: str, expires_at: datetime | None) -> bool:
        """Implement `Ledger.use`."""
        moment = steady_now()
        for gone in [key for key, until in self._used.items() if until is not None and until <= moment]:
            del self._used[gone]
        first = id not in self._used
        self._used.setdefault(id, expires_at)
        return first


def ledger_error(name: str, error: BaseException, refusal: BaseException | None = None) -> HistoryError:
    """Return the error that a ledger's server is away, or that it refuses. Nothing is resumed then."""
    if refusal is not None:
        return HistoryError(_("The ledger {name} cannot be used: {error}.", name=name, error=words_of(refusal)))
    return StoreUnavailable(
        _(
            "The ledger {name} cannot be reached ({error}). Start its server, or correct SUSPENSION_LEDGER.",
            name=name,
            error=connection_reason(error),
        )
    )


def open_ledger(address: str) -> Ledger:
    """Return the ledger that the address names: "file:folder", "sqlite:///path", or a server's URL as for a history.

    Raises `ConfigError` for any other address, and if the driver is missing. It is not opened before its first use.
    """
    kind, _, place = address.partition(":")
    path = place.removeprefix("///")
    match kind:
        case "file" if path:
            from agent.suspension.ledgers.files import FileLedger

            return FileLedger(Path(path).expanduser())
        case "sqlite" if path:
            from agent.suspension.ledgers.sqlite import SqliteLedger

            return SqliteLedger(Path(path).expanduser())
        case "postgresql" | "postgres" if place:
            with needing_driver("PostgreSQL", "postgres"):
                from agent.suspension.ledgers.postgres import PostgresLedger
            return PostgresLedger(address)
        case "redis" | "rediss" | "unix" if place:
            with needing_driver("Redis", "redis"):
                from agent.suspension.ledgers.redis import RedisLedger
            return RedisLedger(address)
        case _:  # the rest of the address can have a password
            raise ConfigError(
                f"There is no ledger of the kind {kind!r}. SUSPENSION_LEDGER is file:folder or sqlite:///path, or the "
                "URL of a server: postgresql://user:password@host:5432/database or redis://host:6379/0."
            )
