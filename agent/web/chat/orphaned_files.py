"""Removes stored files that no message names, for example after a crash between two steps of a deletion."""

import logging
from collections.abc import Callable
from time import time

from agent.history import HistoryStore
from agent.media.store import MediaStore, ids_in
from agent.system.threads import TEXTS

PROBE = "readiness"
"""The owner of the records that `agent.web.health` writes to know if it can. No visitor can be this owner."""

log = logging.getLogger(__name__)

KEPT_SECONDS = 24 * 3600.0
"""Files stay for this long, because a file is stored before the message that names it. Also the time between checks."""


class OrphanedFiles:
    """The housekeeping of stored files. `clock` returns Unix time in seconds."""

    def __init__(self, store: HistoryStore, media: MediaStore, clock: Callable[[], float] = time) -> None:
        self._store, self._media, self._clock = store, media, clock
        self._next_check = 0.0

    async def remove(self) -> int:
        """Count the stored files again. Once a day, remove those that no message names, and return how many."""
        await self._media.recount()
        now = self._clock()
        if now < self._next_check:
            return 0
        self._next_check = now + KEPT_SECONDS
        before = now - KEPT_SECONDS
        stored = await self._media.stored_before(before)
        if any(stored.values()) and not {*await self._store.retention.sizes()} - {PROBE}:
            log.error(
                "The history is empty, but %d visitors have files. If it was lost, restore it: no file is removed. "
                "Otherwise remove the files.",
                len(stored),
            )
            return 0
        return sum([await self._remove(owner, files, before) for owner, files in stored.items()])

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
