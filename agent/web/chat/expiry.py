"""How long conversations are kept, and the deletion of those whose time is over, together with their files."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Self

from agent.errors import HistoryError
from agent.history import HistoryStore, Record, now
from agent.media.store import MediaStore, files_named_in
from agent.settings import Settings

log = logging.getLogger(__name__)

GUEST = "guest-"
"""Prefix of the owner's name of a visitor without a cookie. Nobody can come back to these conversations."""
MARGIN = timedelta(hours=1)
"""A conversation whose run goes on is kept for at least the longest time of a run and this much more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionPeriods:
    """How long a conversation is kept after its last message; None: for ever."""

    guest: timedelta | None = None
    visitor: timedelta | None = None
    run: timedelta = timedelta()

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """The lifetimes in the settings."""
        return cls(
            guest=timedelta(hours=settings.guest_hours),
            visitor=timedelta(days=settings.kept_days) if settings.kept_days else None,
            run=timedelta(seconds=settings.run_seconds),
        )

    def until(self, owner: str, *, running: bool, at: datetime | None = None) -> datetime | None:
        """When a conversation expires; None: never. Its last message was `at` (now), and its run may still go on."""
        kept = self.guest if owner.startswith(GUEST) else self.visitor
        if kept is None:
            return None
        return (at or now()) + (max(kept, self.run + MARGIN) if running else kept)


FOR_EVER = RetentionPeriods()


async def add_missing_expiry(store: HistoryStore, settings: Settings) -> int:
    """Let conversations that a version without expiry stored expire by the present rule, from their last message on.

    A share link is temporary: only guests' conversations get an end then, so that none of a private page is deleted.
    """
    lifetimes = RetentionPeriods.of(settings)
    if settings.share:
        lifetimes = replace(lifetimes, visitor=None)
    owners = GUEST if lifetimes.visitor is None else ""
    return await store.add_expiry(
        lambda record: lifetimes.until(record.owner, running=False, at=record.updated_at), owners=owners
    )


async def delete_expired(
    store: HistoryStore, media: MediaStore, busy: Callable[[str], bool], *, at: datetime | None = None, limit: int = 50
) -> int:
    """Delete conversations whose time is over, but for `busy` ones; return how many.

    The files go first: if the process is killed in between, the next round still finds the conversation.
    """
    deleted = 0
    for record in await store.expiring(at or now(), limit=limit):
        if busy(record.id):
            continue
        try:
            deleted += await delete_conversation(store, media, record)
        except (OSError, HistoryError):  # the others are deleted all the same
            log.exception("an expired conversation could not be deleted")
    return deleted


async def delete_conversation(store: HistoryStore, media: MediaStore, record: Record) -> bool:
    """Delete a conversation with its files; return whether it was there, and unchanged since `record` was loaded."""
    try:
        messages = [entry.message for entry in await store.entries(record)]
    except HistoryError:  # A damaged conversation goes all the same.
        messages = []
    await media.remove(record.owner, files_named_in(messages))
    return await store.erase(record)
