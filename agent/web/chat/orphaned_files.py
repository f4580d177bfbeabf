"""Removes stored files that no message names, for example after a crash between two steps of a deletion."""

import logging
from collections.abc import Callable
from datetime import UTC, datetime

from agent.errors import NotFound
from agent.files.store import MediaStore, ids_in
from agent.history import Conversation, HistoryStore, steady_now
from agent.system.threads import TEXTS

PROBE = "readiness"
"""The owner of the records that the app writes for itself, as `agent.web.health` does. No visitor can be this owner."""

log = logging.getLogger(__name__)

KEPT_SECONDS = 24 * 3600.0
"""Files stay for this long, because a file is stored before the message that names it. Also the time between checks."""
LAST_USE = "last-use"
"""The id of the record whose title is when the history was last used. It is made with a new history."""
KNOWN_SECONDS = 3600.0
"""Seconds after which a history is no new one. An older one that is empty was emptied, and not lost."""
_LOSS, NEVER = "lost-history", datetime(2999, 1, 1, tzinfo=UTC)
"""The id of the record whose title is the time at which the history was found to be empty, and when it expires."""


class OrphanedFiles:
    """The housekeeping of stored files. `clock` returns Unix time in seconds.

    The first check of the only process that uses the history ends the deletions of killed ones: what was stored before
    its start belongs to no message that is on its way.
    """

    def __init__(
        self,
        store: HistoryStore,
        media: MediaStore,
        clock: Callable[[], float] = lambda: steady_now().timestamp(),
        is_only: Callable[[], bool] = lambda: False,
    ) -> None:
        self._store, self._media, self._clock, self._is_only = store, media, clock, is_only
        self._next_check, self._began = 0.0, clock()

    async def remove(self) -> int:
        """Count the stored files again. Once a day, remove those that no message names, and return how many."""
        await self._media.recount()
        now = self._clock()
        if now < self._next_check:
            return 0
        is_first, self._next_check = not self._next_check, now + KEPT_SECONDS
        before = self._began if is_first and not self._store.is_shared and self._is_only() else now - KEPT_SECONDS
        stored = await self._media.stored_before(before)
        found = await self._media.stored_before(now) if is_first else stored  # before visitors fill a new history
        is_empty = not {*await self._store.retention.sizes()} - {PROBE}
        if any(found.values()) and is_empty and await self._is_new():
            log.error(
                "The history is empty, but %d visitors have files. If it was lost, restore it: no file is removed. "
                "Otherwise remove the files.",
                sum(map(bool, found.values())),
            )
            await self._note_loss(now)
            return 0
        kept = await self._media.stored_before(await self._lost_at())
        return sum(
            [await self._remove(owner, files - kept.get(owner, set()), before) for owner, files in stored.items()]
        )

    async def _note_loss(self, at: float) -> None:
        """Store in the new history that it has no messages of the files from before this Unix time."""
        try:
            record = await self._store.get(_LOSS, owner=PROBE)
        except NotFound:
            record = await self._store.save(Conversation(id=_LOSS, owner=PROBE, expires_at=NEVER))
        await self._store.label(record.id, owner=PROBE, title=repr(at))

    async def _lost_at(self) -> float:
        """Return the Unix time at which the history was found to be empty, or 0."""
        try:
            return float((await self._store.get(_LOSS, owner=PROBE)).title or 0)
        except NotFound:
            return 0.0

    async def _is_new(self) -> bool:
        try:
            made = (await self._store.get(LAST_USE, owner=PROBE)).created_at.timestamp()
        except NotFound:
            return True
        return made > self._began - KNOWN_SECONDS

    async def _remove(self, owner: str, files: set[str], before: float) -> int:
        """Remove those of an owner's files that no message names, and that none refers to since this Unix time."""
        if not files:
            return 0
        orphaned = set(files)
        async for text in self._store.retention.texts(owner):
            orphaned -= await TEXTS.run(ids_in, text)
            if not orphaned:
                return 0
        try:
            return await self._media.remove_unused(owner, orphaned, before)
        except OSError:
            log.exception("files that no message names could not be removed; this is tried again")
            return 0
