"""The memory of temporary chats. Each of them has a history store and a file store of its own, and is erased with them.

The ids of temporary chats have a prefix. Whatever is named by such an id is here and nowhere else, so that an answer
that goes on after its chat was erased finds no place to write to.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from pydantic_ai.messages import BinaryContent

from agent.errors import NotFound
from agent.history import NO_CONVERSATION, Entry, RunEvents, new_id
from agent.history.memory import MemoryStore
from agent.media.memory_place import MemoryPlace
from agent.media.places import Place
from agent.media.references import conversation_of
from agent.media.store import MediaStore, StoredFile
from agent.messages.repair import count_bytes

PREFIX = "temporary"
"""Begins the id of each temporary chat. Other ids are hexadecimal. As the id in an address, it begins a chat."""
MAX_BYTES = 200_000_000
"""Bytes of all temporary chats of this process."""
ENTRY_BYTES = 2_000
"""Bytes that a message needs besides its text, or an event of its answer."""
COPIES = 3
"""How often the text of a message is in memory: as JSON, for the search, and in the events of its answer."""


def is_temporary(conversation: str | None) -> bool:
    """Return True for the id of a temporary chat."""
    return conversation is not None and conversation.startswith(PREFIX)


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

    def get(self, conversation: str, owner: str) -> TemporaryChat:
        """Return this owner's chat. Raises `NotFound`."""
        chat = self.chats.get(conversation)
        if chat is None or chat.owner != owner:
            raise NotFound(NO_CONVERSATION)
        return chat

    def to_write(self, conversation: str, owner: str) -> TemporaryChat:
        """Return this owner's chat for an answer to write to. Raises `NotFound`."""
        ending = self.ending.get(conversation)
        return ending if ending is not None and ending.owner == owner else self.get(conversation, owner)

    def of(self, owner: str) -> list[TemporaryChat]:
        """Return the chats of this owner, the oldest first."""
        return [chat for chat in self.chats.values() if chat.owner == owner]

    def room(self) -> int:
        """Return how many more bytes can be stored."""
        return self.max_bytes - sum(chat.size for chat in self.chats.values())


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
