"""How much room the conversations of a public page may take with their files, and what makes room for a message."""

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
from agent.media.store import MediaStore
from agent.settings import PublicSettings
from agent.web.chat.expiry import GUEST, delete_conversation
from agent.web.chat.visitor import Visitor

MB = 1_000_000
MESSAGE_BYTES = 2048
"""What a message counts for besides its text and its files."""
FILE_BYTES = 4096
"""The fewest bytes that a file counts for."""
MOST_DELETED = 100
"""Conversations that are deleted at most for one message."""
SETTLED_SECONDS = 2.0
"""A folder that was changed within this time may change again without a sign: clocks of file systems are coarse."""

Reserve = Callable[[int], Awaitable[None]]
"""Reserves room for so many bytes. Raises `Limited`."""
Busy = Callable[[str], bool]
"""Says whether an answer is being written in a conversation."""


class StorageQuota:
    """Reserves room for messages before they are stored. Without limits it refuses nothing and deletes nothing.

    A visitor who is over the own limit is refused. Where guests, or all together, have too much, the guests'
    conversations that were unused for longest are deleted; nobody can come back to these. Nothing else is deleted.
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
        """Let a message be stored within the block. What was reserved counts until its end, then what was stored."""
        account, reserved = GUEST if visitor.guest else visitor.owner, 0

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
            self._reserved += Counter()  # drops those that are at zero

    async def _make_room(self, limits: PublicSettings, visitor: Visitor, account: str, size: int, busy: Busy) -> None:
        """Delete what has to go, or raise `Limited`. Nothing is deleted for a message that would be refused then."""
        most_each = limits.stored_mb_per_visitor
        if not visitor.guest and await self._used(account) + size > most_each * MB:
            raise page_error(Limited, "stored_too_much", most=most_each)
        over = await self._excess(limits, visitor, size)
        if over <= 0:
            return
        oldest = await self._store.expiring(datetime.max.replace(tzinfo=UTC), owners=GUEST, limit=MOST_DELETED)
        oldest = [record for record in oldest if record.owner != visitor.owner and not busy(record.id)]
        if over > await self._used(GUEST):
            oldest = []
        for record in oldest:
            await delete_conversation(self._store, self._media, record)
            if await self._excess(limits, visitor, size) <= 0:
                return
        raise page_error(Limited, "stored_full")

    async def _excess(self, limits: PublicSettings, visitor: Visitor, size: int) -> float:
        """How many bytes there would be too many with `size` more, of guests or of all."""
        used = await self._used("")
        free = await asyncio.to_thread(self._free, self._folder)
        most = min(limits.stored_mb_in_all * MB, limits.stored_disk_percent / 100 * (free + used))
        over = used + size - most
        if not visitor.guest:
            return over
        return max(over, await self._used(GUEST) + size - limits.stored_mb_of_guests * MB)

    async def _used(self, owners: str) -> int:
        """The bytes of all owners that begin with `owners`: stored text, files, and what is reserved."""
        files = await asyncio.to_thread(self._files.read)
        reserved = {**self._reserved}
        found = [size for sizes in (files, reserved) for owner, size in sizes.items() if owner.startswith(owners)]
        return sum(found) + await self._store.size(owners=owners)


class _FolderSizes:
    """The bytes in each folder of a folder. One that has not changed since it was counted is not read again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._counted: dict[str, tuple[int, int]] = {}
        """By name: when it was changed last, and its bytes."""

    def read(self) -> dict[str, int]:
        """Return the bytes of each folder by its name. Blocks."""
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
    """How many bytes a message of these parts adds. Files among them are stored already."""
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
