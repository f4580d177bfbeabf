"""The storage quota of conversations and files on a public page, and the deletions that make room for a message."""

import asyncio
import logging
import shutil
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from agent.errors import HistoryError, Limited
from agent.files.store import MediaStore
from agent.history import Conversation, HistoryStore
from agent.i18n.text import _
from agent.settings import PublicSettings
from agent.system.threads import FILES
from agent.web.chat.expiry import GUEST_PREFIX, IsBusy, delete_unused, expiring_of
from agent.web.chat.visitor import Visitor
from agent.web.client_address import has_full_share

MB = 1_000_000
_FULL = _("There is no room for this message at the moment, so it was not sent. Send less, or try again later.")
MESSAGE_BYTES = 2048
"""Bytes that a message counts for besides its text and files."""
MAX_DELETED_GUESTS = 1000
"""The most guests that lose their conversations for one message."""
ADDRESS_SHARE = 0.01
"""The fraction of all storage that the visitors of one network address can use in any case."""
MAX_ADDRESSES = 100_000
"""The most visitors with a remembered network address."""

log = logging.getLogger(__name__)

Reserve = Callable[[int], Awaitable[None]]
"""Reserves room for this number of bytes. Raises `Limited`."""


class StorageQuota:
    """Reserves room for messages before they are stored. Without limits it refuses nothing and deletes nothing.

    A message is refused if its visitor, or the visitors of its network address together, would have too much. If the
    guests or all visitors together would have too much, the guests that were away for longest lose their conversations,
    because nobody can come back to these. Nothing else is deleted. Processes that share a store count what is stored,
    but not what the others are about to store: messages that are sent to several at once can exceed a limit together.
    `is_in_use` tells whether a conversation must not be deleted.
    """

    def __init__(
        self,
        limits: PublicSettings | None,
        store: HistoryStore,
        media: MediaStore,
        folder: Path,
        is_in_use: IsBusy = lambda _: False,
        *,
        free: Callable[[Path], int] | None = None,
    ) -> None:
        self._limits, self._store, self._media = limits, store, media
        self._folder, self._is_in_use, self._free_bytes = folder, is_in_use, free or _free_bytes
        self._lock = asyncio.Lock()
        self._reserved = Counter[str]()
        """The bytes that this process is about to store, by owner."""
        self._addresses: dict[str, str] = {}
        """The last network address of each visitor, the most recent visitor last. Only in memory."""

    @asynccontextmanager
    async def reservation(self, visitor: Visitor) -> AsyncGenerator[Reserve]:
        """Allow a message to be stored in the block. Its reservation counts until the block ends."""
        reserved = 0

        async def reserve(size: int) -> None:
            nonlocal reserved
            if self._limits is None:
                return
            async with self._lock:
                await self._make_room(self._limits, visitor, size)
                self._reserved[visitor.owner] += size
                reserved += size

        try:
            yield reserve
        finally:
            self._reserved[visitor.owner] -= reserved
            self._reserved += Counter()  # drops owners at zero

    async def _make_room(self, limits: PublicSettings, visitor: Visitor, size: int) -> None:
        """Delete what must go, or raise `Limited`. Deletes nothing if the message would still be refused."""
        if not visitor.guest:
            await self._check_visitor(limits, visitor, size)
        tried = {visitor.owner}
        while (excess := await self._excess(limits, visitor, size)) > 0:
            guests = await self._oldest_guests(excess, tried)
            if not guests:
                raise Limited(_FULL)
            for owner, conversations in guests.items():
                tried.add(owner)
                await self._delete_guest(owner, conversations)

    async def _check_visitor(self, limits: PublicSettings, visitor: Visitor, size: int) -> None:
        """Raise `Limited` if a visitor with a cookie, or all visitors at their address, would have too much."""
        most_each = limits.stored_mb_per_visitor
        if await self._used_bytes(visitor.owner) + size > most_each * MB:
            raise Limited(
                _(
                    "Your conversations may take {most} MB here, and this message would exceed that, "
                    "so it was not sent. Send smaller files, or wait until older conversations are "
                    "deleted.",
                    most=most_each,
                )
            )
        if visitor.address is None:
            return
        used, most = await self._total(limits)
        free = most - used - size
        if used + size > free and has_full_share(
            await self._used_bytes_at_address(visitor.address, visitor.owner) + size,
            free=int(free),
            always=int(ADDRESS_SHARE * most),
        ):
            raise Limited(_FULL)
        self._remember(visitor.owner, visitor.address)

    async def _oldest_guests(self, missing: float, tried: set[str]) -> dict[str, Sequence[Conversation]]:
        """Return the conversations of the guests that were away for longest, enough to free `missing` bytes.

        Returns nothing if that is not possible. Guests in `tried` and guests that are active stay.
        """
        found, files = dict[str, Sequence[Conversation]](), await self._media.sizes()
        for owner, size in (await self._store.retention.sizes(owners=GUEST_PREFIX)).items():
            if missing <= 0 or len(found) == MAX_DELETED_GUESTS:
                break
            if owner in tried or self._reserved[owner]:
                continue
            conversations, would_lose = await expiring_of(self._store, owner), self._store.runs.would_lose
            if conversations and not any([self._is_in_use(one.id) or await would_lose(one) for one in conversations]):
                found[owner] = conversations
                missing -= size + files.get(owner, 0)
        return found if missing <= 0 else {}

    async def _delete_guest(self, owner: str, conversations: Sequence[Conversation]) -> None:
        """Delete a guest's conversations and files, unless the guest is back."""
        try:
            await delete_unused(self._store, self._media, owner, conversations, self._is_in_use)
        except HistoryError as error:
            log.warning("a guest's conversations could not be deleted: %s", error)

    async def _excess(self, limits: PublicSettings, visitor: Visitor, size: int) -> float:
        """Return the bytes over the limit of guests or of all visitors if `size` more were stored."""
        used, most = await self._total(limits)
        excess = used + size - most
        if not visitor.guest:
            return excess
        return max(excess, await self._used_bytes(GUEST_PREFIX) + size - limits.stored_mb_of_guests * MB)

    async def _total(self, limits: PublicSettings) -> tuple[int, float]:
        """Return the bytes that all visitors together have, and the most that they can have."""
        used = await self._used_bytes("")
        free = await FILES.run(self._free_bytes, self._folder)
        return used, min(limits.stored_mb_in_all * MB, limits.stored_disk_percent / 100 * (free + used))

    async def _used_bytes(self, owners: str) -> int:
        """Return the bytes of all owners with the prefix `owners`: stored text, files and reservations."""
        found = [
            size
            for sizes in (await self._media.sizes(), self._reserved)
            for owner, size in sizes.items()
            if owner.startswith(owners)
        ]
        return sum(found) + await self._store.retention.size(owners=owners)

    async def _used_bytes_at_address(self, address: str, visitor: str) -> int:
        """Return the bytes of this visitor and of all visitors that were last seen at this address."""
        owners = {visitor, *(owner for owner, seen in self._addresses.items() if seen == address)}
        texts, files = await self._store.retention.sizes(), await self._media.sizes()
        return sum(texts.get(owner, 0) + files.get(owner, 0) + self._reserved[owner] for owner in owners)

    def forget(self, owner: str) -> None:
        """Forget the network address of this owner."""
        self._addresses.pop(owner, None)

    def _remember(self, owner: str, address: str) -> None:
        self._addresses.pop(owner, None)
        self._addresses[owner] = address
        if len(self._addresses) > MAX_ADDRESSES:
            del self._addresses[next(iter(self._addresses))]


def size_of(parts: Iterable[object]) -> int:
    """Return how many bytes a message of these parts adds. Files among them are stored already."""
    texts = (part if isinstance(part, str) else getattr(part, "content", "") for part in parts)
    return MESSAGE_BYTES + sum(len(text.encode(errors="replace")) for text in texts if isinstance(text, str))


def _free_bytes(folder: Path) -> int:
    found = folder
    while not found.exists():
        found = found.parent
    return shutil.disk_usage(found).free
