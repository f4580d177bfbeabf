"""Spans by the GenAI conventions, read from the real SDK: off by default, and texts only on request."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from agent import Agent, ConfigError, Limits, RunResult, Telemetry, tool
from tests.support.scripted_server import Config, Running

pytestmark = pytest.mark.slow

MODEL = "Qwen/Qwen3-8B"
KEY = "sk-abcdefgh-87654321-zyxw"


@tool
async def greet(name: str) -> str:
    """Greet somebody."""
    return f"hello {name}"


@tool
async def break_down() -> str:
    """Fail."""
    raise LookupError("no such SECRET")


SERVER = Config()


@pytest.fixture
def spans() -> InMemorySpanExporter:
    return InMemorySpanExporter()


def telemetry(spans: InMemorySpanExporter, **more: Any) -> Telemetry:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    return Telemetry(provider=provider, **more)


async def ask(server: Running, prompt: str, watched: Telemetry | None, **more: Any) -> RunResult:
    agent = Agent(
        MODEL,
        provider="vllm",
        base_url=server.base_url,
        api_key=KEY,
        system_message="Be BRIEF.",
        tools=[greet, break_down],
        telemetry=watched,
        limits=more.pop("limits", None),
    )
    async with agent:
        return await agent.ask(prompt, temperature=0.5, **more)


def tree(spans: InMemorySpanExporter) -> list[tuple[str, str | None]]:
    """Return each span with its parent, by name, in order of their start."""
    found = sorted(spans.get_finished_spans(), key=lambda span: span.start_time or 0)
    names = {span.context.span_id: span.name for span in found if span.context}
    return [(span.name, names[span.parent.span_id] if span.parent else None) for span in found]


def named(spans: InMemorySpanExporter, name: str) -> ReadableSpan:
    return next(span for span in spans.get_finished_spans() if span.name == name)


async def test_run_span_contains_steps_and_tool_calls(server: Running, spans: InMemorySpanExporter) -> None:
    prompt = '!text Wait. !tools greet {"name": "Ann"} break_down {} !reasoning Hm. !text Done.'
    result = await ask(server, prompt, telemetry(spans, agent_name="helper"))
    run = "invoke_agent helper"
    assert sorted(tree(spans)[1:]) == sorted(
        [(f"chat {MODEL}", run), ("execute_tool greet", run), ("execute_tool break_down", run), (f"chat {MODEL}", run)]
    )
    assert tree(spans)[0] == (run, None)
    root = dict(named(spans, run).attributes or {})
    assert root.pop("switchboard.run.id") == result.note.run_id
    assert root == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": "helper",
        "gen_ai.provider.name": "vllm",
        "gen_ai.request.model": MODEL,
        "gen_ai.conversation.id": result.context.session_id,
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.aggregated_usage.input_tokens": result.usage["input_tokens"],
        "gen_ai.aggregated_usage.output_tokens": result.usage["output_tokens"],
    }
    steps = [span for span in spans.get_finished_spans() if span.name == f"chat {MODEL}"]
    assert [span.kind for span in steps] == [SpanKind.CLIENT] * 2
    first, last = (dict(span.attributes or {}) for span in steps)
    for step in (first, last):
        assert step["gen_ai.operation.name"] == "chat"
        assert step["gen_ai.request.model"] == step["gen_ai.response.model"] == MODEL
        assert step["gen_ai.request.stream"] is True
        assert step["gen_ai.request.temperature"] == 0.5
        assert step["server.address"] == "127.0.0.1"
        assert isinstance(step["server.port"], int)
        assert 0 < step["gen_ai.response.time_to_first_chunk"] < 60
        assert step["gen_ai.response.id"]
    assert (first["gen_ai.response.finish_reasons"], last["gen_ai.response.finish_reasons"]) == (
        ("tool_call",),
        ("stop",),
    )
    for name in ("input", "output"):
        assert sum(step[f"gen_ai.usage.{name}_tokens"] for step in (first, last)) == result.usage[f"{name}_tokens"]
    good, bad = named(spans, "execute_tool greet"), named(spans, "execute_tool break_down")
    attributes = dict(good.attributes or {})
    assert attributes.pop("gen_ai.tool.call.id")
    assert attributes == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "greet",
        "gen_ai.tool.type": "function",
        "switchboard.tool.outcome": "success",
    }
    assert good.status.status_code is StatusCode.UNSET
    assert bad.status.status_code is StatusCode.ERROR
    assert (bad.attributes or {})["error.type"] == "tool_error"


async def test_tool_spans_nest_inside_caller(server: Running, spans: InMemorySpanExporter) -> None:
    watched = telemetry(spans)
    assert watched.provider is not None
    tracer = watched.provider.get_tracer("mine")

    @tool
    async def inner() -> str:
        with tracer.start_as_current_span("inside"):
            return "yes"

    with tracer.start_as_current_span("outside"):
        agent = Agent(MODEL, provider="vllm", base_url=server.base_url, tools=[inner], telemetry=watched)
        async with agent:
            await agent.ask("!tools inner {} inner {} !text Done.")
    pairs = tree(spans)
    assert pairs.count(("inside", "execute_tool inner")) == 2
    assert ("invoke_agent", "outside") in pairs
    assert trace.get_current_span() is trace.INVALID_SPAN


ENDINGS = {
    "refused": ("!status 400 SECRET", "error", "unsupported"),
    "broken off": ("!text SECRET !reset 3", "error", "connection"),
    "a limit": ("!loop greet {}", "limit", "limit"),
}


@pytest.mark.parametrize(("prompt", "reason", "kind"), ENDINGS.values(), ids=ENDINGS)
async def test_failure_is_on_step_and_run(
    server: Running, spans: InMemorySpanExporter, prompt: str, reason: str, kind: str
) -> None:
    result = await ask(server, prompt, telemetry(spans), limits=Limits(steps=2, retries=0))
    assert result.finish_reason == reason
    root = named(spans, "invoke_agent")
    assert root.status.status_code is StatusCode.ERROR
    assert root.status.description is None
    step = spans.get_finished_spans()[-2] if reason == "error" else root
    types = {(span.attributes or {}).get("error.type") for span in (root, step)}
    assert len(types) == 1
    if reason == "limit":
        assert types == {kind}


async def test_retry_is_an_event_of_its_step(server: Running, spans: InMemorySpanExporter) -> None:
    await ask(server, "!fail 2 503 0 !text Done.", telemetry(spans))
    step = named(spans, f"chat {MODEL}")
    assert [event.name for event in step.events] == ["gen_ai.request.retry"] * 2
    assert {(event.attributes or {})["error.type"] for event in step.events} == {"overloaded"}
    assert step.status.status_code is StatusCode.UNSET


@pytest.mark.parametrize("prompt", ["!tokens 500 @20", "!stall-before", "!tool wait {}"])
async def test_cancelled_run_leaves_no_span_open(server: Running, spans: InMemorySpanExporter, prompt: str) -> None:
    begun = asyncio.Event()

    @tool
    async def wait() -> None:
        begun.set()
        await asyncio.get_running_loop().create_future()

    agent = Agent(MODEL, provider="vllm", base_url=server.base_url, tools=[wait], telemetry=telemetry(spans))
    async with agent:
        before = len(server.journal())
        run = agent.run(prompt).start()
        await asyncio.to_thread(server.wait_for, lambda journal: len(journal) > before)
        if "tool" in prompt:
            await begun.wait()
        run.cancel("user_request")
        await run
    root = named(spans, "invoke_agent")
    assert (root.attributes or {})["gen_ai.response.finish_reasons"] == ("cancelled",)
    assert root.status.status_code is StatusCode.UNSET
    expected = {("invoke_agent", None), (f"chat {MODEL}", "invoke_agent")}
    assert set(tree(spans)) == expected | ({("execute_tool wait", "invoke_agent")} if "tool" in prompt else set())
    if "tool" in prompt:
        assert (named(spans, "execute_tool wait").attributes or {})["switchboard.tool.outcome"] == "interrupted"


SAYS = f'!reasoning THOUGHT !text SPOKEN !tools greet {{"name": "NAME {KEY}"}} break_down {{}} !text ANSWER'


def everything(spans: Sequence[ReadableSpan]) -> str:
    return "\n".join(span.to_json() for span in spans)


async def test_spans_hold_no_content_by_default(server: Running, spans: InMemorySpanExporter) -> None:
    await ask(server, SAYS, telemetry(spans))
    said = everything(spans.get_finished_spans())
    for word in ("THOUGHT", "SPOKEN", "NAME", "ANSWER", "BRIEF", "SECRET", "hello", KEY):
        assert word not in said


async def test_spans_with_content_hold_no_keys(server: Running, spans: InMemorySpanExporter) -> None:
    await ask(server, SAYS, telemetry(spans, content=True))
    said = everything(spans.get_finished_spans())
    for word in ("THOUGHT", "SPOKEN", "NAME", "ANSWER", "BRIEF", "SECRET", "hello"):
        assert word in said
    assert KEY not in said
    arguments = (named(spans, "execute_tool greet").attributes or {})["gen_ai.tool.call.arguments"]
    assert json.loads(str(arguments)) == {"name": "NAME …"}
    step = named(spans, f"chat {MODEL}").attributes or {}
    assert [message["role"] for message in json.loads(str(step["gen_ai.input.messages"]))] == ["system", "user"]
    assert [message["role"] for message in json.loads(str(step["gen_ai.output.messages"]))] == ["assistant"]


async def test_no_span_without_telemetry(
    server: Running, spans: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("a tracer was asked for")

    monkeypatch.setattr("agent.telemetry.get_tracer", refuse)
    monkeypatch.setattr(TracerProvider, "get_tracer", refuse)
    monkeypatch.setattr(trace.ProxyTracerProvider, "get_tracer", refuse)
    monkeypatch.delenv("SWITCHBOARD_TELEMETRY", raising=False)
    result = await ask(server, SAYS, None)
    assert result.finish_reason == "stop"
    monkeypatch.setenv("SWITCHBOARD_TELEMETRY", "on")
    with pytest.raises(AssertionError, match="a tracer was asked for"):
        await ask(server, SAYS, None)


@pytest.mark.parametrize(
    ("value", "content"), [("on", False), ("1", False), ("Content", True), ("off", None), ("", None)]
)
def test_environment_enables_telemetry(value: str, content: bool | None) -> None:
    found = Telemetry.from_env({"SWITCHBOARD_TELEMETRY": value})
    assert (found.content if found else None) is content


def test_unknown_word_is_refused() -> None:
    with pytest.raises(ConfigError, match="SWITCHBOARD_TELEMETRY"):
        Telemetry.from_env({"SWITCHBOARD_TELEMETRY": "loud"})
