"""Every dialect against llmock, an independent model server that breaks in many ways and grades its client.

Its package brings the fixture `llmock`: a real server on loopback that is reset for each test.
"""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import pytest
from llmock.pytest_plugin import LLMock
from llmock.scenarios import Reply
from pydantic_ai.messages import ModelResponse

from agent import Agent, Endpoint, Limits, ProviderError, connect
from agent.models.catalog import load_catalog

pytestmark = pytest.mark.slow

KEY = "unit0123456789abcdef"
TEXT = "One word after another, until there are twenty of them: it is not much, but more than can be lost."
# llmock has only Chat Completions under /xai/v1. We use xAI by Responses, which is the same under /v1.
DIALECTS = {
    "chat": ("huggingface:Qwen/Qwen3-8B", "openai"),
    "responses": ("openai:gpt-6-luna", "openai"),
    "xai": ("xai:grok-4.6", "openai"),
    "messages": ("anthropic:claude-sonnet-5-5", "anthropic"),
    "generate": ("google:gemini-3.8-flash", "gemini"),
}

WORDS_OF_SIX_CHUNKS = {"chat": 5, "responses": 2, "messages": 3, "generate": 6}


@dataclass
class Client:
    """An agent, and the errors that its connection explained."""

    agent: Agent
    failures: list[ProviderError]

    def patient(self, retries: int = 2) -> Agent:
        """Return the same agent with retries."""
        return Agent(self.agent.connection, tools=[weather], limits=Limits(retries=retries))


def weather(city: str) -> str:
    """The weather in a city."""
    return f"Rain in {city}."


@pytest.fixture(params=DIALECTS)
async def client(request: pytest.FixtureRequest, llmock: LLMock) -> AsyncIterator[Client]:
    model, provider = DIALECTS[request.param]
    connection = connect(load_catalog().find(model), Endpoint(llmock.base_url(provider), KEY))
    explain, failures = connection.explain, list[ProviderError]()

    def listen(error: Exception) -> ProviderError:
        failures.append(explain(error))
        return failures[-1]

    connection.explain = listen  # type: ignore[method-assign]
    async with Agent(connection, limits=Limits(retries=0)) as agent:
        yield Client(agent, failures)


def grade(llmock: LLMock) -> list[str]:
    """Return the codes of llmock's complaints about its client."""
    return [finding.code for finding in llmock.verdict().findings]


async def test_answer_is_whole_with_token_counts(client: Client, llmock: LLMock) -> None:
    llmock.reply(TEXT)
    result = await client.agent.ask("Say much.")
    assert (result.finish_reason, result.text) == ("stop", TEXT)
    assert result.usage["output_tokens"] == len(TEXT) // 4
    assert result.usage["input_tokens"] > 0
    assert llmock.last_request.stream
    llmock.assert_resilient(strict=True)


async def test_length_limit_is_reported(client: Client, llmock: LLMock) -> None:
    llmock.add(Reply(text=TEXT, finish_reason="length"))
    result = await client.agent.ask("Say much.")
    assert (result.finish_reason, result.text) == ("length", TEXT)


STREAMS: dict[str, tuple[Callable[[LLMock], LLMock], str, list[str]]] = {
    # Visible text must not be repeated, so there is no second try.
    "dropped": (lambda llmock: llmock.disconnect(after_chunks=6), "connection", ["gave_up"]),
    # The mock marks these two as faults without a retry, because it cannot see the reported error.
    "cut short": (lambda llmock: llmock.truncate(after_chunks=6), "interrupted", ["truncated_stream_accepted"]),
    "garbled": (lambda llmock: llmock.corrupt(after_chunks=6), "malformed", ["malformed_chunk_ignored"]),
}


@pytest.mark.parametrize(("spoil", "kind", "held"), STREAMS.values(), ids=STREAMS)
async def test_corrupt_stream_is_error_and_keeps_text(
    spoil: Callable[[LLMock], LLMock], kind: str, held: list[str], client: Client, llmock: LLMock
) -> None:
    spoil(llmock).reply(TEXT)
    run = client.patient().run("Say much.")
    result = await run
    assert result.finish_reason == "error"
    assert result.text
    assert len(result.text) < len(TEXT)
    assert TEXT.startswith(result.text)
    assert [one.type for one in run.responses][-1] == "error"
    assert "".join(str(one.content) for one in run.responses if one.type == "output_text") == result.text
    # The run detects a missing finish reason; for Chat, the library detects it.
    by_run = kind == "interrupted" and client.agent.connection.spec.dialect != "chat"
    assert [one.kind for one in client.failures] == ([] if by_run else [kind])
    last = result.context.messages[-1]
    assert isinstance(last, ModelResponse)
    assert last.state == "interrupted"
    assert grade(llmock) == held
    assert llmock.verdict().attempts == 1
    assert (await client.agent.ask("Go on.", context=result.context)).finish_reason == "stop"


async def test_stalled_stream_can_be_stopped(client: Client, llmock: LLMock) -> None:
    llmock.stall(after_chunks=6, seconds=30.0).reply(TEXT)
    run = client.agent.run("Say much.").start()
    words = WORDS_OF_SIX_CHUNKS[client.agent.connection.spec.dialect]
    so_far = " ".join(TEXT.split()[:words]) + " "
    while not run.done and "".join(str(one.content) for one in run.responses) != so_far:
        await run.wait_for_update(len(run.responses), timeout=10)
    run.cancel()
    result = await run
    assert (result.finish_reason, result.text) == ("cancelled", so_far)
    record = llmock.last_request  # appears when the server has finished the request
    assert (record.completed, record.chunks_sent) == (False, 6)
    assert record.duration < 5.0


REFUSALS: dict[str, tuple[Callable[[LLMock], LLMock], str, int]] = {
    "bad request": (lambda llmock: llmock.fail(400), "unsupported", 400),
    "wrong key": (lambda llmock: llmock.fail(401), "key", 401),
    "no access": (lambda llmock: llmock.fail(403), "access", 403),
    "unknown model": (lambda llmock: llmock.fail(404), "unknown_model", 404),
    "context": (lambda llmock: llmock.limits(context_window=20), "context", 400),
}
PASSING: dict[str, tuple[Callable[[LLMock], LLMock], str, int]] = {
    "rate limit": (lambda llmock: llmock.rate_limit(retry_after=7), "rate_limit", 429),
    "broken": (lambda llmock: llmock.fail(500), "server", 500),
    "unavailable": (lambda llmock: llmock.fail(503), "overloaded", 503),
    "overloaded": (lambda llmock: llmock.fail(529), "overloaded", 529),
}


@pytest.mark.parametrize(("refuse", "kind", "status"), REFUSALS.values(), ids=REFUSALS)
async def test_permanent_failure_is_not_retried(
    refuse: Callable[[LLMock], LLMock], kind: str, status: int, client: Client, llmock: LLMock
) -> None:
    refuse(llmock)
    result = await client.patient().ask("Say something that has more than twenty tokens in it. " * 3)
    assert result.finish_reason == "error"
    assert [(one.kind, one.status) for one in client.failures] == [(kind, status)]
    assert llmock.verdict().attempts == 1
    llmock.assert_resilient(strict=True)


@pytest.mark.parametrize(("refuse", "kind", "status"), PASSING.values(), ids=PASSING)
async def test_transient_failure_is_named(
    refuse: Callable[[LLMock], LLMock], kind: str, status: int, client: Client, llmock: LLMock
) -> None:
    refuse(llmock)
    result = await client.agent.ask("Say something.")
    assert result.finish_reason == "error"
    assert [(one.kind, one.status) for one in client.failures] == [(kind, status)]
    asked = llmock.last_request.retry_after
    assert client.failures[0].retry_after == (asked and pytest.approx(asked, abs=1.0))
    assert grade(llmock) == ["gave_up"]  # as configured


async def test_minute_quota_is_rate_limit_with_time(client: Client, llmock: LLMock) -> None:
    llmock.limits(rpm=1)
    assert (await client.agent.ask("Say something.")).finish_reason == "stop"
    assert (await client.agent.ask("Say more.")).finish_reason == "error"
    (failure,) = client.failures
    assert (failure.kind, failure.status) == ("rate_limit", 429)
    assert failure.retry_after is not None
    assert 50 < failure.retry_after <= 60


AGAIN: dict[str, Callable[[LLMock], LLMock]] = {
    "asked to wait": lambda llmock: llmock.rate_limit(retry_after=1),
    "broken": lambda llmock: llmock.fail(500),
    "dropped before a word": lambda llmock: llmock.disconnect(after_chunks=0),
}


@pytest.mark.parametrize("refuse", AGAIN.values(), ids=AGAIN)
async def test_transient_failure_is_retried(refuse: Callable[[LLMock], LLMock], client: Client, llmock: LLMock) -> None:
    refuse(llmock).reply(TEXT, times=2)
    result = await client.patient().ask("Say much.")
    assert (result.finish_reason, result.text) == ("stop", TEXT)
    assert len(client.failures) == 1
    assert llmock.verdict().attempts == 2
    assert len(llmock.verdict().calls) == 1  # the second request is the first, byte for byte
    llmock.assert_resilient(strict=True)


async def test_tool_loop_runs_to_its_end(client: Client, llmock: LLMock) -> None:
    llmock.call_tool("weather", {"city": "Šibenik"})
    run = client.patient(0).run("What is the weather?")
    result = await run
    call, answer = (one.content for one in run.responses if one.type.startswith("tool_call"))
    assert (call["name"], call["arguments"]) == ("weather", {"city": "Šibenik"})  # type: ignore[index]
    assert (answer["id"], answer["content"]) == (call["id"], "Rain in Šibenik.")  # type: ignore[index]
    assert result.finish_reason == "stop"
    assert result.text
    assert len(llmock.requests) == 2
    llmock.assert_resilient(strict=True)


@pytest.mark.parametrize("fault", ["malformed_arguments", "unknown_tool"])
async def test_broken_call_gets_error_and_loop_continues(fault: str, client: Client, llmock: LLMock) -> None:
    llmock.break_tool_call(fault)
    run = client.patient(0).run("What is the weather?")
    result = await run
    (answer,) = (one.content for one in run.responses if one.type == "tool_call_result")
    assert answer["is_error"]  # type: ignore[index]
    assert result.finish_reason == "stop"
    assert result.text
    llmock.assert_resilient(strict=True)
