"""Retention periods of conversations, and the deletion of expired ones with their files."""

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

GUEST_PREFIX = "guest-"
"""Owner prefix of visitors without a cookie. Nobody can come back to their conversations."""
MARGIN = timedelta(hours=1)
"""A conversation with a running answer is kept for at least the longest run time plus this margin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionPeriods:
    """The time that a conversation is kept after its last message. None keeps it for ever."""

    guest: timedelta | None = None
    visitor: timedelta | None = None
    run: timedelta = timedelta()

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Return the periods from the settings."""
        return cls(
            guest=timedelta(hours=settings.guest_hours),
            visitor=timedelta(days=settings.kept_days) if settings.kept_days else None,
            run=timedelta(seconds=settings.run_seconds),
        )

    def until(self, owner: str, *, running: bool, at: datetime | None = None) -> datetime | None:
        """Return when a conversation expires, or None for never.

        Its last message was written at `at` (default: now). `running` is True if its run has not ended.
        """
        kept = self.guest if owner.startswith(GUEST_PREFIX) else self.visitor
        if kept is None:
            return None
        return (at or now()) + (max(kept, self.run + MARGIN) if running else kept)


FOR_EVER = RetentionPeriods()


async def add_missing_expiry(store: HistoryStore, settings: Settings) -> int:
    """Set the expiry of conversations from versions without expiry, counted from their last message.

    With a share link, which is temporary, only guests' conversations get an expiry. So no conversation of a private
    page is deleted.
    """
    lifetimes = RetentionPeriods.of(settings)
    if settings.share:
        lifetimes = replace(lifetimes, visitor=None)
    owners = GUEST_PREFIX if lifetimes.visitor is None else ""
    return await store.add_expiry(
        lambda record: lifetimes.until(record.owner, running=False, at=record.updated_at), owners=owners
    )


async def delete_expired(
    store: HistoryStore, media: MediaStore, busy: Callable[[str], bool], *, at: datetime | None = None, limit: int = 50
) -> int:
    """Delete expired conversations, except `busy` ones. Return how many.

    Files are deleted first: if the process is killed in between, the next round still finds the conversation.
    """
    deleted = 0
    for record in await store.expiring(at or now(), limit=limit):
        if busy(record.id):
            continue
        try:
            deleted += await delete_conversation(store, media, record)
        except (OSError, HistoryError):  # the others must still be deleted
            log.exception("an expired conversation could not be deleted")
    return deleted


async def delete_conversation(store: HistoryStore, media: MediaStore, record: Record) -> bool:
    """Delete a conversation with its files. Return True if it existed and was unchanged since `record` was loaded."""
    try:
        messages = [entry.message for entry in await store.entries(record)]
    except HistoryError:  # a damaged conversation is deleted all the same
        messages = []
    await media.remove(record.owner, files_named_in(messages))
    return await store.erase(record)
