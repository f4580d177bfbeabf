"""Finds the passages of a chat that are nearest to a query by their vectors. Embeds each passage once."""

import asyncio
import logging
from collections.abc import Sequence
from hashlib import sha256

from agent.errors import HistoryError, InputError, ProviderError
from agent.files.vectors import VectorIndex, digest_of, pack
from agent.providers.connection import Embedder
from agent.runtime.chat_history import ChatHistory
from agent.system.threads import RANKING

log = logging.getLogger(__name__)

MAX_PASSAGES = 20_000
"""The most passages of a chat that are embedded. Their vectors of 1,536 numbers take 120 MB of memory."""
BATCH = 64
"""Texts in one request. llama.cpp and vLLM embed about as many at once, and hosted providers take them quickly."""
BATCHES_STORED = 16
"""Requests whose vectors are stored together: the most that is lost if the program ends or the embedder fails."""


class ChatVectors:
    """The vectors of the passages of one chat. With a `history`, they are stored with the chat, and deleted with it.

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
