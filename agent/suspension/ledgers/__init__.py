"""The contract of a ledger, which knows what was used up, and the one that forgets it with its process."""

from datetime import datetime
from typing import Protocol

from agent.history import now


class Ledger(Protocol):
    """Says of each id once that it is used for the first time; `tests/test_ledgers.py` is the suite that all pass."""

    async def use(self, id: str, expires_at: datetime | None) -> bool:
        """Whether this is the first use; of any number of them at once, in any processes, only one is.

        After `expires_at` (None: never) the id need not be remembered: who asks has refused it before.
        Raises an `AgentError` where that cannot be known.
        """
        ...


class MemoryLedger:
    """A `Ledger` in this process's memory. Nothing in it awaits, so no other use can come between its steps."""

    def __init__(self) -> None:
        self._used: dict[str, datetime | None] = {}

    async def use(self, id: str, expires_at: datetime | None) -> bool:
        """As in `Ledger.use`."""
        moment = now()
        for gone in [key for key, until in self._used.items() if until is not None and until <= moment]:
            del self._used[gone]
        first = id not in self._used
        self._used.setdefault(id, expires_at)
        return first
