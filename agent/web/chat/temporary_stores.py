"""The stores of temporary chats, which are in memory, and the stores of a page that has both kinds of chats.

The ids of temporary chats have a prefix, and decide where a call goes. Whatever such an id names is in memory and
nowhere else, so that an answer that goes on after its chat was erased finds no place to write to. Lists, searches,
sizes, expiry and recovery know only the kept conversations.
"""

from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime

from pydantic_ai.messages import BinaryContent

from agent.errors import InputError, Limited, NotFound
from agent.files.places import MemoryPlace, Place
from agent.files.references import conversation_of
from agent.files.store import MediaStore, StoredFile
from agent.history import (
    NO_CONVERSATION,
    Conversation,
    Entry,
    HistoryStore,
    Link,
    LinkStore,
    RetentionStore,
    RunEvent,
    RunEvents,
    RunStore,
    new_id,
)
from agent.history.memory import MemoryStore
from agent.i18n.text import _
from agent.messages.repair import count_bytes

PREFIX = "temporary"
"""Begins the id of each temporary chat. Other ids are hexadecimal. As the id in an address, it begins a chat."""
MAX_BYTES = 200_000_000
"""Bytes of all temporary chats of this process."""
ENTRY_BYTES = 2_000
"""Bytes that a message needs besides its text, or an event of its answer."""
COPIES = 3
"""The number of copies of a message in memory: as JSON, for the search, and in the events of its answer."""

NO_LINKS = _("A temporary chat can't be shared: nothing of it is stored.")
FULL = _("There is no room for temporary chats at the moment. Try again in a minute, or begin a new chat.")


def is_temporary(conversation_id: str | None) -> bool:
    """Return True for the id of a temporary chat."""
    return conversation_id is not None and conversation_id.startswith(PREFIX)


def new_temporary_id() -> str:
    """Return the id of a new temporary chat."""
    return f"{PREFIX}-{new_id()}"


@dataclass(eq=False, kw_only=True)
class TemporaryChat:
    """One chat. Its page asked for it at `asked_at`. `is_left`: its page shows something else by now.

    `is_beginning`: its first message is being prepared, and its page does not know its id yet.
    """

    id: str
    owner: str
    address: str | None
    asked_at: float
    place: MemoryPlace
    store: MemoryStore
    media: MediaStore
    is_left: bool = False
    is_beginning: bool = False
    text_bytes: int = 0

    @property
    def size(self) -> int:
        """The number of bytes of its text and its files."""
        return self.text_bytes + self.place.total


class TemporaryMemory:
    """Owns the temporary chats of this process.

    `ending` are those that are erased, but whose cancelled answers have not ended yet. Nobody can read them.
    """

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self.max_bytes = max_bytes
        self.chats, self.ending = dict[str, TemporaryChat](), dict[str, TemporaryChat]()

    def add(self, owner: str, address: str | None, asked_at: float) -> TemporaryChat:
        """Return a new chat without messages."""
        place = MemoryPlace(self.room)
        chat = TemporaryChat(
            id=new_temporary_id(),
            owner=owner,
            address=address,
            asked_at=asked_at,
            place=place,
            store=MemoryStore(),
            media=MediaStore(place),
        )
        self.chats[chat.id] = chat
        return chat

    def get(self, conversation_id: str, owner: str) -> TemporaryChat:
        """Return this owner's chat. Raises `NotFound`."""
        chat = self.chats.get(conversation_id)
        if chat is None or chat.owner != owner:
            raise NotFound(NO_CONVERSATION)
        return chat

    def to_write(self, conversation_id: str, owner: str) -> TemporaryChat:
        """Return this owner's chat for an answer to write to. Raises `NotFound`."""
        ending = self.ending.get(conversation_id)
        return ending if ending is not None and ending.owner == owner else self.get(conversation_id, owner)

    def of(self, owner: str) -> list[TemporaryChat]:
        """Return the chats of this owner, the oldest first."""
        return [chat for chat in self.chats.values() if chat.owner == owner]

    def room(self) -> int:
        """Return how many more bytes can be stored."""
        return self.max_bytes - sum(chat.size for chat in self.chats.values())

    @contextmanager
    def growing(
        self, conversation_id: str, owner: str, entries: Sequence[Entry], events: RunEvents | None
    ) -> Generator[TemporaryChat]:
        """Give the chat to store these in, and count their bytes then. Raises `NotFound` and `Limited`."""
        chat, size = self.to_write(conversation_id, owner), size_in_memory(entries, events)
        if (entries or events) and size > self.room():
            raise Limited(FULL)
        yield chat
        chat.text_bytes += size


def size_in_memory(entries: Iterable[Entry], events: RunEvents | None = None) -> int:
    """Return about how many bytes of memory these entries and events need, without their files."""
    texts = sum(ENTRY_BYTES + COPIES * count_bytes(entry.message) for entry in entries)
    return texts + sum(len(event.json) for event in (events.events if events else ()))


class TemporaryMedia(MediaStore):
    """The stored files, and those of temporary chats, which are only in `memory`."""

    def __init__(self, place: Place, memory: TemporaryMemory) -> None:
        super().__init__(place)
        self._memory = memory

    async def add(self, owner: str, content: BinaryContent, reference: str) -> str:
        """Store the bytes where the conversation of the reference is."""
        conversation = conversation_of(reference)
        if not is_temporary(conversation):
            return await super().add(owner, content, reference)
        return await self._memory.to_write(conversation, owner).media.add(owner, content, reference)

    async def read(self, owner: str, id_: str) -> BinaryContent:
        """Return the content of one file. Raises `NotFound`."""
        for chat in self._memory.of(owner):
            if chat.place.size(f"{owner}/{id_}") is not None:
                return await chat.media.read(owner, id_)
        return await super().read(owner, id_)

    async def find(self, owner: str, id_: str) -> StoredFile:
        """Return one file without reading it. Raises `NotFound`."""
        for chat in self._memory.of(owner):
            if chat.place.size(f"{owner}/{id_}") is not None:
                return replace(await chat.media.find(owner, id_), is_kept=False)
        return await super().find(owner, id_)

    async def add_references(self, owner: str, references: Mapping[str, Iterable[str]]) -> None:
        """Add references. Each temporary chat has its own files, which share their bytes."""
        kept, temporary = _divided(references)
        for id_, names in temporary.items():
            content = await self.read(owner, id_)
            for name in names:
                await self.add(owner, content, name)
        if kept:
            await super().add_references(owner, kept)

    async def remove_references(self, owner: str, references: Mapping[str, Iterable[str]]) -> int:
        """Remove references. Those of an erased temporary chat are gone already."""
        kept, temporary = _divided(references)
        removed = 0
        for chat in self._memory.of(owner):
            mine = {
                id_: [name for name in names if conversation_of(name) == chat.id] for id_, names in temporary.items()
            }
            removed += await chat.media.remove_references(owner, {id_: names for id_, names in mine.items() if names})
        return removed + (await super().remove_references(owner, kept) if kept else 0)


def _divided(references: Mapping[str, Iterable[str]]) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Return the references of kept conversations, and those of temporary ones. A file without any counts as kept."""
    kept, temporary = dict[str, list[str]](), dict[str, list[str]]()
    for id_, given in references.items():
        names = list(given)
        mine = [name for name in names if is_temporary(conversation_of(name))]
        if mine:
            temporary[id_] = mine
        if len(mine) < len(names) or not names:
            kept[id_] = [name for name in names if name not in mine]
    return kept, temporary


class TemporaryStore:
    """A `HistoryStore`. The ids of conversations decide where a call goes; a call without one knows the kept ones."""

    def __init__(self, store: HistoryStore, memory: TemporaryMemory) -> None:
        self._store, self._memory = store, memory
        self.is_shared, self.list, self.search = store.is_shared, store.list, store.search
        self.runs: RunStore = _Runs(store.runs, memory)
        self.links: LinkStore = _Links(store.links, memory)
        self.retention: RetentionStore = _Retention(store.retention, memory)

    async def save(
        self, conversation: Conversation, entries: Sequence[Entry] = (), events: RunEvents | None = None
    ) -> Conversation:
        """Implement `HistoryStore.save`. Raises `Limited` if a temporary chat needs more memory than there is."""
        if not is_temporary(conversation.id):
            return await self._store.save(conversation, entries, events)
        with self._memory.growing(conversation.id, conversation.owner, entries, events) as chat:
            return await chat.store.save(conversation, entries, events)

    async def remove(self, conversation: Conversation, entry_ids: Collection[str]) -> Conversation:
        if not is_temporary(conversation.id):
            return await self._store.remove(conversation, entry_ids)
        chat = self._memory.get(conversation.id, conversation.owner)
        gone = await chat.store.find(conversation, ids=entry_ids)
        removed = await chat.store.remove(conversation, entry_ids)
        chat.text_bytes -= size_in_memory(gone)
        return removed

    async def get(self, conversation_id: str, *, owner: str) -> Conversation:
        return await self._of(conversation_id, owner).get(conversation_id, owner=owner)

    async def history(
        self, conversation: Conversation, *, limit: int | None = None, most_bytes: int | None = None
    ) -> list[Entry]:
        return await self._of(conversation.id, conversation.owner).history(
            conversation, limit=limit, most_bytes=most_bytes
        )

    async def entries(self, conversation: Conversation) -> Sequence[Entry]:
        with suppress(NotFound):
            return await self._of(conversation.id, conversation.owner).entries(conversation)
        return []

    async def find(
        self,
        conversation: Conversation,
        *,
        ids: Collection[str] = (),
        after: Collection[str | None] = (),
        most_bytes: int | None = None,
    ) -> Sequence[Entry]:
        with suppress(NotFound):
            store = self._of(conversation.id, conversation.owner)
            return await store.find(conversation, ids=ids, after=after, most_bytes=most_bytes)
        return []

    async def following(self, conversation: Conversation, entry_id: str | None) -> Sequence[str]:
        with suppress(NotFound):
            return await self._of(conversation.id, conversation.owner).following(conversation, entry_id)
        return []

    async def label(
        self,
        conversation_id: str,
        *,
        owner: str,
        title: str | None = None,
        pinned: bool | None = None,
        instead_of: str | None = None,
    ) -> Conversation:
        store = self._of(conversation_id, owner)
        return await store.label(conversation_id, owner=owner, title=title, pinned=pinned, instead_of=instead_of)

    async def delete(self, conversation_id: str, *, owner: str) -> None:
        await self._of(conversation_id, owner).delete(conversation_id, owner=owner)

    async def aclose(self) -> None:
        self._memory.chats.clear()
        await self._store.aclose()

    def _of(self, conversation_id: str, owner: str) -> HistoryStore:
        """Return the store of this conversation. Raises `NotFound` for a temporary one that is gone or not theirs."""
        return self._memory.get(conversation_id, owner).store if is_temporary(conversation_id) else self._store


class _Runs:
    """The `RunStore` of both. Of temporary ones, all is known to the process that writes them, which has no lease."""

    def __init__(self, kept: RunStore, memory: TemporaryMemory) -> None:
        self._store, self._memory = kept, memory
        self.unfinished, self.hold, self.look, self.would_lose = kept.unfinished, kept.hold, kept.look, kept.would_lose

    async def append(self, events: RunEvents) -> None:
        """Implement `RunStore.append`. Raises `Limited` like `TemporaryStore.save`."""
        if not is_temporary(events.conversation_id):
            return await self._store.append(events)
        with self._memory.growing(events.conversation_id, events.owner, (), events) as chat:
            await chat.store.runs.append(events)

    async def events(self, run_id: str, *, owner: str, after: int = 0) -> Sequence[RunEvent]:
        for chat in self._memory.of(owner):
            with suppress(NotFound):
                return await chat.store.runs.events(run_id, owner=owner, after=after)
        return await self._store.events(run_id, owner=owner, after=after)

    async def remove(self, before: datetime) -> int:
        chats = [*self._memory.chats.values()]
        return sum([await chat.store.runs.remove(before) for chat in chats]) + await self._store.remove(before)


class _Links:
    """The `LinkStore` of the kept conversations. Temporary ones have no links."""

    def __init__(self, kept: LinkStore, memory: TemporaryMemory) -> None:
        self._store, self._memory = kept, memory
        self.get, self.remove = kept.get, kept.remove

    async def put(self, link: Link, *, most: int | None = None) -> None:
        """Implement `LinkStore.put`. Raises `InputError` for a temporary chat."""
        self._refuse(link.conversation_id, link.owner)
        await self._store.put(link, most=most)

    async def of(self, conversation_id: str, *, owner: str) -> Sequence[Link]:
        """Implement `LinkStore.of`. Raises `InputError` for a temporary chat."""
        self._refuse(conversation_id, owner)
        return await self._store.of(conversation_id, owner=owner)

    def _refuse(self, conversation_id: str, owner: str) -> None:
        if is_temporary(conversation_id):
            self._memory.get(conversation_id, owner)
            raise InputError(NO_LINKS)


class _Retention:
    """The `RetentionStore` of the kept conversations. A single temporary one can be hidden and erased, too."""

    def __init__(self, kept: RetentionStore, memory: TemporaryMemory) -> None:
        self._store, self._memory = kept, memory
        self.time, self.expiring, self.add_expiry, self.wipe = kept.time, kept.expiring, kept.add_expiry, kept.wipe
        self.size, self.sizes, self.texts, self.erase_unused = kept.size, kept.sizes, kept.texts, kept.erase_unused

    async def set_expiry(self, conversation: Conversation, expires_at: datetime | None) -> bool:
        with suppress(NotFound):
            return await self._of(conversation).set_expiry(conversation, expires_at)
        return False

    async def erase(self, conversation: Conversation) -> bool:
        with suppress(NotFound):
            return await self._of(conversation).erase(conversation)
        return False

    def _of(self, conversation: Conversation) -> RetentionStore:
        return (
            self._memory.get(conversation.id, conversation.owner).store.retention
            if is_temporary(conversation.id)
            else self._store
        )
