"""The end of a run: stopped anywhere, limited or broken. Runs do not affect each other. Uses the scripted server."""

import asyncio
import gc
import json
import re
import threading
import time
import warnings
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    SystemPromptPart,
    ToolReturnPart,
    UserPromptPart,
)

from agent import Agent, Context, Endpoint, InputError, Limits, Run, connect, tool
from agent.errors import AgentError, Conflict, ProviderError
from agent.history import Note
from agent.limits import explain_filter
from agent.messages.openai import to_openai
from tests.support import fakes
from tests.support.cancellation import by_loop, by_thread
from tests.support.fakes import FakeConnection, Step, Words
from tests.support.message_rules import assert_accepted, assert_continues
from tests.support.models import QWEN3
from tests.support.scripted_server import Running
from tests.support.strategies import conversations
from tests.tiers import examples


def with_tools(agent: Agent, *tools: Any, **limits: Any) -> Agent:
    return Agent(agent.connection, tools=tools, limits=Limits(**limits))


async def closed_line(server: Running, seen: int) -> dict[str, Any]:
    """Return the journal's line of the one request after `seen`, when its connection is closed."""
    lines = await asyncio.to_thread(server.wait_for, lambda lines: lines[seen:] and lines[seen]["closed"], 1.0)
    return lines[seen]


# --- stop -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cancel", [by_loop, by_thread])
@pytest.mark.parametrize(
    ("script", "least"),
    [("!stall-before", 0), ("!stall-before headers", 0), ("!stall-after 5", 1), ("!tokens 9000 @200", 3)],
    ids=["silent", "silent-after-headers", "silent-in-the-middle", "streaming"],
)
async def test_stop_ends_run_at_once(
    agent: Agent, server: Running, script: str, least: int, cancel: Callable[[Run], None]
) -> None:
    seen = len(server.journal())
    run = agent.run(script).start()
    await asyncio.to_thread(server.wait_for, lambda lines: len(lines) > seen)
    while len(run.responses) < least:
        await run.wait_for_update(len(run.responses), timeout=5)
    cancel(run)
    result = await run  # by itself it would never end, or in 45 s
    line = await closed_line(server, seen)
    assert line["ended"] == "client_closed"
    assert result.finish_reason == "cancelled"
    assert result.note.detail == "Stopped."
    assert result.text == "".join(str(response.content) for response in run.responses)
    assert not any(response.type == "error" for response in run.responses)
    assert "word0 " in result.text or least == 0
    await assert_continues(agent, server, run)


async def test_run_stopped_before_start_still_ends(agent: Agent, server: Running) -> None:
    seen = len(server.journal())
    run = agent.run("!text never said")
    run.cancel()
    result = await asyncio.wait_for(run._result(), 60)
    assert (result.finish_reason, result.text, run.responses) == ("cancelled", "", [])
    assert server.journal()[seen:] == []
    assert len(run.context.messages) == 2, "the prompt is not stored with an empty answer"
    await assert_continues(agent, server, run)


async def test_stop_at_last_moment_gives_result() -> None:
    for ticks in range(12):
        run = Agent(FakeConnection([Step([Words("output_text", ["a"])])])).run("hi").start()
        for _ in range(ticks):
            await asyncio.sleep(0)
        run.cancel()
        result = await asyncio.wait_for(run._result(), 60)
        assert result.finish_reason in ("stop", "cancelled")
        assert len(run.context.messages) == 2


@tool
async def waits() -> None:
    """Wait for ever."""
    await asyncio.get_running_loop().create_future()


@tool
async def deaf() -> None:
    """Wait for ever, whatever anybody says."""
    await for_ever_and_deaf()


@tool
async def tidy() -> str:
    """Take a moment to clean up when interrupted."""
    try:
        await asyncio.get_running_loop().create_future()
    finally:
        await asyncio.sleep(0.1)
        CLEANED.append("tidy")
    return "never"


CLEANED: list[str] = []
RELEASE = threading.Event()


@tool
def blocks() -> str:
    """Block a thread."""
    RELEASE.wait(120)
    return "late"


@tool
async def quick() -> str:
    """Return at once."""
    return "quick"


@pytest.mark.parametrize("cancel", [by_loop, by_thread])
@pytest.mark.parametrize("names", [["waits"], ["blocks"], ["deaf"], ["tidy"], ["quick", "waits", "blocks", "deaf"]])
@pytest.mark.slow
async def test_stop_ends_or_abandons_tools(
    agent: Agent, server: Running, names: list[str], cancel: Callable[[Run], None]
) -> None:
    RELEASE.clear()
    CLEANED.clear()
    able = with_tools(agent, waits, blocks, deaf, quick, tidy)
    run = able.run(f"!text Let me see. !tools {' '.join(f'{name} {{}}' for name in names)}").start()
    said = 2 if "quick" in names else 1
    while len([r for r in run.responses if r.type.startswith("tool_call")]) < len(names) + said - 1:
        await run.wait_for_update(len(run.responses), timeout=5)
    await asyncio.sleep(0.02)  # let the tools start
    cancel(run)
    result = await run  # while the deaf tools still work, because nothing has released them
    assert result.finish_reason == "cancelled"
    assert ("The tool blocks cannot be interrupted and was left running." in result.note.detail) is ("blocks" in names)
    assert (["tidy"] if "tidy" in names else []) == CLEANED
    results = {r.content["name"]: r.content for r in run.responses if r.type == "tool_call_result"}  # type: ignore[index]
    assert sorted(results) == sorted(names)
    assert {name: content["is_error"] for name, content in results.items()} == {n: n != "quick" for n in names}
    before = len(run.responses)
    await assert_continues(agent, server, run)
    RELEASE.set()
    await asyncio.sleep(0.05)
    assert len(run.responses) == before, "an abandoned tool was still heard"


async def test_leaving_the_loop_stops_run(agent: Agent, server: Running) -> None:
    seen = len(server.journal())
    run = agent.run("!tokens 9000 @200")
    async for _ in run:
        break
    line = await closed_line(server, seen)
    assert line["ended"] == "client_closed"
    assert (await run).finish_reason == "cancelled"
    assert (run.cancel_reason, run.ending) == ("reader_left", "Stopped: the reader went away.")
    await assert_continues(agent, server, run)


@pytest.mark.parametrize("how", ["aclose", "with", "async with"])
async def test_closed_agent_leaves_connection_to_its_other_user(server: Running, how: str) -> None:
    connection = connect(QWEN3, Endpoint(server.base_url))
    one, other = Agent(connection), Agent(connection)
    async for _ in (run := other.run("!tokens 40 @100")):
        if len(run.responses) == 3:
            assert (await one.ask("!text Yes.")).text == "Yes."
            match how:
                case "aclose":
                    await one.aclose()
                case "with":
                    with one:
                        pass
                case _:
                    async with one:
                        pass
    assert run.finish_reason == "stop"
    await other.aclose()


async def test_cancelled_waiter_stops_run(agent: Agent, server: Running) -> None:
    seen = len(server.journal())
    run = agent.run("!stall-after 5")

    async def ask() -> None:
        await run

    waiter = asyncio.create_task(ask())
    while not run.responses:
        await run.wait_for_update(0, timeout=1)
        await asyncio.sleep(0)
    waiter.cancel()
    await asyncio.gather(waiter, return_exceptions=True)
    assert (await closed_line(server, seen))["ended"] == "client_closed"
    assert (await run).finish_reason == "cancelled"


# --- toolsets ---------------------------------------------------------------------------------------------------------


class RecordingToolset:
    """A toolset that records its sessions. It awaits `opens` and `closes`, which can ignore cancellation."""

    name = "the toolset"

    def __init__(self, *, opens: Any = None, closes: Any = None, tools: Any = (quick,)) -> None:
        self.events: list[str] = []
        self.opening, self.over = asyncio.Event(), asyncio.Event()
        self._opens, self._closes, self._tools = opens, closes, tools

    @asynccontextmanager
    async def session(self) -> AsyncIterator[Any]:
        self.events.append("open")
        self.opening.set()
        try:
            if self._opens:
                await self._opens()
            yield self._tools
        finally:
            self.events.append("close")
            if self._closes:
                await self._closes()
                self.events.append("closed late")
            self.over.set()


async def raises(error: BaseException) -> None:
    raise error


async def test_run_opens_and_closes_its_toolsets(agent: Agent, server: Running) -> None:
    first, second = RecordingToolset(), RecordingToolset(tools=[waits])
    able = with_tools(agent, first, second, blocks)
    for _ in range(2):
        result = await able.ask("!tool quick {} !text Done.")
        assert (result.finish_reason, result.text) == ("stop", "Done.")
    assert first.events == second.events == ["open", "close"] * 2, "each run has its own session"
    assert [one["function"]["name"] for one in server.journal()[-1]["body"]["tools"]] == ["blocks", "quick", "waits"]
    opened = able.with_tools(quick)
    assert (await opened.ask("!tool quick {} !text Done.")).text == "Done."
    assert first.events == ["open", "close"] * 2, "the run closed tools that others had opened"


@pytest.mark.parametrize(
    ("toolsets", "says"),
    [
        ([{}, {"opens": lambda: raises(AgentError("It is locked."))}], "It is locked."),
        ([{}, {"opens": lambda: raises(OSError(2, "gone"))}], "The tools 'the toolset' could not be opened: "),
        ([{}, {"opens": lambda: raises(LookupError())}], "The tools 'the toolset' could not be opened: LookupError"),
        ([{}, {}], "two tools are named 'quick'"),
    ],
)
async def test_unopenable_toolset_ends_run(agent: Agent, server: Running, toolsets: list[Any], says: str) -> None:
    seen = len(server.journal())
    made = [RecordingToolset(**one) for one in toolsets]
    run = with_tools(agent, *made).run("!text never said")
    result = await run
    assert (result.finish_reason, len(server.journal())) == ("error", seen)
    assert says in str(run.responses[-1].content)
    assert [toolset.events for toolset in made] == [["open", "close"]] * 2
    await assert_continues(agent, server, run)


async def test_failing_or_slow_close_does_not_block(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    result = await with_tools(agent, RecordingToolset(closes=lambda: raises(OSError("gone")))).ask("!text Done.")
    assert (result.finish_reason, result.text) == ("stop", "Done.")
    monkeypatch.setattr("agent.tools.function_tools.CLOSE_SECONDS", 0.05)
    late = asyncio.Event()
    toolset = RecordingToolset(closes=late.wait)
    assert (await with_tools(agent, toolset).ask("!text Done.")).text == "Done."
    assert toolset.events == ["open", "close"]
    late.set()
    await asyncio.wait_for(toolset.over.wait(), 60)
    assert toolset.events[-1] == "closed late"


async def for_ever() -> None:
    await asyncio.get_running_loop().create_future()


async def for_ever_and_deaf() -> None:
    while not RELEASE.is_set():
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("cancel", [by_loop, by_thread])
@pytest.mark.parametrize("opens", [for_ever, for_ever_and_deaf])
@pytest.mark.slow
async def test_stop_ends_opening_of_toolset(
    agent: Agent, server: Running, opens: Any, cancel: Callable[[Run], None]
) -> None:
    RELEASE.clear()
    toolset = RecordingToolset(opens=opens)
    run = with_tools(agent, toolset).run("!text never said").start()
    await toolset.opening.wait()
    cancel(run)
    result = await run
    assert (result.finish_reason, result.text, run.responses) == ("cancelled", "", [])
    await assert_continues(agent, server, run)
    RELEASE.set()
    await asyncio.wait_for(toolset.over.wait(), 60)
    assert toolset.events == ["open", "close"], "the toolset was not closed after its late opening"


async def test_preparing_a_prompt_can_wait_or_refuse(agent: Agent, server: Running) -> None:
    """A prompt can hold a picture that is fetched first. A refused prompt leaves no trace."""
    run = agent.run("!text never said")
    seen = len(server.journal())

    async def refuse(messages: list[ModelMessage]) -> list[ModelMessage]:
        raise InputError("There is no such picture.")

    object.__setattr__(run._plan, "prepare", refuse)
    with pytest.raises(InputError, match="no such picture"):
        await run
    assert run.result is not None
    assert (run.result.finish_reason, run.context.messages, len(server.journal())) == ("error", (), seen)
    assert [response.type for response in run.responses] == ["error"]

    waiting = agent.run("!text never said")
    object.__setattr__(waiting._plan, "prepare", lambda _: asyncio.get_running_loop().create_future())
    waiting.start()
    await asyncio.sleep(0)
    waiting.cancel()
    assert (await waiting).finish_reason == "cancelled"


# --- limits -----------------------------------------------------------------------------------------------------------


async def test_step_limit_says_why(agent: Agent, server: Running) -> None:
    seen = len(server.journal())
    run = with_tools(agent, quick, steps=3).run("!loop quick {}")
    result = await run
    assert (result.finish_reason, len(server.journal()) - seen) == ("limit", 3)
    assert run.responses[-1].type == "error"
    assert run.responses[-1].content == "Stopped after 3 steps: the model kept calling tools." == result.note.detail
    await assert_continues(agent, server, run)


@pytest.mark.parametrize("script", ["!stall-before", "!stall-after 3", "!tool waits {}", "!tool deaf {}"])
@pytest.mark.slow
async def test_time_limit_says_why(agent: Agent, server: Running, script: str) -> None:
    RELEASE.clear()
    able = with_tools(agent, waits, deaf, seconds=0.3)
    run = able.run(script)
    at = time.monotonic()
    result = await run
    assert time.monotonic() - at > 0.25
    assert result.finish_reason == "limit"
    assert run.responses[-1].content == "Stopped after 0.3 s, the time limit of one answer."
    await assert_continues(agent, server, run)
    RELEASE.set()


# --- endings of providers ---------------------------------------------------------------------------------------------


BEGUN, WITHHELD = "## word0 word1 ", "The provider withheld the answer"
BROKE_OFF = "The answer broke off: the model server ended it too early."
ENDS: list[tuple[str, str, str | None, str | None]] = [
    ("!text Hello there", "stop", "Hello there", ""),
    ("!length 2", "length", BEGUN, "The answer was cut off at its maximum length."),
    ("!filter 2", "content_filter", BEGUN, f"{WITHHELD}."),
    ("!filter 0", "error", "", f"{WITHHELD}."),
    ("!refusal I cannot help with that.", "error", "", f'{WITHHELD}. "I cannot help with that".'),
    ('!json [{"finish": "recitation"}]', "error", "", f"{WITHHELD} (category: recitation)."),
    ('!json [{"content": "a"}, {"finish": "SAFETY"}]', "content_filter", "a", f"{WITHHELD} (category: safety)."),
    ("!tool approved {}", "suspended", "", "May the tool approved be used?"),
    ("!tokens 900 @100", "cancelled", None, "Stopped."),
    ("!cut 2", "error", BEGUN, BROKE_OFF),
    ("!reset 2", "error", BEGUN, None),
    ("!error-event 2", "error", BEGUN, None),
    ('!json [{"content": "a"}, {"finish": "eos_token"}]', "stop", "a", ""),
    ('!json [{"content": "a"}, {"finish": "abort"}]', "error", "a", None),
    ('!json [{"content": "a"}, {"finish": null}]', "error", "a", BROKE_OFF),
]
"""A script, the reason for the end of its run, the text, and the sentence about the end."""


@pytest.mark.parametrize(("script", "reason", "text", "ending"), ENDS)
async def test_end_of_a_run_has_a_reason_and_a_sentence(
    agent: Agent, server: Running, script: str, reason: str, text: str | None, ending: str | None
) -> None:
    @tool(needs_approval=True)
    def approved() -> None: ...

    run = with_tools(agent, approved).run(script)
    assert (run.finish_reason, run.ending) == (None, "")
    async for _ in run:
        if reason == "cancelled":
            run.cancel()
    result = await run
    assert (run.finish_reason, result.finish_reason) == (reason, reason)
    assert text is None or result.text == result.final_output == text
    assert ending is None or run.ending == ending
    assert [one.content for one in run.responses if one.type == "error"] == [run.ending] * (reason == "error")
    if reason == "error":
        with pytest.raises(ProviderError) as caught:
            result.checked()
        assert (caught.value.kind == "refusal") is (WITHHELD in run.ending)
    await assert_continues(agent, server, run)


async def test_truncated_call_is_not_made(agent: Agent, server: Running) -> None:
    call = {"index": 0, "id": "c", "type": "function", "function": {"name": "quick", "arguments": '{"a": "b'}}
    script = f"!json {json.dumps([{'content': 'Well'}, {'tool_calls': [call]}, {'finish': 'length'}])}"
    run = with_tools(agent, quick).run(script)
    result = await run
    assert (result.finish_reason, result.text) == ("length", "Well")
    assert [response.type for response in run.responses] == ["output_text"]
    await assert_continues(agent, server, run)


@pytest.mark.parametrize(
    ("details", "sentence"),
    [
        ({}, "The provider withheld the answer."),
        ({"finish_reason": "content_filter"}, "The provider withheld the answer."),
        ({"finish_reason": "SAFETY"}, "The provider withheld the answer (category: safety)."),
        ({"block_reason": "PROHIBITED_CONTENT"}, "The provider withheld the answer (category: prohibited content)."),
        (
            {"finish_reason": "refusal", "refusal_category": "cyber", "refusal": "This\nmay harm."},
            'The provider withheld the answer (category: cyber). "This may harm".',
        ),
        ({"finish_reason": "refusal"}, "The provider withheld the answer."),
        ({"refusal": "x" * 400}, 'The provider withheld the answer. "' + "x" * 299 + '…".'),
        ({"refusal": {"raw": 1}, "safety_ratings": [{"a": 1}]}, "The provider withheld the answer."),
    ],
)
def test_withheld_reason_is_a_short_sentence(details: dict[str, Any], sentence: str) -> None:
    assert explain_filter(details) == sentence


# --- requests and their cost ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dialect", "chosen", "asked"), [("messages", None, 1024), ("messages", 50, 50), ("chat", None, None)]
)
async def test_max_tokens_is_sent_where_required(dialect: Any, chosen: int | None, asked: Any) -> None:
    connection = FakeConnection([], spec=replace(fakes.SPEC, dialect=dialect))
    await Agent(connection).ask("Hello", max_tokens=chosen)
    assert connection.played.asked[0].get("max_tokens") == asked


# --- readers and concurrent runs --------------------------------------------------------------------------------------


async def test_two_readers_get_everything(agent: Agent) -> None:
    run = with_tools(agent, quick).run("!reasoning hm hm !tool quick {} !tokens 30 @500")

    async def read() -> list[Any]:
        return [response async for response in run]

    first, second = await asyncio.gather(read(), read())
    assert first == second == run.responses
    assert [response async for response in run] == first, "a late reader misses something"


@pytest.mark.slow
async def test_hundred_runs_of_one_agent_do_not_mix(agent: Agent, server: Running) -> None:
    """More runs than an HTTP client's default pool holds start at once and end their first step together."""
    count = 130
    here: set[int] = set()
    everybody = asyncio.Event()

    async def mark(number: int) -> str:
        here.add(number)
        if len(here) == count:
            everybody.set()
        await everybody.wait()
        return f"result<{number}>"

    able = with_tools(agent, mark, tool_seconds=30)

    async def one(number: int) -> tuple[Run, Any]:
        context = Context(session_id=f"session{number}")
        run = able.run(f'!text before<{number}> !tool mark {{"number": {number}}}', context=context)
        return run, await run

    seen = len(server.journal())
    for number, (run, result) in enumerate(await asyncio.gather(*map(one, range(count)))):
        assert result.finish_reason == "stop", result.note.detail
        assert result.text == f'The tools said: "result<{number}>"'
        assert result.context.session_id == f"session{number}"
        said = json.dumps([response.content for response in run.responses], default=str)  # type: ignore[arg-type]
        assert set(re.findall(r"<(\d+)>", said)) == {str(number)}
    for line in server.journal()[seen:]:
        assert len(set(re.findall(r"<(\d+)>", json.dumps(line["body"])))) == 1


@pytest.mark.slow
async def test_open_streams_exceed_default_pool(agent: Agent, server: Running) -> None:
    seen = len(server.journal())
    runs = [agent.run("!stall-after 1").start() for _ in range(110)]
    await asyncio.to_thread(server.wait_for, lambda lines: sum(line["sent"] for line in lines[seen:]) == 110)
    for run in runs:
        run.cancel()
    assert {(await run).finish_reason for run in runs} == {"cancelled"}
    await asyncio.to_thread(server.wait_for, lambda lines: all(line["closed"] for line in lines[seen:]))


# --- the journal ------------------------------------------------------------------------------------------------------


class SlowJournal:
    """A journal that records its writes. Each write takes a while, and only one can run at a time."""

    def __init__(self, *, fail_at: int | None = None) -> None:
        self.written: list[tuple[ModelMessage, Note]] = []
        self.writing = asyncio.Event()
        self._fail_at = fail_at
        self._busy = False

    async def write(self, message: ModelMessage, note: Note) -> None:
        assert not self._busy, "a write began before the previous one ended"
        self._busy = True
        self.writing.set()
        await asyncio.sleep(0.05)
        self._busy = False
        if len(self.written) == self._fail_at:
            raise Conflict("It was changed elsewhere.")
        self.written.append((message, note))


@pytest.mark.parametrize("writes", [0, 1, 2, 3])
async def test_stop_during_write_waits_for_it(agent: Agent, writes: int) -> None:
    journal = SlowJournal()
    run = with_tools(agent, quick).run("!tool quick {} !text done", journal=journal).start()
    for _ in range(writes + 1):
        journal.writing.clear()
        await journal.writing.wait()
    run.cancel()
    result = await run
    assert result.finish_reason == ("stop" if writes == 3 else "cancelled")
    assert [message for message, _ in journal.written] == list(run._messages.messages)
    assert [note.ended for _, note in journal.written] == [None] * (len(journal.written) - 1) + [result.finish_reason]
    assert isinstance(journal.written[-1][0], ModelResponse)
    assert_accepted(to_openai(run.context.messages[:-1]))


async def test_prompt_is_written_before_request(agent: Agent, server: Running) -> None:
    seen = len(server.journal())
    journal = SlowJournal()
    run = agent.run("!text Hello", journal=journal).start()
    await journal.writing.wait()
    assert len(server.journal()) == seen
    await run
    assert [type(message) for message, _ in journal.written] == [ModelRequest, ModelResponse]
    assert all(note.run_id == run.id for _, note in journal.written)


@pytest.mark.parametrize("at", [0, 1, 2, 3])
async def test_refusing_store_ends_run_with_its_reason(agent: Agent, at: int) -> None:
    run = with_tools(agent, quick).run("!tool quick {} !text done", journal=SlowJournal(fail_at=at))
    result = await run
    assert result.finish_reason == "error"
    assert run.responses[-1].type == "error"
    assert "It was changed elsewhere." in str(run.responses[-1].content)


# --- prompts and results ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prompt", ["", [3], [{"role": "system", "content": "x"}]])
async def test_bad_prompt_is_refused_before_request(agent: Agent, server: Running, prompt: Any) -> None:
    seen = len(server.journal())
    with pytest.raises(InputError):
        agent.run(prompt)
    assert len(server.journal()) == seen


@pytest.mark.parametrize(
    "last", [SystemPromptPart("x"), UserPromptPart(" "), ToolReturnPart("f", "1", tool_call_id="c")]
)
def test_context_without_question_is_not_answered(agent: Agent, last: Any) -> None:
    with pytest.raises(InputError, match="does not end with a prompt"):
        agent.answer(Context(messages=(ModelRequest([last]),)))


async def test_whole_conversation_can_be_handed_on(agent: Agent, server: Running) -> None:
    result = await with_tools(agent, quick).ask("!reasoning Hm. !tool quick {} !text done")
    handed = result.to_input_list()
    assert [message["role"] for message in handed] == ["user", "assistant", "tool", "assistant"]
    again = await agent.ask([*handed, {"role": "user", "content": "!text Yes."}])
    assert again.text == "Yes."
    body = server.journal()[-1]["body"]["messages"]
    assert_accepted(body)
    assert [message["role"] for message in body] == ["system", "user", "assistant", "tool", "assistant", "user"]


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.too_slow])
@given(conversations(6))
def test_context_keeps_its_bytes_over_round_trips(messages: list[ModelMessage]) -> None:
    text = Context(messages=tuple(messages)).to_json()
    back = Context.from_json(text)
    assert back.to_json() == text
    assert Context.from_json(back.to_json().encode()).to_json() == text
    assert list(back.messages) == messages


async def test_session_id_is_given_or_created_and_stays(agent: Agent) -> None:
    first, second = await agent.ask("!text One."), await agent.ask("!text Two.")
    assert len({first.context.session_id, second.context.session_id}) == 2
    given = await agent.ask("!text One.", context=Context(session_id="mine"))
    again = await agent.ask("!text Two.", context=given.context)
    assert (given.context.session_id, again.context.session_id) == ("mine", "mine")


async def test_context_refreshes_only_system_message(agent: Agent, server: Running) -> None:
    before = await agent.ask("!text One.")
    first = server.journal()[-1]["body"]["messages"]
    pirate = Agent(agent.connection, system_message="Speak like a pirate.")
    await pirate.ask("!text Two.", context=Context.from_json(before.context.to_json()))
    second = server.journal()[-1]["body"]["messages"]
    assert [first[0], second[0]] == [
        {"role": "system", "content": "Be brief."},
        {"role": "system", "content": "Speak like a pirate."},
    ]
    assert second[1:2] == first[1:]
    assert [message["role"] for message in second[2:]] == ["assistant", "user"]


async def test_context_is_valid_during_run(agent: Agent, server: Running) -> None:
    run = with_tools(agent, quick, waits).run("!tools quick {} waits {}").start()
    while len(run.responses) < 3:
        await run.wait_for_update(len(run.responses), timeout=5)
    context = run.context
    results = [part for part in context.messages[-1].parts if isinstance(part, ToolReturnPart)]
    assert len(results) == 2
    again = await agent.ask("!text Yes.", context=context)
    assert again.text == "Yes."
    assert_accepted(server.journal()[-1]["body"]["messages"])
    run.cancel()
    await run


@pytest.mark.parametrize("script", ["!text Yes.", "!status 400", "!cut"])
@pytest.mark.slow
def test_ended_loop_leaves_no_connection_open(server: Running, script: str) -> None:
    async def main() -> None:
        await Agent(connect(QWEN3, Endpoint(server.base_url))).ask(script)

    gc.collect()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        asyncio.run(main())
        gc.collect()
    assert [str(one.message) for one in warned if one.category is ResourceWarning] == []
