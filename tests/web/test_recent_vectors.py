"""The vectors of long documents that the page keeps: bounded in bytes, and forgotten when a chat is not used."""

from collections.abc import Sequence

from agent.providers.connection import Embedder
from agent.web.chat.recent_histories import RecentVectors
from tests.support.embeddings import hashed_vectors
from tests.support.waiting import until

TEXTS = [f"passage {number}" for number in range(10)]


class CountingEmbedder(Embedder):
    """An embedder that counts the texts of documents that it was given."""

    def __init__(self) -> None:
        self.count = 0

    async def name(self) -> str:
        return "counting"

    async def identity(self) -> str:
        return "counting"

    async def embed(self, texts: Sequence[str], *, is_query: bool = False) -> Sequence[Sequence[float]]:
        self.count += 0 if is_query else len(texts)
        return hashed_vectors(texts)


async def search(kept: RecentVectors, conversation: str) -> None:
    vectors = kept.of(conversation)
    assert vectors is not None
    await vectors.nearest(TEXTS, "passage 3", 2)


async def test_page_without_embedder_keeps_nothing() -> None:
    kept = RecentVectors(None)
    assert kept.of("chat") is None
    assert not kept.conversations


async def test_next_search_of_a_chat_embeds_its_query_alone() -> None:
    embedder = CountingEmbedder()
    kept = RecentVectors(embedder)
    for _ in range(3):
        await search(kept, "chat")
    assert embedder.count == len(TEXTS)


async def test_chats_used_longest_ago_make_room() -> None:
    embedder = CountingEmbedder()
    kept = RecentVectors(embedder)
    await search(kept, "one")
    size = kept.of("one").size  # type: ignore[union-attr]
    kept = RecentVectors(embedder, max_bytes=2 * size)
    for name in ("one", "two", "one", "three"):
        await search(kept, name)
    assert kept.of("four") is not None  # its vectors are not made yet, so those of the others are counted
    assert kept.conversations == ["one", "three", "four"]
    embedder.count = 0
    await search(kept, "one")
    assert embedder.count == 0
    await search(kept, "two")
    assert embedder.count == len(TEXTS)


async def test_one_chat_can_have_more_than_all_may() -> None:
    kept = RecentVectors(CountingEmbedder(), max_bytes=1)
    await search(kept, "large")
    await search(kept, "large")
    assert kept.conversations == ["large"]


async def test_vectors_of_unused_chats_are_forgotten() -> None:
    kept = RecentVectors(CountingEmbedder(), kept_seconds=0.05)
    await search(kept, "one")
    await search(kept, "two")
    await until(lambda: not kept.conversations)
