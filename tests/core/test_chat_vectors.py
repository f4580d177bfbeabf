"""`Chat.search` by vectors: kept with the chat in every store, fused with keywords, and left out if they fail."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from agent import Agent, Chat, ConfigError, Endpoint, InputError, ModelSpec, connect
from agent.files.kinds import Document
from agent.files.ranking import digest_of, fused, indexed
from agent.history import PROGRAM, PROGRAM_VECTORS
from agent.runtime import chat_history
from agent.runtime.loop_thread import SHARED_STORES, StoreAddress
from tests.support import stored_chats
from tests.support.embeddings import hashed_vectors
from tests.support.ports import free_port
from tests.support.scripted_server import Config, Running, running
from tests.support.stored_chats import ALL

url = stored_chats.url
SPEC = ModelSpec(id="vllm:small", name="small", label="Small", provider="vllm", context_tokens=32_768)
SERVER = Config(rate=0, models=("small",), embed=hashed_vectors)
NOTES = "The garden is shared.\n" + "x" * 690 + "\nA sublease is allowed.\n" + "y" * 690


def open_chat(server: Running, url: str | None, embeddings: str | None, id_: str = "lease") -> Chat:
    agent = Agent(connect(SPEC, Endpoint(server.base_url)))
    return Chat(agent, store=url, id=id_ if url else None, embeddings=embeddings)


def attach(chat: Chat, folder: Path) -> None:
    (folder / "notes.md").write_text(NOTES)
    assert chat.say(["!text Done.", folder / "notes.md"]).finish_reason == "stop"


@ALL
def test_vectors_are_kept_and_deleted_with_the_chat(server: Running, url: str, tmp_path: Path) -> None:
    with open_chat(server, url, server.base_url) as chat:
        attach(chat, tmp_path)
        before = len(server.server.embedded)
        found = chat.search("leasing")  # no word begins like this
        assert found.note == "Found by keywords, and by vectors of small."
        assert (found.hits[0].found_by, "sublease" in found.hits[0].text) == ("vectors", True)
        assert len(server.server.embedded) == before + 2, "the query, and all passages"
        assert chat.search("garden").hits[0].found_by == "both"
    with open_chat(server, url, server.base_url) as chat:
        before = len(server.server.embedded)
        assert chat.search("leasing") == found
        assert server.server.embedded[before:] == [["leasing"]], "the passages have their vectors"
        chat.clear()
    with open_chat(server, url, server.base_url) as chat:  # a new one, because only this looks at what is stored
        attach(chat, tmp_path)
        before = len(server.server.embedded)
        assert chat.search("leasing") == found
        assert len(server.server.embedded) == before + 2, "their vectors were deleted"
    with open_chat(server, url, "") as chat:
        assert chat.search("leasing").hits == ()
        chat.clear()


@ALL
def test_deleting_a_chat_in_its_store_deletes_its_vectors(server: Running, url: str, tmp_path: Path) -> None:
    with open_chat(server, url, server.base_url) as chat:
        attach(chat, tmp_path)
        assert chat.search("leasing").hits
        address = StoreAddress(url, Path.cwd())
        assert asyncio.run(SHARED_STORES.call(address, lambda store: store.list(PROGRAM_VECTORS)))
        asyncio.run(SHARED_STORES.call(address, lambda store: store.delete("lease", owner=PROGRAM)))
        assert not asyncio.run(SHARED_STORES.call(address, lambda store: store.list(PROGRAM_VECTORS)))


def test_passages_are_hashed_once(server: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[str] = []
    monkeypatch.setattr(chat_history, "digest_of", lambda text: hashed.append(text) or digest_of(text))
    with open_chat(server, None, server.base_url) as chat:
        attach(chat, tmp_path)
        assert chat.search("leasing").hits
        first = len(hashed)
        assert first == len(set(hashed))
        chat.search("garden")
        assert len(hashed) == first
        (tmp_path / "more.md").write_text("The boat was sold.")
        chat.say(["!text Done.", tmp_path / "more.md"])
        assert chat.search("boats").hits[0].file == "more.md"


def broken(texts: Sequence[str]) -> list[list[float]]:
    return [[float("nan")] for _ in texts]


def test_failing_embedder_leaves_keywords_and_says_so(server: Running, tmp_path: Path) -> None:
    with running(Config(models=("small",), embed=broken)) as bad, running(Config(api_key="k", embed=broken)) as locked:
        for base in (f"http://127.0.0.1:{free_port()}/v1", bad.base_url, locked.base_url):
            with open_chat(server, None, base) as chat:
                attach(chat, tmp_path)
                found = chat.search("garden")
                assert found.note.startswith("Found by keywords alone, because there are no vectors of the texts now: ")
                assert [hit.found_by for hit in found.hits] == ["keywords"]


@pytest.mark.parametrize("name", ["nothing", "nobody:model", "anthropic:model", "http://h/v1/embeddings"])
def test_wrong_embeddings_are_refused(server: Running, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError):
        open_chat(server, None, name)
    monkeypatch.setenv("EMBEDDINGS", name)
    with pytest.raises(ConfigError, match="EMBEDDINGS"):
        open_chat(server, None, None)


def test_fusion_prefers_what_both_orders_have() -> None:
    assert fused([1, 2, 3], [4, 2, 5])[0] == 2
    assert fused([3, 1, 2]) == [3, 1, 2]


QUERIES = {"租金": 0, "租": 0, "文件": 1, "家賃": 2, "임대료": 3, "\uff11\uff12": 4}


@pytest.mark.parametrize("query", QUERIES)
def test_keywords_find_scripts_without_spaces(query: str) -> None:
    pages = ("会议室的租金是八百欧元。", "PDF文件在这里", "東京の家賃は高い。", "임대료는 비싸다.", "Number 12")
    passages, keywords = indexed((Document("text/plain", "", pages),))
    assert [passages[at].page - 1 for at in keywords.ranked(query)] == [QUERIES[query]]
