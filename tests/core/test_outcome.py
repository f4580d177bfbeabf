"""The end of a run: cancellation with any reason, and a result for every reader despite any failure."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai.messages import ModelMessage

from agent import Agent, Endpoint, InputError, Run, RunResult, Tool, connect
from agent.errors import AgentError, Conflict
from agent.events import Event, ResponseEmitted, RunEnded, RunStarted
from agent.files.store import MediaStore
from agent.history import Conversation, Note
from agent.history.memory import MemoryStore
from agent.i18n.translator import Translator
from agent.result import LONGEST_REASON, Outcome
from agent.runtime.agent_loop import AgentLoop, MessageLog, ResultBuilder
from agent.runtime.model_request import ModelRequests
from agent.runtime.run_stream import RunStream
from agent.runtime.usage import UsageMeter
from agent.suspension.seals import Seals
from agent.tools.function_tools import ask_user
from agent.web.chat.answers import LiveRun, LiveRuns
from agent.web.chat.journal import Omitted, StoreJournal
from tests.support.journals import MemoryJournal
from tests.support.models import QWEN3
from tests.support.scripted_server import Running
from tests.support.views import unstored

TEXT = "!text Hello."
HALF = "!stall-after 2"
ASK = '!tool ask_user {"question": "Which?"} !text Done.'


class Odd(BaseException):
    """Neither an Exception nor known to asyncio."""


FAILURES = [RuntimeError("injected"), asyncio.CancelledError("injected"), Odd("injected")]


@pytest.fixture
async def agent(server: Running) -> AsyncIterator[Agent]:
    async with Agent(connect(QWEN3, Endpoint(server.base_url)), tools=[ask_user]) as agent:
        yield agent


class Watcher:
    """An observer that raises `failure` on a `kind` of event."""

    def __init__(self, kind: type, failure: BaseException) -> None:
        self.events: list[Event] = []
        self._kind, self._failure = kind, failure

    def on_event(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, self._kind):
            raise self._failure


async def read(run: Run, *, cancel: bool = False) -> RunResult:
    """Read the run in every way at once, as the page does too. All readers must wake and agree."""
    table = LiveRuns(60.0)
    live = table.start(run, unstored())

    async def iterated() -> list[Any]:
        return [response async for response in run]

    async def awaited() -> RunResult:
        return await run

    async def told() -> bool:
        while not await run.wait_until_done(1):
            pass
        return True

    async def noticed() -> bool:
        while not run.done:
            await run.wait_for_update(sys.maxsize)
        return True

    async def shown(live: LiveRun) -> list[str]:
        return [bubble.first.type async for bubbles in live.bubble_updates() for bubble in [*bubbles][-1:]]

    async def cancelled() -> None:
        while cancel and not run.responses:
            await run.wait_for_update(len(run.responses))
        if cancel:
            run.cancel()

    async with asyncio.timeout(60):
        responses, result, _, _, bubbles, _ = await asyncio.gather(
            iterated(), awaited(), told(), noticed(), shown(live), cancelled()
        )
        await free(table)
    assert table.count == 0
    assert result is run.result
    assert responses == run.responses
    if result.finish_reason == "error":
        assert [one.type for one in responses].count("error") == 1
        assert (responses[-1].type, responses[-1].content) == ("error", result.note.detail)
        assert bubbles[-1] == "error"
    return result


async def free(table: LiveRuns) -> None:
    """Wait until the table has no runs."""
    while table.count:
        await asyncio.wait(table._end_tasks or [asyncio.ensure_future(asyncio.sleep(0))])


def fail(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, failure: BaseException, times: int) -> None:
    """Let the first `times` calls of a function raise."""
    real, left = getattr(owner, name), [failure] * times

    def failing(*args: Any, **kwargs: Any) -> Any:
        if left:
            raise left.pop()
        return real(*args, **kwargs)

    monkeypatch.setattr(owner, name, failing)


# --- each step of the ending ------------------------------------------------------------------------------------------


results_module = sys.modules["agent.runtime.agent_loop"]
ALWAYS = 99
Step = tuple[str, list[tuple[Any, str, int]]]
STEPS: dict[str, Step] = {
    "explaining a cancellation": (HALF, [(Outcome, "from_cancellation", ALWAYS)]),
    "explaining twice": (HALF, [(Outcome, "from_cancellation", ALWAYS), (ResultBuilder, "build", ALWAYS)]),
    "reading the half answer": (HALF, [(ModelRequests, "partial_response", ALWAYS)]),
    "counting the half answer": (HALF, [(UsageMeter, "count_step", ALWAYS)]),
    "reading the clock": (TEXT, [(UsageMeter, "timings", ALWAYS)]),
    "reading the cost": (TEXT, [(ResultBuilder, "cost", ALWAYS)]),
    "making the note": (TEXT, [(results_module, "_with_outcome", 1)]),
    "making the note twice": (TEXT, [(results_module, "_with_outcome", 2)]),
    "reading the text": (TEXT, [(results_module, "text_of_message", ALWAYS)]),
    "collecting the files": (TEXT, [(results_module, "files_of_messages", ALWAYS)]),
    "repairing the context": (TEXT, [(MessageLog, "with_last", ALWAYS)]),
    "making the result": (TEXT, [(ResultBuilder, "build", ALWAYS)]),
    "making the result twice": (TEXT, [(ResultBuilder, "build", ALWAYS), (ResultBuilder, "minimal", 1)]),
    "counting what was used": (ASK, [(AgentLoop, "result", ALWAYS)]),
    "publishing": (TEXT, [(RunStream, "publish", 1)]),
    "finishing": (TEXT, [(Run, "_finish", 1)]),
}


@pytest.mark.parametrize("failure", FAILURES, ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("step", STEPS)
async def test_failing_step_ends_with_error(
    agent: Agent, monkeypatch: pytest.MonkeyPatch, step: str, failure: BaseException
) -> None:
    script, faults = STEPS[step]
    for owner, name, times in faults:
        fail(monkeypatch, owner, name, failure, times)
    journal = MemoryJournal()
    run = agent.run(script, journal=journal)
    result = await read(run, cancel=script == HALF)
    assert result.finish_reason == "error"
    stored = journal.last.ended if journal.last else None
    unsaved = "could not be saved" in result.note.detail
    assert stored == "error" or unsaved or step == "publishing" or not run._messages.begun
    monkeypatch.undo()
    assert (await agent.ask("!text Again.", context=result.context)).text == "Again."


@pytest.mark.parametrize(
    "failure", [*FAILURES, Conflict("It was changed elsewhere.")], ids=lambda one: type(one).__name__
)
@pytest.mark.parametrize("script", [TEXT, HALF, ASK], ids=["answer", "half", "question"])
async def test_failing_write_says_it_was_not_saved(agent: Agent, script: str, failure: BaseException) -> None:
    result = await read(agent.run(script, journal=MemoryJournal(failure)), cancel=script == HALF)
    assert (result.finish_reason, result.suspension, result.pending) == ("error", None, ())
    assert result.note.detail.startswith("This answer could not be saved: ")
    assert Translator("de")(result.note.detail).startswith("Diese Antwort konnte nicht gespeichert werden: ")
    assert (await agent.ask("!text Again.", context=result.context)).text == "Again."


async def test_failing_seal_ends_with_error(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    fail(monkeypatch, Seals, "seal", RuntimeError("injected"), ALWAYS)
    result = await read(agent.run(ASK, journal=MemoryJournal()))
    assert (result.finish_reason, result.suspension) == ("error", None)


@pytest.mark.parametrize("failure", [*FAILURES, SystemExit(1)], ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("kind", [RunStarted, ResponseEmitted, RunEnded], ids=lambda one: one.__name__)
async def test_observer_cannot_break_a_run(agent: Agent, kind: type, failure: BaseException) -> None:
    failing, other = Watcher(kind, failure), Watcher(Odd, failure)
    run = agent.run(TEXT)
    for observer in (failing, other):
        run.observers.add(observer)
    result = await read(run)
    assert (result.finish_reason, result.text) == ("stop", "Hello.")
    assert [type(event) for event in failing.events].count(kind) == 1, "it received more events"
    assert isinstance(other.events[-1], RunEnded)


class Broken:
    """Tools that fail to close."""

    name = "broken"

    def __init__(self, failure: BaseException) -> None:
        self._failure = failure

    @asynccontextmanager
    async def session(self) -> AsyncIterator[list[Tool]]:
        yield []
        raise self._failure


@pytest.mark.parametrize("failure", FAILURES, ids=lambda one: type(one).__name__)
async def test_failing_close_changes_nothing(agent: Agent, failure: BaseException) -> None:
    result = await read(Agent(agent.connection, tools=[Broken(failure)]).run(TEXT))
    assert (result.finish_reason, result.text) == ("stop", "Hello.")


# --- tasks cancelled by others ----------------------------------------------------------------------------------------


def others() -> set["asyncio.Task[Any]"]:
    return asyncio.all_tasks() - {task for task in [asyncio.current_task()] if task}


async def test_run_whose_task_never_ran_has_a_result(agent: Agent) -> None:
    before = others()
    run = agent.run(TEXT).start()
    for task in others() - before:
        task.cancel()
    async with asyncio.timeout(60):
        result = await run
    assert (result.finish_reason, [one.type for one in run.responses]) == ("error", ["error"])


@pytest.mark.parametrize("ticks", range(8))
async def test_ending_survives_cancellation_of_all_tasks(agent: Agent, ticks: int) -> None:
    """All tasks are cancelled during the last write, as at the end of a program."""
    before, writing = others(), asyncio.Event()

    class Slow(MemoryJournal):
        async def write(self, message: ModelMessage, note: Note) -> None:
            if note.ended:
                writing.set()
                await asyncio.sleep(0.2)
            await super().write(message, note)

    journal = Slow()
    run = agent.run(TEXT, journal=journal).start()
    await writing.wait()
    for _ in range(ticks):
        await asyncio.sleep(0)
    for task in others() - before:
        task.cancel()
    async with asyncio.timeout(60):
        result = await run
    if journal.last is None or journal.last.ended is None:
        assert result.finish_reason == "error"
        assert "could not be saved" in result.note.detail
    else:
        assert result.finish_reason == journal.last.ended


async def test_table_forgets_run_with_unstarted_watcher(agent: Agent) -> None:
    before, table = others(), LiveRuns(60.0)
    table.start(agent.run(TEXT), unstored())
    for task in others() - before:
        task.cancel()
    async with asyncio.timeout(60):
        await free(table)


async def test_table_forgets_run_that_cannot_close(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LiveRun, "cancel_timer", lambda _: 1 / 0)
    table = LiveRuns(60.0)
    run = table.start(agent.run(TEXT), unstored()).run
    await run
    async with asyncio.timeout(60):
        await free(table)


@pytest.mark.parametrize("failure", [InputError("no"), RuntimeError("injected")], ids=["refused", "broken"])
async def test_run_that_never_wrote_wakes_the_sender(agent: Agent, failure: Exception) -> None:
    async def prepare(_: list[ModelMessage]) -> list[ModelMessage]:
        raise failure

    run = agent.run(TEXT)
    object.__setattr__(run._plan, "prepare", prepare)
    journal = StoreJournal(MemoryStore(), MediaStore(Path("nowhere")), Conversation(owner="alice"), Omitted())
    LiveRuns(60.0).start(run, journal)
    with pytest.raises(AgentError):
        await asyncio.wait_for(journal.wait_for_first_write(run), 60)
    journal.first_write.cancel()


# --- reasons ----------------------------------------------------------------------------------------------------------

REASONS = {
    "user_request": "Stopped.",
    "": "Stopped.",
    "shutdown": "Stopped because the server was shut down.",
    "The visitor chose another model.": "Stopped: The visitor chose another model.",
    "{why} {0} %s\n in two lines": "Stopped: {why} {0} %s in two lines.",
    "x" * 10_000: "Stopped: " + "x" * (LONGEST_REASON - 1) + "….",
    "half \ud83d": "Stopped: half \ufffd.",
}


@pytest.mark.parametrize("reason", REASONS, ids=lambda one: one[:20] or "empty")
@pytest.mark.parametrize("when", ["before", "in the middle"])
async def test_any_reason_is_in_receipt(agent: Agent, reason: str, when: str) -> None:
    journal = MemoryJournal()
    run = agent.run(HALF, journal=journal)
    if when != "before":
        run.start()
        while not run.responses:
            await run.wait_for_update(len(run.responses))
    run.cancel(reason)
    result = await read(run)
    assert result.finish_reason == "cancelled"
    assert result.note.detail == REASONS[reason]
    assert journal.last == result.note
    assert Translator("de")(result.note.detail).startswith("Angehalten")
