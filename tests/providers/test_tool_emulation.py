"""Tool calling by schema: the text is exact however it is cut, each call comes once, and real models can do it."""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field
from pydantic_ai import Tool
from pydantic_ai.direct import model_request, model_request_stream
from pydantic_ai.messages import (
    BinaryContent,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    PartDeltaEvent,
    PartStartEvent,
    SystemPromptPart,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.models.function import AgentInfo, DeltaThinkingCalls, DeltaThinkingPart, FunctionModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.settings import ModelSettings, ToolOrOutput

from agent import Agent, Endpoint, connect
from agent.models.weights import SMOLLM2, Weights, fetch
from agent.providers.tool_emulation import (
    ToolChoice,
    ToolChoiceDecoder,
    ToolEmulationModel,
    choice_schema,
    instruction,
    rewrite_history,
)
from agent.tools.builtin import calculate, convert_units, current_time
from tests.support.models import SMALL

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
texts = st.text() | st.text(alphabet='\\"/bnru\n\t {}😀é\u2028\x00d83', max_size=40)


@st.composite
def chunked(draw: st.DrawFn, raw: str) -> list[str]:
    cuts = sorted(draw(st.sets(st.integers(0, len(raw)), max_size=20))) if not draw(st.booleans()) else range(len(raw))
    return [raw[start:end] for start, end in pairwise([0, *cuts, len(raw)])]


def read(chunks: list[str], reply: str = "reply") -> tuple[str, ToolChoice]:
    decoder = ToolChoiceDecoder(reply)
    text = "".join([decoder.feed(chunk) for chunk in chunks])
    choice = decoder.finish()
    return text + choice.text, choice


# --- the decoder ----------------------------------------------------------------------------------------------------


@given(st.data(), texts, st.booleans(), st.sampled_from([None, 2, "\t"]))
def test_reply_deltas_equal_its_text(data: st.DataObject, text: str, ascii: bool, indent: Any) -> None:
    raw = json.dumps({"name": "reply", "text": text}, ensure_ascii=ascii, indent=indent)
    assert read(data.draw(chunked(raw))) == (text, ToolChoice())


@given(st.data(), texts, st.booleans())
def test_cut_reply_is_an_incomplete_prefix(data: st.DataObject, text: str, ascii: bool) -> None:
    raw = json.dumps({"name": "reply", "text": text}, ensure_ascii=ascii)
    cut = raw[: data.draw(st.integers(0, len(raw) - 1))]
    got, choice = read(data.draw(chunked(cut)))
    assert text.startswith(got)
    assert choice == ToolChoice(whole=False)


@given(st.data(), st.text(), st.dictionaries(st.text(), json_values, max_size=4), st.booleans())
def test_tool_call_comes_once_and_whole(data: st.DataObject, name: str, arguments: dict[str, Any], a: bool) -> None:
    if name == "reply":
        return
    raw = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=a)
    assert read(data.draw(chunked(raw))) == ("", ToolChoice(call=(name, arguments)))


@given(st.data(), st.text(), st.dictionaries(st.text(), json_values, max_size=4))
def test_cut_tool_call_yields_nothing(data: st.DataObject, name: str, arguments: dict[str, Any]) -> None:
    raw = json.dumps({"name": name, "arguments": arguments})
    assert read([raw[: data.draw(st.integers(0, len(raw) - 1))]]) == ("", ToolChoice(whole=False))


@given(
    st.lists(st.text() | st.sampled_from(['{"name": "reply", "text": "', '{"name":"x","arguments":', "\\ud83d", "}"]))
)
def test_garbage_never_raises_and_can_be_encoded(chunks: list[str]) -> None:
    text, _ = read(chunks)
    text.encode()


@pytest.mark.parametrize(
    ("raw", "text", "choice"),
    [
        ('{"text": "hi", "name": "reply"}', "hi", ToolChoice("hi")),
        ('{"name": "reply", "text": "a\\xb\\ud83dz"}', "a\\xb\ufffdz", ToolChoice()),
        ('{"name": "reply", "text": "two\nlines"}', "two\nlines", ToolChoice()),
        ('{"name": "reply", "text": "say "hi" now"}', "say ", ToolChoice(whole=False)),
        ('{"name": "now"}', "", ToolChoice(call=("now", {}))),
        ('{"name": "x", "arguments": {"a": "\\ud83d"}} and more', "", ToolChoice(call=("x", {"a": "\ufffd"}))),
        ('{"name": "x", "arguments": {"a": NaN}}', "", ToolChoice(whole=False)),
        ("  Just words.", "  Just words.", ToolChoice()),
        ('{"fruits": ["fig"]}', '{"fruits": ["fig"]}', ToolChoice('{"fruits": ["fig"]}')),
        ("{so} it is", "{so} it is", ToolChoice("{so} it is")),
        ("[" * 9, "[" * 9, ToolChoice()),
        ('{"name": "x", "arguments": ' + "[" * 100_000, "", ToolChoice(whole=False)),
        ("", "", ToolChoice(whole=False)),
    ],
)
def test_output_without_grammar_is_understood(raw: str, text: str, choice: ToolChoice) -> None:
    assert read([raw]) == (text, choice)
    assert read(list(raw)) == (text, ToolChoice() if choice.text and raw.startswith("  ") else choice)


@pytest.mark.parametrize("unit", ["word ", "\\n", "\\ud83d\\ude00", '"'], ids=["plain", "escape", "pair", "call"])
def test_cost_is_linear(unit: str) -> None:
    def seconds(size: int) -> float:
        opening = '{"name": "x", "arguments": ' if unit == '"' else '{"name": "reply", "text": "'
        raw = opening + unit * (size // len(unit))
        best = 9.0
        for _ in range(3):
            decoder = ToolChoiceDecoder()
            start = time.process_time()  # CPU time, because other processes run on this machine
            for at in range(0, len(raw), 3):
                decoder.feed(raw[at : at + 3])
            decoder.finish()
            best = min(best, time.process_time() - start)
        return best

    assert seconds(120_000) < 24 * seconds(15_000)  # 8 times the text; quadratic cost would take 64 times as long


# --- the model ------------------------------------------------------------------------------------------------------


@dataclass
class Seen:
    messages: list[ModelMessage]
    info: AgentInfo


def scripted(*chunks: str | DeltaThinkingCalls) -> tuple[ToolEmulationModel, list[Seen]]:
    seen: list[Seen] = []

    async def stream(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str | DeltaThinkingCalls]:
        seen.append(Seen(messages, info))
        for chunk in chunks:
            await asyncio.sleep(0)
            yield chunk

    return ToolEmulationModel(FunctionModel(stream_function=stream)), seen


TOOLS = [Tool(tool).tool_def for tool in (calculate, current_time, convert_units)]
PARAMETERS = ModelRequestParameters(function_tools=TOOLS)
HELLO: list[ModelMessage] = [ModelRequest([UserPromptPart("Hello")])]
AFTER_A_CALL: list[ModelMessage] = [
    ModelRequest([SystemPromptPart("Be brief."), UserPromptPart("What is 48 * 37?")]),
    ModelResponse([ThinkingPart("hm"), ToolCallPart("calculate", {"expression": "48 * 37"}, "1")]),
    ModelRequest([ToolReturnPart("calculate", "1776", "1"), UserPromptPart("Quick!")]),
]


async def whole(model: Model, messages: list[ModelMessage], settings: ModelSettings | None = None) -> ModelResponse:
    return await model_request(model, messages, model_settings=settings, model_request_parameters=PARAMETERS)


async def test_reply_streams_as_text() -> None:
    model, _ = scripted(
        {0: DeltaThinkingPart(content="hm")}, '{"name": "rep', 'ly", "text": "a\\u00', "e4b", ' c"', "}"
    )
    deltas: list[str] = []
    async with model_request_stream(model, HELLO, model_request_parameters=PARAMETERS) as stream:
        async for event in stream:
            match event:
                case PartStartEvent(part=TextPart(content=content)):
                    deltas.append(content)
                case PartDeltaEvent(delta=TextPartDelta(content_delta=content)):
                    deltas.append(content)
                case _:
                    pass
    assert deltas == ["a", "äb", " c"]
    response = stream.get()
    assert [part.content for part in response.parts if isinstance(part, TextPart | ThinkingPart)] == ["hm", "aäb c"]
    assert response.state == "complete"
    assert response.usage.output_tokens > 0


async def test_tool_choice_is_one_call_with_fresh_id() -> None:
    model, _ = scripted('{"name": "calculate", "argum', 'ents": {"expression": "1+1"}}')
    first, second = await whole(model, HELLO), await whole(model, HELLO)
    for response in (first, second):
        (call,) = response.parts
        assert isinstance(call, ToolCallPart)
        assert (call.tool_name, call.args) == ("calculate", {"expression": "1+1"})
        assert (response.finish_reason, response.state) == ("tool_call", "complete")
    assert first.parts[0].tool_call_id != second.parts[0].tool_call_id  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("raw", "text"), [('{"name": "reply", "text": "Hel', "Hel"), ('{"name": "calculate", "argu', "")]
)
async def test_cut_json_is_incomplete_without_exception(raw: str, text: str) -> None:
    response = await whole(scripted(raw)[0], HELLO)
    assert "".join(part.content for part in response.parts if isinstance(part, TextPart)) == text
    assert not any(isinstance(part, ToolCallPart) for part in response.parts)
    assert (response.finish_reason, response.state) == ("error", "incomplete")


async def test_stopped_stream_gives_no_call() -> None:
    model, _ = scripted('{"name": "calculate", "arguments": {"expression": "1"}}', " ", " ")
    async with model_request_stream(model, HELLO, model_request_parameters=PARAMETERS) as stream:
        await stream.cancel()
        async for _ in stream:
            pass
    assert stream.get().parts == []
    assert stream.get().state == "interrupted"


async def test_tools_become_schema_and_system_message() -> None:
    model, seen = scripted('{"name": "reply", "text": "ok"}')
    before = [repr(message) for message in AFTER_A_CALL]
    await whole(model, AFTER_A_CALL, ModelSettings(temperature=0.5, extra_body={"repeat_penalty": 1.1}))
    settings = seen[0].info.model_settings
    assert settings is not None
    body = settings.get("extra_body")
    assert isinstance(body, dict)
    assert body["repeat_penalty"] == 1.1
    assert settings.get("temperature") == 0.5
    assert body["response_format"]["json_schema"]["schema"] == choice_schema(TOOLS, "reply")
    assert seen[0].info.function_tools == []
    request, response, result = seen[0].messages
    assert [type(part) for part in request.parts] == [SystemPromptPart, UserPromptPart]
    assert request.parts[0].content == f"Be brief.\n\n{instruction(TOOLS, 'reply')}"  # type: ignore[union-attr]
    assert [part.content for part in response.parts] == [  # type: ignore[union-attr]
        '{"name": "calculate", "arguments": {"expression": "48 * 37"}}'
    ]
    (said,) = result.parts
    assert isinstance(said, UserPromptPart)
    assert "1776" in str(said.content)
    assert "Quick!" in str(said.content)
    assert [repr(message) for message in AFTER_A_CALL] == before


async def test_request_body_has_schema_but_no_tools() -> None:
    """The body has the schema in llama.cpp's field, no tools and no tool role."""
    bodies: list[dict[str, Any]] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        bodies.append(json.loads(request.content))
        chunk = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
        delta = {"index": 0, "delta": {"content": '{"name": "reply", "text": "ok"}'}, "finish_reason": "stop"}
        return httpx2.Response(
            200,
            headers={"content-type": "text/event-stream"},
            content=f"data: {json.dumps({**chunk, 'choices': [delta]})}\n\ndata: [DONE]\n\n",
        )

    async with httpx2.AsyncClient(transport=httpx2.MockTransport(answer)) as client:
        provider = OpenAIProvider(base_url="http://server/v1", api_key="none", http_client=client)
        model = ToolEmulationModel(OpenAIChatModel("m", provider=provider))
        settings = ModelSettings(tool_choice="auto", parallel_tool_calls=True, extra_body={"repeat_penalty": 1.1})
        response = await whole(model, AFTER_A_CALL, settings)
    assert (response.finish_reason, response.state, response.model_name) == ("stop", "complete", "m")
    (body,) = bodies
    assert body["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "choice", "schema": choice_schema(TOOLS, "reply")},
    }
    assert body["repeat_penalty"] == 1.1
    assert not {"tools", "tool_choice", "parallel_tool_calls"} & body.keys()
    assert [message["role"] for message in body["messages"]] == ["system", "user", "assistant", "user"]
    assert all(message.keys() == {"role", "content"} for message in body["messages"])


async def test_request_without_tools_is_unchanged() -> None:
    model, seen = scripted('{"name": "reply", "text": "raw"}')
    history: list[ModelMessage] = [*HELLO, ModelResponse([ThinkingPart("hm"), TextPart("Hi")]), *HELLO, *HELLO]
    response = await model_request(model, history, model_settings=ModelSettings(temperature=0.1))
    assert [part.content for part in response.parts if isinstance(part, TextPart)] == [
        '{"name": "reply", "text": "raw"}'
    ]
    assert repr(seen[0].messages) == repr(history)
    assert seen[0].info.model_settings == {"temperature": 0.1}


async def test_earlier_calls_become_text_without_tools() -> None:
    model, seen = scripted("Fine.")
    await model_request(model, AFTER_A_CALL)
    parts = [part for message in seen[0].messages for part in message.parts]
    assert [type(part) for part in parts] == [SystemPromptPart, UserPromptPart, TextPart, UserPromptPart]
    assert parts[0].content == "Be brief."  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("auto", ["reply", "calculate", "current_time", "convert_units"]),
        ("required", ["calculate", "current_time", "convert_units"]),
        (["calculate"], ["calculate"]),
        (ToolOrOutput(["calculate"]), ["reply", "calculate"]),
        ("none", None),
    ],
    ids=str,
)
async def test_tool_choice_is_honoured(choice: Any, names: list[str] | None) -> None:
    model, seen = scripted("Words.")
    await whole(model, HELLO, ModelSettings(tool_choice=choice))
    settings = seen[0].info.model_settings or {}
    assert "tool_choice" not in settings
    body: Any = settings.get("extra_body")
    offered = body and [
        option["properties"]["name"]["const"] for option in body["response_format"]["json_schema"]["schema"]["anyOf"]
    ]
    assert offered == names


async def test_tool_named_reply_is_not_the_reply() -> None:
    def reply(text: str) -> str:
        """Send a letter."""
        return text

    model, _ = scripted('{"name": "reply", "arguments": {"text": "Dear"}}')
    parameters = ModelRequestParameters(function_tools=[Tool(reply).tool_def])
    response = await model_request(model, HELLO, model_request_parameters=parameters)
    assert isinstance(response.parts[0], ToolCallPart)


def test_rewritten_history_alternates() -> None:
    picture = BinaryContent(b"x", media_type="image/png")
    messages: list[ModelMessage] = [
        ModelRequest([UserPromptPart("One"), UserPromptPart(["Two", picture])]),
        ModelResponse([TextPart("Both."), ToolCallPart("a", '{"x": 1}', "1"), ToolCallPart("b", {}, "2")]),
        ModelRequest([ToolReturnPart("a", {"y": "ü"}, "1"), ToolReturnPart("b", "no", "2", outcome="failed")]),
        ModelRequest([SystemPromptPart("Late."), UserPromptPart("Go on")]),
        ModelResponse([ThinkingPart("...")]),
        ModelRequest([UserPromptPart("Well?")]),
        ModelResponse([TextPart("x")]),
        ModelResponse([TextPart("y")]),
    ]
    first, answer, results, last = rewrite_history(messages, reply="reply", system="SYSTEM")
    assert [part.content for part in first.parts] == ["Late.\n\nSYSTEM", ["One", "Two", picture]]  # type: ignore[union-attr]
    assert answer.parts[0].content.split("\n") == [  # type: ignore[union-attr]
        '{"name": "reply", "text": "Both."}',
        '{"name": "a", "arguments": {"x": 1}}',
        '{"name": "b", "arguments": {}}',
    ]
    (said,) = results.parts
    content = str(said.content)  # type: ignore[union-attr]
    assert content.index("ü") < content.index("failed") < content.index("Go on") < content.index("Well?")
    assert [part.content for part in last.parts] == ['{"name": "reply", "text": "x"}\n{"name": "reply", "text": "y"}']  # type: ignore[union-attr]


# --- a real model -----------------------------------------------------------------------------------------------------

ROOT = Path(__file__).parents[2]
SERVE = """
import json, os, sys
os.environ.setdefault("GOMP_SPINCOUNT", "10000")
import xllamacpp
p = xllamacpp.CommonParams()
p.model.path, p.model_alias, p.hostnames, p.port = sys.argv[1], {"local"}, ["127.0.0.1"], 0
p.n_parallel, p.n_ctx, p.ui, p.verbosity, p.cache_ram_mib = 1, 4096, False, 1, 64
p.cpuparams.n_threads, p.cpuparams_batch.n_threads = max(1, (os.cpu_count() or 2) - 1), os.cpu_count() or 2
server = xllamacpp.Server(p)
print(json.dumps({"url": server.listening_address + "/v1"}), flush=True)
sys.stdin.buffer.read()
os._exit(0)
"""


def gguf(weights: Weights) -> Path:
    """Return the file from the repository's cache. Fetch it if necessary, and never skip silently."""
    return asyncio.run(fetch(weights, ROOT / ".cache", report=lambda _have, _total: None))


def serve(weights: Path) -> Iterator[str]:
    child = subprocess.Popen(
        [sys.executable, "-c", SERVE, str(weights)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout
        yield json.loads(child.stdout.readline())["url"]
    finally:
        assert child.stdin
        child.stdin.close()
        child.wait(60)
        if child.stdout:
            child.stdout.close()


@pytest.fixture(scope="module")
def smollm_url() -> Iterator[str]:
    yield from serve(gguf(SMOLLM2))


@pytest.fixture
async def smollm(smollm_url: str) -> AsyncIterator[ToolEmulationModel]:
    async with served(smollm_url) as model:
        yield model


@asynccontextmanager
async def served(url: str) -> AsyncIterator[ToolEmulationModel]:
    """Yield a model with a new client for each test, because a client belongs to its event loop."""
    async with httpx2.AsyncClient(trust_env=False) as client:
        provider = OpenAIProvider(base_url=url, api_key="none", http_client=client)
        yield ToolEmulationModel(OpenAIChatModel("local", provider=provider))


def forecast(city: str) -> str:
    """Get the weather in a city.

    Args:
        city: The city.
    """
    return f"17 °C, light rain in {city}"


class Leaf(BaseModel):
    name: str
    size: int | None = None


class Tree(BaseModel):
    kind: str
    leaves: list[Leaf] = []
    children: list["Tree"] = []


def plant(tree: Tree, depth: float = 0.5, tags: dict[str, int] | None = None) -> str:
    """Plant a tree."""
    return f"{tree}{depth}{tags}"


GREEDY = ModelSettings(temperature=0.0, max_tokens=80)


@pytest.mark.weights
async def test_small_model_server_takes_schema_and_history(smollm: ToolEmulationModel) -> None:
    """llama.cpp accepts recursive schemas and the rewritten history, and makes the model follow the schema."""
    tools = [*TOOLS, Tool(plant).tool_def]
    for messages in (HELLO, AFTER_A_CALL):
        for choice in ("auto", "required", ["plant"]):
            response = await model_request(
                smollm,
                messages,
                model_settings=ModelSettings(**GREEDY, tool_choice=choice),
                model_request_parameters=ModelRequestParameters(function_tools=tools),
            )
            assert response.usage.output_tokens > 0
            assert response.finish_reason in ("stop", "length", "tool_call")
            if response.state == "complete" and choice != "auto":
                (call,) = response.parts
                assert isinstance(call, ToolCallPart)
                assert call.tool_name in [tool.name for tool in tools]
    plain = await model_request(smollm, AFTER_A_CALL, model_settings=GREEDY)
    assert plain.parts


class Town(BaseModel):
    kind: Literal["city", "village"]
    roads: int = Field(ge=0, le=9)


@pytest.mark.weights
async def test_small_model_answers_with_a_type(smollm_url: str) -> None:
    async with Agent(connect(replace(SMALL, name="local"), Endpoint(smollm_url))) as agent:
        for kind, value in ((Town, Town), (bool, bool)):
            run = agent.run("Is Paris a city or a village?", output=kind, temperature=0)
            assert isinstance((await run).checked().output, value)
            assert len(run.context.messages) == 2
