"""Failed requests are retried if that can help: which failures, after what pause, and without a trace in the run."""

import asyncio
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse

from agent import Agent, Endpoint, Limits, ProviderError, Run, connect, tool
from agent.history import Note
from agent.history.memory import MemoryStore
from agent.messages.openai import to_openai
from agent.providers.retry import LONGEST_REQUESTED_SECONDS, final_error, next_wait
from tests.support.cancellation import by_loop, by_thread
from tests.support.dialect_server import Playing, Reply, playing
from tests.support.fakes import Act, Call, FakeConnection, Step, Words
from tests.support.message_rules import assert_continues
from tests.support.models import QWEN3
from tests.support.scripted_runs import LIMITS, QUICK, Played, play_script, steps
from tests.support.scripted_server import Running

OVERLOADED = ProviderError("OpenAI is overloaded. Try again in a moment.", kind="overloaded", status=503)


# --- which failures, and after what pause -----------------------------------------------------------------------------


TRANSIENT = [("connection", None), ("connection", 408), ("server", 409), ("rate_limit", 429), ("server", 500)]
TRANSIENT += [("overloaded", 503), ("overloaded", 529)]
FINAL = [("quota", 429), ("key", 401), ("key", None), ("access", 403), ("unknown_model", 404), ("context", 400)]
FINAL += [("unsupported", 400), ("refusal", 500), ("malformed", None), ("malformed", 500), ("interrupted", None)]
FINAL += [("server", None)]


@pytest.mark.parametrize(("kind", "status"), TRANSIENT + FINAL)
def test_only_transient_failures_are_retried(kind: Any, status: int | None) -> None:
    failure = ProviderError("It failed.", kind=kind, status=status)
    assert (next_wait(failure, tried=1, retries=3, now=0.0) is not None) is ((kind, status) in TRANSIENT)
    assert next_wait(failure, tried=1, retries=0, now=0.0) is None
    too_long = replace_pause(failure, LONGEST_REQUESTED_SECONDS + 1)
    assert next_wait(too_long, tried=1, retries=3, now=0.0) is None


def replace_pause(failure: ProviderError, seconds: float) -> ProviderError:
    return ProviderError(str(failure), kind=failure.kind, status=failure.status, retry_after=seconds)


@given(st.integers(1, 9), st.floats(0, 1), st.floats(0, 1e6))
def test_pause_is_random_below_a_doubling_bound(tried: int, drawn: float, now: float) -> None:
    pause = next_wait(OVERLOADED, tried=tried, retries=9, now=now, chance=lambda: drawn)
    assert pause is not None
    assert pause.seconds == pytest.approx(drawn * [0.5, 1, 2, 4, 8, 8, 8, 8, 8][tried - 1])
    assert pause.until == now + pause.seconds
    assert next_wait(OVERLOADED, tried=tried, retries=tried - 1, now=now) is None


@pytest.mark.parametrize(
    ("asked", "tried", "sentence"),
    [
        (12.0, 1, "Provider is busy; retrying in 12 s"),
        (0.2, 1, "Provider is busy; retrying in 1 s"),
        (0.0, 2, "Provider is busy; retrying in 0 s"),
        (LONGEST_REQUESTED_SECONDS, 3, "Provider is busy; retrying in 60 s"),
        (None, 1, "OpenAI is overloaded; retrying in 1 s (try 2 of 4)"),
        (None, 3, "OpenAI is overloaded; retrying in 2 s (try 4 of 4)"),
    ],
)
def test_pause_says_why(asked: float | None, tried: int, sentence: str) -> None:
    failure = ProviderError(str(OVERLOADED), kind="overloaded", status=503, retry_after=asked)
    pause = next_wait(failure, tried=tried, retries=3, now=100.0, chance=lambda: 1.0)
    assert pause is not None
    assert pause.sentence == sentence
    if asked is not None:
        assert (pause.seconds, pause.until) == (asked, 100.0 + asked)


@pytest.mark.parametrize(
    ("kind", "asked", "tried", "said"),
    [
        ("overloaded", None, 1, "It failed."),
        ("overloaded", None, 4, "It failed. Tried 4 times."),
        ("rate_limit", 299.3, 1, "It failed. Try again in 300 s."),
        ("rate_limit", 300, 2, "It failed. Try again in 300 s. Tried 2 times."),
        ("key", None, 2, "It failed."),
    ],
)
def test_failure_reports_the_retries(kind: Any, asked: float | None, tried: int, said: str) -> None:
    failure = ProviderError("It failed.", kind=kind, status=503, retry_after=asked)
    reported = final_error(failure, tried=tried)
    assert str(reported) == said
    assert (reported.kind, reported.status, reported.retry_after) == (kind, 503, asked)


# --- no trace ---------------------------------------------------------------------------------------------------------

QUIET = st.lists(
    st.builds(Words, st.sampled_from(["output_text", "reasoning"]), st.just(()))
    | st.builds(Call, st.just("fine"), st.just('{"x": 1'), st.just("half"))
)
"""Parts that can arrive before anything is visible: empty parts, or half a call."""
AT_ONCE = ProviderError("Too many at once.", kind="rate_limit", status=429, retry_after=0.0)


def outcome(done: Played) -> list[Any]:
    """Return all that a run leaves behind, except ids and times."""
    result = done.run.result
    assert result is not None
    assert result.note.timings is not None
    notes = [(entry.note.ended, entry.note.detail.partition(";")[0]) for entry in done.entries]
    usage = (result.note.timings.output_tokens, result.note.timings.generated, result.note.timings.estimated)
    stored = as_sent([entry.message for entry in done.entries])
    responses = in_any_order(done.run.responses, lambda response: response.type == "tool_call_result")
    return [responses, result.finish_reason, result.text, notes, usage, stored]


def as_sent(messages: Sequence[ModelMessage]) -> list[Any]:
    return in_any_order(to_openai(messages), lambda message: message["role"] == "tool")


def in_any_order(items: Sequence[Any], loose: Callable[[Any], bool]) -> list[Any]:
    """Sort each unbroken group of results, because they arrive as their tools finish."""
    out: list[Any] = []
    for is_loose, group in groupby(items, loose):
        some = list(group)
        out += sorted(some, key=repr) if is_loose else some
    return out


@QUICK
@given(steps(), LIMITS, st.lists(st.lists(QUIET, max_size=3), max_size=4))
def test_failed_tries_leave_no_trace_in_run(script: list[Step], limits: Limits, faults: list[list[list[Any]]]) -> None:
    plain = [
        replace(
            step, items=[known(item, f"{number}.{at}") for at, item in enumerate(step.items) if item != Act("fail")]
        )
        for number, step in enumerate(script)
    ]
    troubled: list[Step] = []
    for step, before in zip(plain, faults + [[]] * len(plain), strict=False):
        troubled += [Step([*quiet, Act("fail")]) for quiet in before] + [step]

    async def both() -> tuple[Played, Played]:
        return (
            await play_script(plain, limits, MemoryStore()),
            await play_script(troubled, replace(limits, retries=3), MemoryStore(), failure=AT_ONCE),
        )

    one, other = asyncio.run(both())
    assert outcome(other) == outcome(one)
    sent = [as_sent(messages) for messages in one.connection.played.sent]
    again = [as_sent(messages) for messages in other.connection.played.sent]
    assert [messages for messages, _ in groupby(again)] == sent


def known(item: Any, id_: str) -> Any:
    """Return a call with a fixed id. A generated id would differ from run to run."""
    return replace(item, id=id_) if isinstance(item, Call) else item


def test_final_error_counts_the_tries() -> None:
    bad = Step([Act("fail")])

    async def check() -> None:
        connection = FakeConnection([bad] * 5, failure=AT_ONCE)
        run = Agent(connection).run("Hello")
        result = await run
        assert (result.finish_reason, result.note.detail) == ("error", "Too many at once. Tried 4 times.")
        assert len(connection.played.sent) == 4
        assert run.responses[-1].content == result.note.detail

    asyncio.run(check())


# --- over the wire ----------------------------------------------------------------------------------------------------


@tool
async def quick() -> str:
    """Return at once."""
    return "quick"


@pytest.mark.parametrize("script", ["!error-event 2", "!reset 2"])
async def test_nothing_is_retried_after_first_visible_token(agent: Agent, server: Running, script: str) -> None:
    seen = len(server.journal())
    result = await agent.ask(script)
    assert (result.finish_reason, result.text) == ("error", "## word0 word1 ")
    assert len(server.journal()) - seen == 1


async def test_text_of_earlier_step_allows_retry(agent: Agent, server: Running) -> None:
    seen = len(server.journal())
    run = Agent(agent.connection, tools=[quick]).run("!text Let me see. !tool quick {} !fail 1 503 0 !text done")
    result = await run
    assert (result.finish_reason, result.text) == ("stop", "done")
    assert [response.type for response in run.responses].count("tool_call_result") == 1
    assert len(server.journal()) - seen == 3


async def test_too_long_pause_is_reported_with_length(agent: Agent, server: Running) -> None:
    seen = len(server.journal())
    result = await agent.ask("!status 429 300")
    assert result.finish_reason == "error"
    assert result.note.detail.endswith(" Try again in 300 s.")
    assert len(server.journal()) - seen == 1


def chunks(*events: Any) -> Sequence[Any]:
    head = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": QWEN3.name}
    return [event if isinstance(event, bytes) else {**head, **event} for event in events]


@pytest.fixture
def scene() -> Iterator[Playing]:
    with playing() as server:
        yield server


async def test_unreachable_server_is_retried() -> None:
    with socket.socket() as nobody:  # the port is taken, but nothing listens
        nobody.bind(("127.0.0.1", 0))
        endpoint = Endpoint(f"http://127.0.0.1:{nobody.getsockname()[1]}/v1")
        async with Agent(connect(QWEN3, endpoint), limits=Limits(retries=1)) as agent:
            result = await agent.ask("Hello")
    assert result.finish_reason == "error"
    assert result.note.detail.endswith(" Tried 2 times.")


# --- during the pause -------------------------------------------------------------------------------------------------


async def until_waiting(run: Run) -> None:
    """Return when the run pauses. `wait_for_update` wakes at the pause's start, long before its own timeout."""
    at = time.monotonic()
    await run.wait_for_update(0, timeout=120)
    assert run.waiting is not None
    assert time.monotonic() - at < 60


@pytest.mark.parametrize("cancel", [by_loop, by_thread])
async def test_stop_ends_pause_at_once(agent: Agent, server: Running, cancel: Callable[[Run], None]) -> None:
    seen = len(server.journal())
    run = agent.run("!status 429 40").start()
    await until_waiting(run)
    pause = run.waiting
    assert pause is not None
    assert pause.sentence == "Provider is busy; retrying in 40 s"
    assert pause.seconds == 40
    assert 30 < pause.until - time.monotonic() <= 40
    at = time.monotonic()
    cancel(run)
    result = await run
    assert time.monotonic() - at < 30
    assert (result.finish_reason, result.text, run.responses, run.waiting) == ("cancelled", "", [], None)
    assert result.note.detail == "Stopped."
    assert len(server.journal()) - seen == 1
    await assert_continues(agent, server, run)


@pytest.mark.slow
async def test_time_limit_ends_pause(agent: Agent, server: Running) -> None:
    await agent.ask("!text Hello")  # excludes the set-up of the first request
    run = Agent(agent.connection, limits=Limits(seconds=2)).run("!status 429 40").start()
    at = time.monotonic()
    await until_waiting(run)
    result = await run
    assert 1.9 < time.monotonic() - at < 30
    assert result.finish_reason == "limit"
    assert result.note.detail == "Stopped after 2 s, the time limit of one answer."
    assert run.waiting is None
    await assert_continues(agent, server, run)


@pytest.mark.slow
async def test_pause_delays_first_token_but_adds_no_usage(agent: Agent) -> None:
    plain = (await agent.ask("!text Hello")).note.timings
    tried = (await agent.ask("!fail 1 503 1 !text Hello")).note.timings
    assert plain is not None
    assert tried is not None
    assert tried.first_token is not None
    assert tried.first_token >= 1
    assert (tried.output_tokens, tried.generated, tried.estimated) == (plain.output_tokens, plain.generated, False)


async def test_failed_try_leaves_nothing(scene: Playing) -> None:
    opened = chunks({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
    scene.play(Reply(sse=opened, end="reset"), Reply(status=429, body={}, headers={"retry-after": "40"}))
    async with Agent(connect(QWEN3, Endpoint(f"{scene.url}/v1"))) as agent:
        run = agent.run("Hello").start()
        while run.waiting is None or run.waiting.seconds < 40:
            await run.wait_for_update(0, timeout=30)
        run.cancel()
        result = await run
    assert result.finish_reason == "cancelled"
    last = result.context.messages[-1]
    assert isinstance(last, ModelResponse)
    assert (last.parts, last.provider_response_id) == ([], None)


class Written:
    """A journal that records its messages and notes."""

    def __init__(self) -> None:
        self.messages: list[ModelMessage] = []
        self.notes: list[Note] = []

    async def write(self, message: ModelMessage, note: Note) -> None:
        self.messages.append(message)
        self.notes.append(note)


async def test_journal_has_prompt_but_no_failed_try(agent: Agent) -> None:
    journal = Written()
    run = agent.run("!status 429 40", journal=journal).start()
    await until_waiting(run)
    assert [type(message) for message in journal.messages] == [ModelRequest]
    run.cancel()
    await run
    journal = Written()
    await agent.run("!fail 2 503 0 !text Hello", journal=journal)
    assert [type(message) for message in journal.messages] == [ModelRequest, ModelResponse]
    assert [note.ended for note in journal.notes] == [None, "stop"]
