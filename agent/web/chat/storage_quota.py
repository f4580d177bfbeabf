"""The storage quota of conversations and files on a public page, and the deletions that make room for a message."""

import asyncio
import os
import shutil
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from time import time

from agent.errors import Limited
from agent.history import HistoryStore
from agent.i18n.translator import page_error
from agent.media.owner_folders import FILE_BYTES
from agent.media.store import MediaStore
from agent.settings import PublicSettings
from agent.web.chat.expiry import GUEST_PREFIX, Busy, delete_conversation
from agent.web.chat.visitor import Visitor

MB = 1_000_000
MESSAGE_BYTES = 2048
"""Bytes that a message counts for besides its text and files."""
MOST_DELETED = 100
"""The most conversations that are deleted for one message."""
SETTLED_SECONDS = 2.0
"""Seconds in which a changed folder can change again unnoticed, because file system clocks are coarse."""

Reserve = Callable[[int], Awaitable[None]]
"""Reserves room for this number of bytes. Raises `Limited`."""


class StorageQuota:
    """Reserves room for messages before they are stored. Without limits it refuses nothing and deletes nothing.

    A visitor over the limit per visitor is refused. If guests, or all visitors together, have too much, the guests'
    conversations that were unused for longest are deleted, because nobody can come back to them. Nothing else is
    deleted.
    """

    def __init__(
        self,
        limits: PublicSettings | None,
        store: HistoryStore,
        media: MediaStore,
        folder: Path,
        *,
        free: Callable[[Path], int] | None = None,
    ) -> None:
        self._limits, self._store, self._media = limits, store, media
        self._files, self._folder, self._free = _FolderSizes(folder), folder, free or _free
        self._turn = asyncio.Lock()
        self._reserved = Counter[str]()

    @asynccontextmanager
    async def reservation(self, visitor: Visitor, busy: Busy) -> AsyncGenerator[Reserve]:
        """Allow a message to be stored within the block. The reservation counts until its end, then the stored size."""
        account, reserved = GUEST_PREFIX if visitor.guest else visitor.owner, 0

        async def reserve(size: int) -> None:
            nonlocal reserved
            if self._limits is None:
                return
            async with self._turn:
                await self._make_room(self._limits, visitor, account, size, busy)
                self._reserved[account] += size
                reserved += size

        try:
            yield reserve
        finally:
            self._reserved[account] -= reserved
            self._reserved += Counter()  # drops accounts at zero

    async def _make_room(self, limits: PublicSettings, visitor: Visitor, account: str, size: int, busy: Busy) -> None:
        """Delete what must go, or raise `Limited`. Deletes nothing if the message would still be refused."""
        most_each = limits.stored_mb_per_visitor
        if not visitor.guest and await self._used(account) + size > most_each * MB:
            raise page_error(Limited, "stored_too_much", most=most_each)
        over = await self._excess(limits, visitor, size)
        if over <= 0:
            return
        oldest = await self._store.expiring(datetime.max.replace(tzinfo=UTC), owners=GUEST_PREFIX, limit=MOST_DELETED)
        oldest = [record for record in oldest if record.owner != visitor.owner and not busy(record.id)]
        if over > await self._used(GUEST_PREFIX):
            oldest = []
        for record in oldest:
            await delete_conversation(self._store, self._media, record, busy)
            if await self._excess(limits, visitor, size) <= 0:
                return
        raise page_error(Limited, "stored_full")

    async def _excess(self, limits: PublicSettings, visitor: Visitor, size: int) -> float:
        """Return the bytes over the limit of guests or of all visitors if `size` more were stored."""
        used = await self._used("")
        free = await asyncio.to_thread(self._free, self._folder)
        most = min(limits.stored_mb_in_all * MB, limits.stored_disk_percent / 100 * (free + used))
        over = used + size - most
        if not visitor.guest:
            return over
        return max(over, await self._used(GUEST_PREFIX) + size - limits.stored_mb_of_guests * MB)

    async def _used(self, owners: str) -> int:
        """Return the bytes of all owners with the prefix `owners`: stored text, files and reservations."""
        files = await asyncio.to_thread(self._files.read)
        reserved = {**self._reserved}
        found = [size for sizes in (files, reserved) for owner, size in sizes.items() if owner.startswith(owners)]
        return sum(found) + await self._store.size(owners=owners)


class _FolderSizes:
    """Sizes of the subfolders of a folder in bytes. A subfolder is read again only if it has changed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._counted: dict[str, tuple[int, int]] = {}
        """By name: the time of the last change, and the size in bytes."""

    def read(self) -> dict[str, int]:
        """Return the size in bytes of each subfolder by name. Blocks."""
        settled, counted = (time() - SETTLED_SECONDS) * 1e9, dict[str, tuple[int, int]]()
        sizes = dict[str, int]()
        with suppress(FileNotFoundError), os.scandir(self._folder) as owners:
            for owner in owners:
                with suppress(OSError):  # it was removed meanwhile
                    changed = owner.stat(follow_symlinks=False).st_mtime_ns
                    known = self._counted.get(owner.name)
                    sizes[owner.name] = known[1] if known and known[0] == changed else _size(owner.path)
                    if changed < settled:
                        counted[owner.name] = changed, sizes[owner.name]
        self._counted = counted
        return sizes


def size_of(parts: Iterable[object]) -> int:
    """Return how many bytes a message of these parts adds. Files among them are stored already."""
    texts = (part if isinstance(part, str) else getattr(part, "content", "") for part in parts)
    return MESSAGE_BYTES + sum(len(text.encode(errors="replace")) for text in texts if isinstance(text, str))


def _size(folder: str) -> int:
    with os.scandir(folder) as files:
        return sum(max(FILE_BYTES, file.stat(follow_symlinks=False).st_size) for file in files)


def _free(folder: Path) -> int:
    found = folder
    while not found.exists():
        found = found.parent
    return shutil.disk_usage(found).free
