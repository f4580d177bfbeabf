"""The stored history of one chat, and the vectors of its passages, which are stored with it."""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256

from pydantic_ai.messages import BinaryContent, ModelMessage, ModelRequest, UserPromptPart

from agent.context import Context
from agent.errors import Conflict, HistoryError, InputError, NotFound, ProviderError
from agent.files.ranking import VectorIndex, digest_of, pack
from agent.history import PROGRAM, PROGRAM_VECTORS, Conversation, Entry, Note, vectors_id
from agent.messages.repair import open_calls, repair, unanswered_calls
from agent.providers.connection import Embedder
from agent.runtime.loop_thread import SHARED_STORES, StoreAddress
from agent.suspension.seals import unpack
from agent.suspension.suspended_run import Suspension
from agent.system.threads import RANKING

log = logging.getLogger(__name__)

_TYPE = "application/octet-stream"


class StoredVectors:
    """The stored vectors of the chat `chat_id`, as packed bytes. The store must be open. All methods raise
    `HistoryError` if it fails.
    """

    def __init__(self, address: StoreAddress, chat_id: str) -> None:
        self._address = address
        self._id = vectors_id(chat_id)
        self._conversation = self._empty()
        self._loaded: Conversation | None = None

    async def load(self, *, again: bool) -> list[bytes] | None:
        """Return all that is stored; without `again`, None if it is what this object has loaded and added."""
        conversation = await self._find()
        if not again and self._loaded is not None and _is_same_conversation(conversation, self._loaded):
            return None
        entries = (
            await SHARED_STORES.call(self._address, lambda store: store.history(conversation))
            if conversation.head_id
            else []
        )
        self._conversation = self._loaded = conversation
        return [data for entry in entries if (data := _data_of(entry)) is not None]

    async def add(self, data: bytes) -> None:
        """Store more vectors, also after those that another process has added meanwhile."""
        try:
            saved = await self._save(data)
        except (Conflict, NotFound):  # another process has added some, or deleted all
            self._conversation, self._loaded = await self._find(), None
            self._conversation = await self._save(data)
        else:
            self._conversation = saved
            self._loaded = saved if self._loaded is not None else None

    async def delete(self) -> None:
        """Delete all that is stored."""
        with suppress(NotFound):
            await SHARED_STORES.call(self._address, lambda store: store.delete(self._id, owner=PROGRAM_VECTORS))
        self._conversation, self._loaded = self._empty(), None

    async def _save(self, data: bytes) -> Conversation:
        content = BinaryContent(data, media_type=_TYPE)
        entry = Entry(parent_id=self._conversation.head_id, message=ModelRequest([UserPromptPart([content])]))
        conversation = self._conversation.extended(entry, ())
        return await SHARED_STORES.call(self._address, lambda store: store.save(conversation, [entry]))

    async def _find(self) -> Conversation:
        try:
            return await SHARED_STORES.call(self._address, lambda store: store.get(self._id, owner=PROGRAM_VECTORS))
        except NotFound:
            return self._empty()

    def _empty(self) -> Conversation:
        return Conversation(id=self._id, owner=PROGRAM_VECTORS)


def _is_same_conversation(one: Conversation, other: Conversation) -> bool:
    return one.revision == other.revision and (one.created_at == other.created_at or one.revision == 0)


def _data_of(entry: Entry) -> bytes | None:
    match entry.message:
        case ModelRequest(parts=[UserPromptPart(content=[BinaryContent(data=data)])]):
            return data
        case _:
            return None


class ChatHistory:
    """The conversation `id` of the owner `PROGRAM` in a store. It is the `Journal` of the chat's runs.

    Each message is one save, the prompt before any model request. So a killed process loses at most the message that
    was being written, and no save overwrites another: a save after somebody else's raises `Conflict`. Use it from one
    event loop.
    """

    def __init__(self, address: StoreAddress, id_: str) -> None:
        self.id = id_
        self.vectors = StoredVectors(address, id_)
        """The vectors of the passages in its files."""
        self._address = address
        self._lock = asyncio.Lock()
        self._is_open = False
        self._conversation: Conversation | None = None
        self._head_before: str | None = None
        self._open_calls: tuple[str, ...] = ()
        self._waiting: tuple[Context, Note] | None = None
        self._claimed: tuple[str, ...] = ()

    def reopened(self) -> "ChatHistory":
        """Return the same conversation, not loaded yet, for a forked process, which has no connections."""
        return ChatHistory(self._address, self.id)

    @property
    def suspension(self) -> Suspension | None:
        """The suspended run that the stored conversation waits with, if any.

        Raises `SuspensionError` if another version of this program stored it.
        """
        if self._waiting is None:
            return None
        context, note = self._waiting
        if not note.suspension:  # stored by an older version, which resumed only tool calls
            return Suspension.of(context.session_id, context.messages, run_id=note.run_id)
        if not self._open_calls:
            return unpack(note.suspension, tuple(repair(context.messages)))
        return unpack(note.suspension, Suspension.of(context.session_id, context.messages).messages)

    @property
    def is_loaded(self) -> bool:
        """True once the conversation was loaded."""
        return self._conversation is not None

    async def load(self, *, again: bool = True) -> Context | None:
        """Return the stored conversation, or None if it is the one that was loaded or saved last.

        `again=False` loads it only the first time. Raises `ConfigError` and `HistoryError`.
        """
        async with self._lock:
            if self._conversation is not None and not again:
                return None
            if not self._is_open:
                await SHARED_STORES.acquire(self._address)
                self._is_open = True
            conversation = await self._find()
            if (before := self._conversation) is not None and _is_same(before, conversation):
                self._head_before = before.head_id
                return None
            entries = (
                await SHARED_STORES.call(self._address, lambda store: store.history(conversation))
                if conversation.head_id
                else []
            )
            return self._use(conversation, entries)

    async def claim(self) -> None:
        """Save that the suspended run is being resumed, so that it cannot be again, whatever happens to this process.

        Raises `Conflict` if the conversation was changed elsewhere, for example resumed.
        """
        async with self._lock:
            assert self._conversation is not None
            pending = self._conversation.pending
            self._conversation = await self._save(replace(self._conversation, pending=()), [])
            self._claimed = pending

    async def release(self) -> None:
        """Undo `claim` after a refusal, which has used nothing up. Does nothing without a claim."""
        async with self._lock:
            if self._claimed and self._conversation is not None:
                self._conversation = await self._save(replace(self._conversation, pending=self._claimed), [])
            self._claimed = ()

    async def write(self, message: ModelMessage, note: Note) -> None:
        """Save a message of the current run. See `agent.result.Journal`. Raises `HistoryError`."""
        async with self._lock:
            assert self._conversation is not None
            entry = Entry(parent_id=self._conversation.head_id, message=message, note=note)
            self._open_calls = open_calls(self._open_calls, message)
            waiting = tuple(one.call_id for one in unpack(note.suspension, ()).pending) if note.suspension else ()
            self._conversation = await self._save(self._conversation.extended(entry, waiting), [entry])
            self._waiting, self._claimed = None, ()

    def undo_run(self) -> None:
        """Continue from before the current run. What it has stored becomes a branch with the next save."""
        if self._conversation is not None:
            self._conversation = _at(self._conversation, self._head_before)

    async def is_stored(self) -> bool:
        """Return False if the conversation that was loaded or saved was deleted meanwhile. Raises `HistoryError`."""
        found, conversation = await self._find(), self._conversation
        return conversation is not None and found.revision > 0 and found.created_at == conversation.created_at

    async def delete(self) -> None:
        """Remove the conversation and its vectors from the store. The next message begins another one of this id."""
        await self.load(again=False)
        async with self._lock:
            with suppress(NotFound):
                await SHARED_STORES.call(self._address, lambda store: store.delete(self.id, owner=PROGRAM))
            await self.vectors.delete()
            self._use(Conversation(id=self.id, owner=PROGRAM), [])

    async def aclose(self) -> None:
        """Release the store. A second call does nothing."""
        async with self._lock:
            if self._is_open:
                self._is_open = False
                await SHARED_STORES.release(self._address)

    async def _find(self) -> Conversation:
        """Return the stored conversation, or a new one."""
        try:
            return await SHARED_STORES.call(self._address, lambda store: store.get(self.id, owner=PROGRAM))
        except NotFound:
            return Conversation(id=self.id, owner=PROGRAM)

    def _use(self, conversation: Conversation, entries: Sequence[Entry]) -> Context:
        """Continue from a loaded conversation, without a run that failed at its end. Return its context."""
        kept = _without_failed_run(entries)
        self._conversation = _at(conversation, kept[-1].id if kept else None)
        self._head_before = self._conversation.head_id
        context = Context(session_id=self.id, messages=tuple(entry.message for entry in kept))
        self._open_calls = tuple(call.tool_call_id for call in unanswered_calls(context.messages)[1])
        # A resumed run that failed has perhaps made the calls already, so nobody can resume it again.
        waits = bool(self._conversation.pending) and len(kept) == len(entries) and kept[-1].note.ended == "suspended"
        self._waiting = (context, kept[-1].note) if waits else None
        return context

    async def _save(self, conversation: Conversation, entries: Sequence[Entry]) -> Conversation:
        """Save, or raise an error that says what happened to this chat meanwhile."""
        try:
            return await SHARED_STORES.call(self._address, lambda store: store.save(conversation, entries))
        except Conflict as error:
            raise Conflict(
                f"The chat {self.id!r} was continued elsewhere meanwhile, so this message was not stored. Nothing was "
                "overwritten: the next message continues from what is stored now."
            ) from error
        except NotFound as error:
            if conversation.revision == 0:
                raise HistoryError(
                    f"The id {self.id!r} is taken in this store by a conversation of somebody else: choose another id."
                ) from error
            raise Conflict(f"The chat {self.id!r} was deleted meanwhile, so this message was not stored.") from error


def _is_same(before: Conversation, now: Conversation) -> bool:
    """Return True if nobody has saved the conversation in between, or deleted it and begun another one."""
    return (before.revision, before.created_at) == (
        now.revision,
        now.created_at,
    ) or before.revision == now.revision == 0


def _at(conversation: Conversation, head_id: str | None) -> Conversation:
    """Return the conversation with its head at another entry. The old head becomes an abandoned branch."""
    if head_id == conversation.head_id:
        return conversation
    left = (conversation.head_id,) if conversation.head_id else ()
    return replace(
        conversation, head_id=head_id, pending=(), branches=tuple(dict.fromkeys((*conversation.branches, *left)))
    )


def _without_failed_run(entries: Sequence[Entry]) -> Sequence[Entry]:
    """Return the entries before the last run if that ended with an error, as a chat goes on after an error."""
    if not entries or entries[-1].note.ended != "error":
        return entries
    failed, last = entries[-1].note.run_id, len(entries)
    while last and entries[last - 1].note.run_id == failed:
        last -= 1
    return entries[:last]


MAX_PASSAGES = 20_000
"""The most passages of a chat that are embedded. Their vectors of 1,536 numbers take 120 MB of memory."""
BATCH = 64
"""Texts in one request. llama.cpp and vLLM embed about as many at once, and hosted providers take them quickly."""
BATCHES_STORED = 16
"""Requests whose vectors are stored together: the most that is lost if the program ends or the embedder fails."""


class ChatVectors:
    """Finds the passages of one chat by their vectors, and embeds each once.

    With a `history`, the vectors are stored with the chat, and deleted with it.

    Use it from one event loop.
    """

    def __init__(self, embedder: Embedder, history: ChatHistory | None) -> None:
        self._embedder, self._history = embedder, history
        self._lock = asyncio.Lock()
        self._index = VectorIndex()
        self._owner: bytes = b""
        self._texts: Sequence[str] = ()
        self._digests: list[bytes] = []

    async def name(self) -> str:
        """Return the name of the model. Raises `ProviderError`."""
        return await self._embedder.name()

    @property
    def size(self) -> int:
        """The bytes of the vectors in memory."""
        return self._index.size

    def forget(self) -> None:
        """Forget all vectors in memory."""
        self._index = VectorIndex()
        self._texts, self._digests = (), []

    async def nearest(self, texts: Sequence[str], query: str, most: int) -> list[int]:
        """Return the numbers of the texts nearest to the query, the nearest first, at most `most`.

        Raises `InputError` if there are too many texts, and `ProviderError` if the embedder fails. The vectors that it
        has made before are kept.
        """
        if len(texts) > MAX_PASSAGES:
            raise InputError(f"the files have {len(texts):,} passages, and at most {MAX_PASSAGES:,} get vectors")
        async with self._lock:
            vector = await self._embed_query(query)
            await self._load()
            index, digests = self._index, await self._digests_of(texts)
            missing = [texts[at] for at in index.missing(digests, len(vector))]
            for at in range(0, len(missing), BATCH * BATCHES_STORED):
                await self._embed(index, missing[at : at + BATCH * BATCHES_STORED])
            if index.missing(digests, len(vector)):  # the server has changed its model in between
                raise _unusable()
            return await RANKING.run(index.nearest, digests, vector, most)

    async def _digests_of(self, texts: Sequence[str]) -> list[bytes]:
        """Return the digests of the texts. Those of the last search are kept: most searches have the same texts."""
        if self._texts != texts:
            self._digests = await RANKING.run(lambda: [digest_of(text) for text in texts])
            self._texts = texts
        return self._digests

    async def _embed_query(self, query: str) -> Sequence[float]:
        vectors = await self._embedder.embed([query], is_query=True)
        try:
            pack([query], vectors)
        except ValueError as error:
            raise _unusable() from error
        return vectors[0]

    async def _embed(self, index: VectorIndex, texts: Sequence[str]) -> None:
        done: list[str] = []
        vectors: list[Sequence[float]] = []
        try:
            for at in range(0, len(texts), BATCH):
                batch = texts[at : at + BATCH]
                vectors += await self._embedder.embed(batch)
                done += batch
        finally:
            if done:
                await self._keep(index, done, vectors)

    async def _keep(self, index: VectorIndex, texts: Sequence[str], vectors: Sequence[Sequence[float]]) -> None:
        try:
            data = await RANKING.run(pack, texts, vectors)
            index.add(data)
        except ValueError as error:
            raise _unusable() from error
        if self._history is None:
            return
        try:
            await self._history.vectors.add(self._owner + data)
            if not await self._history.is_stored():  # it was deleted meanwhile, also with its text
                await self._history.vectors.delete()
        except HistoryError as error:  # the search itself needs no store
            log.warning("the vectors of the chat %s could not be stored: %s", self._history.id, error)

    async def _load(self) -> None:
        """Load the vectors of this embedder that are stored, also by other processes."""
        owner = sha256((await self._embedder.identity()).encode()).digest()[:16]
        is_new = owner != self._owner
        if is_new:
            self._index = VectorIndex()
            self._owner = owner
        try:
            stored = await self._history.vectors.load(again=is_new) if self._history is not None else None
        except HistoryError as error:
            log.warning("the vectors of a chat could not be loaded: %s", error)
            return
        for data in stored or ():
            if data.startswith(owner):
                try:
                    self._index.add(data[len(owner) :])
                except ValueError:  # they are made again
                    log.warning("stored vectors of a chat are damaged")


def _unusable() -> ProviderError:
    return ProviderError("The server of the embeddings sent vectors that cannot be used.", kind="malformed")
