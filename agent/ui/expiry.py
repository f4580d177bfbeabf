"""How long conversations are kept, and the deletion of those whose time is over, together with their files."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Self

from agent.errors import HistoryError
from agent.history import HistoryStore, now
from agent.media import MediaStore, files_named_in
from agent.settings import Settings

GUEST = "guest-"
"""How the owner's name begins where a visitor has no cookie: nobody can come back to these conversations."""
MARGIN = timedelta(hours=1)
"""How much longer than a run may take its conversation is kept while it goes on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifetimes:
    """How long a conversation is kept after its last message; None: for ever."""

    guest: timedelta | None = None
    visitor: timedelta | None = None
    run: timedelta = timedelta()

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Those that the settings say."""
        return cls(
            guest=timedelta(hours=settings.guest_hours),
            visitor=timedelta(days=settings.kept_days) if settings.kept_days else None,
            run=timedelta(seconds=settings.run_seconds),
        )

    def until(self, owner: str, *, running: bool, at: datetime | None = None) -> datetime | None:
        """When a conversation expires whose last message was at this time, and whose run goes on or has ended."""
        kept = self.guest if owner.startswith(GUEST) else self.visitor
        if kept is None:
            return None
        return (at or now()) + (max(kept, self.run + MARGIN) if running else kept)


FOR_EVER = Lifetimes()


async def delete_expired(
    store: HistoryStore, media: MediaStore, busy: Callable[[str], bool], *, at: datetime | None = None, limit: int = 50
) -> int:
    """Delete conversations whose time is over, but for `busy` ones; return how many.

    The files go first: what is left by a process that is killed in between is found again by the next round.
    """
    deleted = 0
    for record in await store.expiring(at or now(), limit=limit):
        if busy(record.id):
            continue
        try:
            messages = [entry.message for entry in await store.entries(record)]
        except HistoryError:  # A damaged conversation goes all the same.
            messages = []
        await media.remove(record.owner, files_named_in(messages))
        deleted += await store.erase(record)
    return deleted
