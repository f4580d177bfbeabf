"""The vectors of the passages of a stored chat, kept in the same store.

They are a conversation of their own, so that every store keeps them as it keeps messages. Each entry has the vectors of
the passages that one search met first. A save of the chat itself would make a run of another process end with a
`Conflict`.
"""

from contextlib import suppress

from pydantic_ai.messages import BinaryContent, ModelRequest, UserPromptPart

from agent.errors import Conflict, NotFound
from agent.history import PROGRAM_VECTORS, Entry, Record, vectors_id
from agent.runtime.shared_stores import SHARED_STORES, StoreAddress

_TYPE = "application/octet-stream"


class StoredVectors:
    """The stored vectors of the chat `chat_id`, as packed bytes. The store must be open. All methods raise
    `HistoryError` if it fails.
    """

    def __init__(self, address: StoreAddress, chat_id: str) -> None:
        self._address = address
        self._id = vectors_id(chat_id)
        self._record = self._empty()
        self._loaded: Record | None = None

    async def load(self, *, again: bool) -> list[bytes] | None:
        """Return all that is stored; without `again`, None if it is what this object has loaded and added."""
        record = await self._find()
        if not again and self._loaded is not None and _is_same(record, self._loaded):
            return None
        entries = await SHARED_STORES.call(self._address, lambda store: store.history(record)) if record.head_id else []
        self._record = self._loaded = record
        return [data for entry in entries if (data := _data_of(entry)) is not None]

    async def add(self, data: bytes) -> None:
        """Store more vectors, also after those that another process has added meanwhile."""
        try:
            saved = await self._save(data)
        except (Conflict, NotFound):  # another process has added some, or deleted all
            self._record, self._loaded = await self._find(), None
            self._record = await self._save(data)
        else:
            self._record = saved
            self._loaded = saved if self._loaded is not None else None

    async def delete(self) -> None:
        """Delete all that is stored."""
        with suppress(NotFound):
            await SHARED_STORES.call(self._address, lambda store: store.delete(self._id, owner=PROGRAM_VECTORS))
        self._record, self._loaded = self._empty(), None

    async def _save(self, data: bytes) -> Record:
        content = BinaryContent(data, media_type=_TYPE)
        entry = Entry(parent_id=self._record.head_id, message=ModelRequest([UserPromptPart([content])]))
        record = self._record.extended(entry, ())
        return await SHARED_STORES.call(self._address, lambda store: store.save(record, [entry]))

    async def _find(self) -> Record:
        try:
            return await SHARED_STORES.call(self._address, lambda store: store.get(self._id, owner=PROGRAM_VECTORS))
        except NotFound:
            return self._empty()

    def _empty(self) -> Record:
        return Record(id=self._id, owner=PROGRAM_VECTORS)


def _is_same(one: Record, other: Record) -> bool:
    return one.revision == other.revision and (one.created_at == other.created_at or one.revision == 0)


def _data_of(entry: Entry) -> bytes | None:
    match entry.message:
        case ModelRequest(parts=[UserPromptPart(content=[BinaryContent(data=data)])]):
            return data
        case _:
            return None
