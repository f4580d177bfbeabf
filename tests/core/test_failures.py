"""A caller learns that a run failed from `failed`, `why` and `checked`. A missing key fails before any request."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from pydantic_ai.messages import ModelMessage, ModelRequest, TextPart, ToolCallPart, ToolReturnPart

from agent import Agent, AgentError, Chat, Context, Endpoint, Limits, MissingKey, ProviderError, connect, tool
from agent.errors import Conflict, StoreUnavailable
from agent.history import Note
from agent.models.catalog import load_catalog
from agent.providers.chat_completions import ChatCompletionsConnection as Completions
from agent.providers.openai_responses import OpenAIResponsesConnection as Responses
from tests.support.fakes import Call, FakeConnection, Step, Words
from tests.support.journals import MemoryJournal
from tests.support.models import QWEN3
from tests.support.scripted_server import Running

NAMES = (
    *("OPENAI_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_API_KEY", "GEMINI_API_KEY", "GOOGLE_API_KEY"),
    *("XAI_API_KEY", "HF_TOKEN"),
)


@pytest.fixture(autouse=True)
def no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)


@contextmanager
def counted() -> Iterator[tuple[str, list[Any]]]:
    """Yield a listening server's address, and the connections it has accepted."""
    accepted: list[Any] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def accept() -> None:
            while True:
                try:
                    accepted.append(listening.accept())
                except OSError:
                    return

        threading.Thread(target=accept, daemon=True).start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/v1", accepted
        listening.shutdown(socket.SHUT_RDWR)
        for connection, _ in accepted:
            connection.close()


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        ("gpt-4o", "OpenAI needs a key. Set OPENAI_API_KEY in the environment"),
        ("google:gemini-3.8-flash", "Google needs a key. Set GEMINI_API_KEY or GOOGLE_API_KEY in the environment"),
        ("claude-haiku-5-5", "Anthropic needs a key. Set ANTHROPIC_API_KEY in the environment"),
    ],
)
async def test_missing_key_is_named(model: str, sentence: str) -> None:
    async with Agent(model) as agent:
        assert agent.connection.spec.label
        with pytest.raises(MissingKey, match=sentence):
            await agent.ask("hi")
        with pytest.raises(MissingKey, match=sentence):
            agent.run("hi", context=Context())


@pytest.mark.parametrize(("kind", "id_"), [(Responses, "openai:gpt-4o"), (Completions, "huggingface:any")])
@pytest.mark.slow
async def test_missing_key_opens_no_socket(kind: Any, id_: str) -> None:
    with counted() as (url, accepted):
        spec = load_catalog().find(id_)
        provider = replace(load_catalog().providers[spec.provider], base_url=url)
        agent = Agent(kind(spec, Endpoint(url), provider))
        with pytest.raises(MissingKey):
            await agent.ask("hi")
        chat = Chat(agent)
        with pytest.raises(MissingKey):
            list(chat.query("hi"))
        assert chat.messages == []
        await chat.aclose()
        assert accepted == []
        keyed = Agent(kind(spec, Endpoint(url, "sk-test"), provider), limits=Limits(seconds=1, retries=0))
        await keyed.ask("hi")
        assert accepted, "with a key, the server is called"
        await keyed.aclose()


async def test_own_server_needs_no_key(server: Running) -> None:
    async with Agent("Qwen/Qwen3-8B", provider="vllm", base_url=server.base_url) as agent:
        assert (await agent.ask("!text Hi.")).checked().text == "Hi."
    async with Agent("gpt-audio-1.5", base_url=server.base_url) as agent:
        agent.run("!text Hi.")


@tool
async def again() -> str:
    """Do it again."""
    return "Call it again."


async def test_checked_raises_the_failure(server: Running) -> None:
    async with Agent(
        connect(QWEN3, Endpoint(server.base_url)), limits=Limits(steps=1, retries=0), tools=[again]
    ) as agent:
        good = await agent.ask("!text Hi.")
        assert (good.failed, good.why, str(good)) == (False, "", "Hi.")
        assert good.checked() is good
        refused = await agent.ask("!status 401")
        assert refused.failed
        assert refused.why == "The server's key was rejected. Tell its owner."
        assert str(refused) == f"[error] {refused.why}"
        with pytest.raises(ProviderError) as raised:
            refused.checked()
        assert (raised.value.kind, raised.value.status, str(raised.value)) == ("key", 401, refused.why)
        limited = await agent.ask("!tool again {} !tool again {}")
        assert (limited.finish_reason, limited.failed) == ("limit", True)
        with pytest.raises(AgentError, match="Stopped after 1 steps"):
            limited.checked()
        unsaved = await agent.ask("!text Hi.", journal=MemoryJournal(Conflict("It was changed elsewhere.")))
        assert str(unsaved) == "Hi.\n[error] This answer could not be saved: It was changed elsewhere."
        with pytest.raises(Conflict):
            unsaved.checked()
        broken = await agent.ask("!text Hi.", journal=MemoryJournal(RuntimeError("injected")))
        with pytest.raises(AgentError, match="the store failed"):
            broken.checked()


async def test_nothing_is_stored_after_a_prompt_that_could_not_be() -> None:
    """An ending without its prompt would be all that a reader of the conversation sees."""

    tried = list[ModelMessage]()

    class Refusing:
        async def write(self, message: ModelMessage, note: Note) -> None:
            tried.append(message)
            raise StoreUnavailable("The store is away.")

    result = await Agent(FakeConnection([])).ask("Hello", journal=Refusing())
    assert (result.finish_reason, result.why) == ("error", "The store is away.")
    assert [type(one) for one in tried] == [ModelRequest]


@tool
def look() -> str:
    return "a cloud"


@pytest.mark.parametrize("refused", [1, 2])
async def test_what_could_not_be_stored_is_stored_at_the_end(refused: int) -> None:
    """Whatever message is refused once, the answer or the results, readers find at the end what they have seen."""
    stored = list[tuple[ModelMessage, Note]]()
    written = 0

    class RefusingOnce:
        async def write(self, message: ModelMessage, note: Note) -> None:
            nonlocal written
            written += 1
            if written == refused + 1:
                raise StoreUnavailable("The store is away.")
            stored.append((message, note))

    script = [Step([Words("output_text", ["Let me see."]), Call("look", "{}", "c1")], "tool_call")]
    result = await Agent(FakeConnection(script), tools=[look]).ask("Hello", journal=RefusingOnce())
    assert (result.finish_reason, result.why) == ("error", "The store is away.")
    _, *messages = stored
    parts = [part for message, _ in messages for part in message.parts]
    kinds = [TextPart] if refused == 1 else [TextPart, ToolCallPart, ToolReturnPart]
    assert [type(part) for part in parts] == kinds, "a call that was never made, or a text or result that is lost"
    assert [note.ended for _, note in messages][-1] == "error"


async def test_cancelled_run_has_not_failed(server: Running) -> None:
    async with Agent(connect(QWEN3, Endpoint(server.base_url))) as agent:
        run = agent.run("!stall-after 2")
        run.cancel()
        result = await run
    assert (result.finish_reason, result.failed, result.why) == ("cancelled", False, "")
    assert result.checked() is result
