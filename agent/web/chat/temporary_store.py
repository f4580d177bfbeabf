"""A history store with temporary chats: these are in memory, and everything else is in the kept store.

Lists, searches, sizes, expiry and recovery know only the kept conversations.
"""

from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

from agent.errors import InputError, Limited, NotFound
from agent.history import (
    Entry,
    HistoryStore,
    Link,
    LinkStore,
    Record,
    RetentionStore,
    RunEvent,
    RunEvents,
    RunStore,
    SearchHit,
    UnfinishedRun,
)
from agent.i18n import _
from agent.web.chat.temporary_memory import TemporaryMemory, is_temporary, size_in_memory

NO_LINKS = _("A temporary chat can't be shared: nothing of it is stored.")
FULL = _("There is no room for temporary chats at the moment. Try again in a minute, or begin a new chat.")


class TemporaryStore:
    """A `HistoryStore`. The ids of conversations decide where a call goes."""

    def __init__(self, store: HistoryStore, memory: TemporaryMemory) -> None:
        self._kept, self._memory = store, memory
        self.runs: RunStore = _Runs(store.runs, memory)
        self.links: LinkStore = _Links(store.links, memory)
        self.retention: RetentionStore = _Retention(store.retention, memory)
        self.is_shared = store.is_shared

    async def save(self, record: Record, entries: Sequence[Entry] = (), events: RunEvents | None = None) -> Record:
        """Implement `HistoryStore.save`. Raises `Limited` if a temporary chat needs more memory than there is."""
        if not is_temporary(record.id):
            return await self._kept.save(record, entries, events)
        chat, size = self._memory.to_write(record.id, record.owner), size_in_memory(entries, events)
        if entries and size > self._memory.room():
            raise Limited(FULL)
        saved = await chat.store.save(record, entries, events)
        chat.text_bytes += size
        return saved

    async def get(self, conversation_id: str, *, owner: str) -> Record:
        """Implement `HistoryStore.get`."""
        return await self._of(conversation_id, owner).get(conversation_id, owner=owner)

    async def history(self, record: Record, *, limit: int | None = None) -> list[Entry]:
        """Implement `HistoryStore.history`."""
        return await self._of(record.id, record.owner).history(record, limit=limit)

    async def entries(self, record: Record) -> Sequence[Entry]:
        """Implement `HistoryStore.entries`."""
        with suppress(NotFound):
            return await self._of(record.id, record.owner).entries(record)
        return []

    async def find(
        self, record: Record, *, ids: Collection[str] = (), after: Collection[str | None] = ()
    ) -> Sequence[Entry]:
        """Implement `HistoryStore.find`."""
        with suppress(NotFound):
            return await self._of(record.id, record.owner).find(record, ids=ids, after=after)
        return []

    async def following(self, record: Record, entry_id: str) -> Sequence[str]:
        """Implement `HistoryStore.following`."""
        with suppress(NotFound):
            return await self._of(record.id, record.owner).following(record, entry_id)
        return []

    async def list(self, owner: str, *, limit: int = 50, offset: int = 0, pinned: bool | None = None) -> list[Record]:
        """Implement `HistoryStore.list`."""
        return await self._kept.list(owner, limit=limit, offset=offset, pinned=pinned)

    async def search(self, owner: str, query: str, *, limit: int = 20) -> Sequence[SearchHit]:
        """Implement `HistoryStore.search`."""
        return await self._kept.search(owner, query, limit=limit)

    async def label(
        self,
        conversation_id: str,
        *,
        owner: str,
        title: str | None = None,
        pinned: bool | None = None,
        instead_of: str | None = None,
    ) -> Record:
        """Implement `HistoryStore.label`."""
        store = self._of(conversation_id, owner)
        return await store.label(conversation_id, owner=owner, title=title, pinned=pinned, instead_of=instead_of)

    async def delete(self, conversation_id: str, *, owner: str) -> None:
        """Implement `HistoryStore.delete`."""
        await self._of(conversation_id, owner).delete(conversation_id, owner=owner)

    async def aclose(self) -> None:
        """Implement `HistoryStore.aclose`."""
        self._memory.chats.clear()
        await self._kept.aclose()

    def _of(self, conversation: str, owner: str) -> HistoryStore:
        """Return the store of this conversation. Raises `NotFound` for a temporary one that is gone or not theirs."""
        return self._memory.get(conversation, owner).store if is_temporary(conversation) else self._kept


@dataclass(frozen=True, slots=True)
class _Runs:
    """The `RunStore` of both. Of temporary ones, all is known to the process that writes them, which has no lease."""

    _kept: RunStore
    _memory: TemporaryMemory

    async def append(self, events: RunEvents) -> None:
        """Implement `RunStore.append`. Raises `Limited` like `TemporaryStore.save`."""
        if not is_temporary(events.conversation_id):
            return await self._kept.append(events)
        chat = self._memory.to_write(events.conversation_id, events.owner)
        size = size_in_memory((), events)
        if size > self._memory.room():
            raise Limited(FULL)
        await chat.store.runs.append(events)
        chat.text_bytes += size

    async def events(self, run_id: str, *, owner: str, after: int = 0) -> Sequence[RunEvent]:
        """Implement `RunStore.events`."""
        for chat in self._memory.of(owner):
            with suppress(NotFound):
                return await chat.store.runs.events(run_id, owner=owner, after=after)
        return await self._kept.events(run_id, owner=owner, after=after)

    async def unfinished(
        self, *, owner: str | None = None, conversation_id: str | None = None, limit: int = 1000
    ) -> Sequence[UnfinishedRun]:
        """Implement `RunStore.unfinished`."""
        return await self._kept.unfinished(owner=owner, conversation_id=conversation_id, limit=limit)

    async def hold(self, run_ids: Collection[str], *, release: bool = False) -> Sequence[UnfinishedRun]:
        """Implement `RunStore.hold`."""
        return await self._kept.hold(run_ids, release=release)

    async def look(self, run_id: str, *, owner: str, stop: bool = False) -> UnfinishedRun | None:
        """Implement `RunStore.look`."""
        return await self._kept.look(run_id, owner=owner, stop=stop)

    async def would_lose(self, record: Record) -> bool:
        """Implement `RunStore.would_lose`."""
        return await self._kept.would_lose(record)

    async def remove(self, before: datetime) -> int:
        """Implement `RunStore.remove`."""
        chats = [*self._memory.chats.values()]
        return sum([await chat.store.runs.remove(before) for chat in chats]) + await self._kept.remove(before)


@dataclass(frozen=True, slots=True)
class _Links:
    """The `LinkStore` of the kept conversations. Temporary ones have no links."""

    _kept: LinkStore
    _memory: TemporaryMemory

    async def put(self, link: Link, *, most: int | None = None) -> None:
        """Implement `LinkStore.put`. Raises `InputError` for a temporary chat."""
        self._refuse(link.conversation_id, link.owner)
        await self._kept.put(link, most=most)

    async def get(self, digest: str) -> Link:
        """Implement `LinkStore.get`."""
        return await self._kept.get(digest)

    async def of(self, conversation_id: str, *, owner: str) -> Sequence[Link]:
        """Implement `LinkStore.of`. Raises `InputError` for a temporary chat."""
        self._refuse(conversation_id, owner)
        return await self._kept.of(conversation_id, owner=owner)

    async def remove(self, digest: str, *, owner: str) -> None:
        """Implement `LinkStore.remove`."""
        await self._kept.remove(digest, owner=owner)

    def _refuse(self, conversation: str, owner: str) -> None:
        if is_temporary(conversation):
            self._memory.get(conversation, owner)
            raise InputError(NO_LINKS)


@dataclass(frozen=True, slots=True)
class _Retention:
    """The `RetentionStore` of the kept conversations. A single temporary one can be hidden and erased, too."""

    _kept: RetentionStore
    _memory: TemporaryMemory

    async def time(self) -> datetime:
        """Implement `RetentionStore.time`."""
        return await self._kept.time()

    async def expiring(
        self, by: datetime, *, owners: str = "", limit: int = 50, skip: Collection[str] = ()
    ) -> Sequence[Record]:
        """Implement `RetentionStore.expiring`."""
        return await self._kept.expiring(by, owners=owners, limit=limit, skip=skip)

    async def set_expiry(self, record: Record, expires_at: datetime | None) -> bool:
        """Implement `RetentionStore.set_expiry`."""
        with suppress(NotFound):
            return await self._of(record).set_expiry(record, expires_at)
        return False

    async def add_expiry(self, until: Callable[[Record], datetime | None], *, owners: str = "") -> int:
        """Implement `RetentionStore.add_expiry`."""
        return await self._kept.add_expiry(until, owners=owners)

    async def size(self, *, owners: str = "") -> int:
        """Implement `RetentionStore.size`."""
        return await self._kept.size(owners=owners)

    async def sizes(self, *, owners: str = "") -> Mapping[str, int]:
        """Implement `RetentionStore.sizes`."""
        return await self._kept.sizes(owners=owners)

    def texts(self, owner: str) -> AsyncIterator[str]:
        """Implement `RetentionStore.texts`."""
        return self._kept.texts(owner)

    async def erase(self, record: Record) -> bool:
        """Implement `RetentionStore.erase`."""
        with suppress(NotFound):
            return await self._of(record).erase(record)
        return False

    async def erase_unused(self, owner: str, records: Sequence[Record]) -> bool:
        """Implement `RetentionStore.erase_unused`."""
        return await self._kept.erase_unused(owner, records)

    async def wipe(self) -> None:
        """Implement `RetentionStore.wipe`."""
        await self._kept.wipe()

    def _of(self, record: Record) -> RetentionStore:
        return self._memory.get(record.id, record.owner).store.retention if is_temporary(record.id) else self._kept
