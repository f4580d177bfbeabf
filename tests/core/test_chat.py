"""A chat keeps one conversation: in scripts, in running loops and across loops, with its actions and its refusals."""

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image as Pillow

from agent import (
    Agent,
    AgentError,
    Approve,
    Busy,
    Chat,
    Context,
    Endpoint,
    Image,
    InputError,
    Refuse,
    SingleRun,
    Tool,
    connect,
    tool,
)
from agent.settings import ROOT
from tests.support.message_rules import assert_accepted
from tests.support.models import QWEN3
from tests.support.scripted_server import Running


@pytest.fixture
def agent(server: Running) -> Agent:
    return Agent(connect(QWEN3, Endpoint(server.base_url)), system_message="Be brief.")


@pytest.fixture
def chat(agent: Agent) -> Iterator[Chat]:
    with Chat(agent) as chat:
        yield chat


def text(responses: Iterator[Any]) -> str:
    return "".join(response.content for response in responses if response.type == "output_text")


def said(chat: Chat) -> list[Any]:
    return [message["content"] for message in chat.messages]


def going(chat: Chat) -> None:
    """Wait until the chat's run has its first response."""
    until = time.monotonic() + 60
    while not chat._run or not chat._run.responses:
        assert time.monotonic() < until
        time.sleep(0.005)


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "chat"]


# --- where it works ---------------------------------------------------------------------------------------------------


def test_script_continues_one_conversation(chat: Chat, server: Running) -> None:
    assert text(chat.query("!text One.")) == "One."
    first = chat.result
    responses = list(chat.query(["!reasoning Hm. !text Two."], reasoning=True))
    assert [(one.type, one.is_type_switched) for one in responses if one.is_type_switched] == [
        ("reasoning", True),
        ("output_text", True),
    ]
    assert first is not None
    assert chat.result is not None
    assert first.note.run_id != chat.result.note.run_id, "each run has its own id"
    assert said(chat) == [
        "Be brief.",
        "!text One.",
        "One.",
        [{"type": "text", "text": "!reasoning Hm. !text Two."}],
        "Two.",
    ]
    body = server.journal()[-1]["body"]["messages"]
    assert_accepted(body)
    assert len(body) == 4


def test_say_returns_one_answer(chat: Chat) -> None:
    result = chat.say("!reasoning Hm. !text One.", reasoning=True)
    assert (result.text, result.finish_reason, result) == ("One.", "stop", chat.result)
    assert chat.say("!status 400").failed
    with pytest.raises(InputError):
        chat.say("")
    assert [chat.say("!text Two.").text, said(chat)[-1]] == ["Two.", "Two."]
    chat.close()
    with pytest.raises(AgentError, match="closed"):
        chat.say("!text No.")


async def test_notebook_asks_inside_running_loop(agent: Agent) -> None:
    with Chat(agent) as chat:
        assert text(chat.query("!text One.")) == "One.", "this runs in the thread of a running loop"
        assert "".join([str(one.content) async for one in chat.stream("!text Two.")]) == "Two."
        assert (await chat.ask("!text Three.")).text == "Three."
        assert said(chat)[1:] == ["!text One.", "One.", "!text Two.", "Two.", "!text Three.", "Three."]


def test_prompts_of_every_shape(server: Running) -> None:
    chat = Chat(Agent(connect(replace(QWEN3, image=True), Endpoint(server.base_url)), system_message="Be brief."))
    picture = Pillow.new("RGB", (2, 2), "blue")
    assert picture.format is None
    url = {"type": "image_url", "image_url": {"url": Image.from_pillow(picture).data_uri}}
    prompts: list[Any] = [
        "!text Yes.",
        ["!text Yes.", "Look."],
        ["!text Yes.", picture],
        [{"type": "text", "text": "!text Yes."}, url],
        [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hm?"}, "!text Yes.", picture],
        {"role": "user", "content": "!text Yes."},
    ]
    for prompt in prompts:
        assert text(chat.query(prompt)).startswith("Yes.")
        chat.clear()
        assert chat.messages == [{"role": "system", "content": "Be brief."}], "the system message stays"
        assert_accepted(server.journal()[-1]["body"]["messages"])
    chat.close()


@pytest.mark.parametrize("prompt", ["", [], [3], [{"type": "video"}], {"role": "cook"}])
def test_refused_prompt_changes_nothing(chat: Chat, server: Running, prompt: Any) -> None:
    seen = len(server.journal())
    with pytest.raises(InputError):
        list(chat.query(prompt))
    assert len(server.journal()) == seen
    assert text(chat.query("!text Yes.")) == "Yes."
    assert said(chat) == ["Be brief.", "!text Yes.", "Yes."]


def test_context_is_continued_and_handed_on(agent: Agent, chat: Chat) -> None:
    list(chat.query("!text One."))
    copy = Context.from_json(chat.context.to_json())
    with Chat(agent, context=copy) as other:
        list(other.query("!text Two."))
        assert said(other) == ["Be brief.", "!text One.", "One.", "!text Two.", "Two."]
        assert other.context.session_id == chat.context.session_id
    assert len(chat.messages) == 3


# --- actions ----------------------------------------------------------------------------------------------------------


@tool
def quick() -> str:
    """Quick."""
    return "quick"


@pytest.mark.parametrize(
    ("script", "ending", "kept"),
    [
        ("!text Yes.", "stop", "Yes."),
        ("!length 2", "length", "## word0 word1 "),
        ("!filter 2", "content_filter", "## word0 word1 "),
        ("!loop quick {}", "limit", ""),
        ("!cut 2", "error", None),
        ("!status 400", "error", None),
        ("!tool quick {} !cut 2", "error", None),
    ],
)
def test_conversation_advances_unless_run_fails(server: Running, script: str, ending: str, kept: str | None) -> None:
    with Chat(Agent(connect(QWEN3, Endpoint(server.base_url)), tools=[quick])) as chat:
        list(chat.query("!text Before."))
        before = chat.context
        responses = list(chat.query(script))
        assert chat.result is not None
        assert chat.result.finish_reason == ending
        assert (responses[-1].type == "error") == (ending in ("error", "limit"))
        assert (chat.context == before) == (kept is None), "an error restores the last good state"
        if kept is not None:
            assert said(chat)[-1] == kept
        assert text(chat.query("!text After.")) == "After."
        assert_accepted(server.journal()[-1]["body"]["messages"])


def test_leaving_early_cancels_and_keeps_text(chat: Chat, server: Running) -> None:
    seen = len(server.journal())
    answer = chat.query("!tokens 9000 @200")
    next(answer)
    answer.close()  # type: ignore[attr-defined]
    server.wait_for(lambda lines: lines[seen:] and lines[seen]["closed"])
    assert chat.result is not None
    assert (chat.result.finish_reason, chat.result.note.detail) == ("cancelled", "Stopped: the reader went away.")
    assert said(chat)[-1].startswith("## word0"), "the partial answer stays"
    assert text(chat.query("!text Yes.")) == "Yes."


async def test_leaving_async_stream_early_cancels(agent: Agent) -> None:
    async with Chat(agent) as chat:
        stream = chat.stream("!stall-after 3")
        async for _ in stream:
            break
        await stream.aclose()  # type: ignore[attr-defined]
        assert said(chat)[-1].startswith("##")
        task = asyncio.create_task(chat.ask("!stall-after 3"))
        await asyncio.to_thread(going, chat)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert chat.result is not None
        assert chat.result.finish_reason == "cancelled"
        assert (await chat.ask("!text Yes.")).text == "Yes."


@pytest.mark.parametrize("store", [None, "sqlite:///chats.db"], ids=["unstored", "stored"])
@pytest.mark.parametrize("is_running", [False, True], ids=["between runs", "during a run"])
def test_forked_chat_begins_afresh(
    agent: Agent, store: str | None, is_running: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with Chat(agent, store=store) as chat:
        chat.say("!text One.")
        answer = chat.query("!tokens 9000 @200") if is_running else iter(())
        if is_running:
            next(answer)
        child = os.fork()
        if child == 0:  # nothing may leave this block, because it would go on with the tests
            with suppress(BaseException):
                signal.alarm(20)
                result = chat.say("!text Two.")
                chat.close()
                os._exit(0 if result.text == "Two." and "One." in str(result.context) else 1)
            os._exit(2)
        assert os.waitpid(child, 0)[1] == 0
        if is_running:
            next(answer)
            chat.cancel()
            list(answer)
        else:
            assert chat.say("!text Three.").text == "Three."


def test_cancel_works_from_any_thread(chat: Chat) -> None:
    responses = []
    for response in chat.query("!stall-after 3"):
        responses.append(response)
        if len(responses) == 1:
            thread = threading.Thread(target=chat.cancel)
            thread.start()
            thread.join()
    assert chat.result is not None
    assert (chat.result.finish_reason, chat.result.note.detail) == ("cancelled", "Stopped.")
    chat.cancel()  # no run is active


# --- refusals ---------------------------------------------------------------------------------------------------------


async def test_second_concurrent_run_is_refused(agent: Agent, server: Running) -> None:
    async with Chat(agent) as chat:
        first = asyncio.create_task(chat.ask("!stall-after 3"))
        await asyncio.to_thread(going, chat)
        seen = len(server.journal())
        with pytest.raises(Busy, match="queue=True"):
            await chat.ask("!text No.")
        with pytest.raises(Busy):
            next(iter(chat.query("!text No.")))
        with pytest.raises(Busy):
            chat.clear()
        chat.cancel()
        await first
        assert [line["body"]["messages"][-1]["content"] for line in server.journal()[seen:]] in ([], ["!stall-after 3"])
        assert (await chat.ask("!text Yes.")).text == "Yes."


async def test_runs_queue_in_order(agent: Agent) -> None:
    async with Chat(agent, queue=True) as chat:
        numbers = range(8)
        results = await asyncio.gather(*(chat.ask(f"!text {number}.") for number in numbers))
        assert [result.text for result in results] == [f"{number}." for number in numbers], "each call has its answer"
        assert said(chat)[2::2] == [f"{number}." for number in numbers], "each run continued the one before"


@pytest.mark.parametrize("name", ["single_run", "enforce_single_run"])
def test_single_run_refuses_a_second(agent: Agent, server: Running, name: str) -> None:
    with Chat(agent, **{name: True}) as chat:
        with pytest.raises(InputError):
            list(chat.query(""))
        assert text(chat.query("!text One.")) == "One.", "a run that never started does not count"
        seen, before = len(server.journal()), chat.context
        with pytest.raises(SingleRun, match="Make another Chat"):
            list(chat.query("!text Two."))
        assert (len(server.journal()), chat.context) == (seen, before)


def test_tool_cannot_wait_for_its_own_chat(server: Running) -> None:
    async def nested() -> str:
        """Ask the chat that asks."""
        return text(chat.query("!text Deep."))

    with Chat(Agent(connect(QWEN3, Endpoint(server.base_url)), tools=[nested])) as chat:
        results = [one.content for one in chat.query("!tool nested {} !text Done.") if one.type == "tool_call_result"]
        assert results[0]["is_error"]
        assert "cannot wait" in results[0]["content"]


@tool(needs_approval=True)
def delete(name: str) -> str:
    """Delete it."""
    return f"{name} is gone"


async def test_suspended_single_run_is_resumed(server: Running) -> None:
    script = '!tool delete {"name": "x"} !text Done.'
    async with Chat(Agent(connect(QWEN3, Endpoint(server.base_url)), tools=[delete]), enforce_single_run=True) as chat:
        first = await chat.ask(script)
        assert first.finish_reason == "suspended"
        with pytest.raises(SingleRun):
            await chat.ask("!text Another.")
        with pytest.raises(InputError):
            [_ async for _ in chat.stream_resume({"nobody": Approve()})]
        rest = [one async for one in chat.stream_resume({first.pending[0].call_id: Approve()})]
        assert rest[0].content["content"] == "x is gone"  # type: ignore[index]
        assert said(chat)[-1] == "Done."
        with pytest.raises(SingleRun):
            await chat.ask("!text No.")


def test_suspended_chat_takes_another_prompt(server: Running) -> None:
    with Chat(Agent(connect(QWEN3, Endpoint(server.base_url)), tools=[delete])) as chat:
        with pytest.raises(InputError, match="nothing"):
            list(chat.resume("Yes."))
        list(chat.query('!tool delete {"name": "x"}'))
        assert chat.result is not None
        call = chat.result.pending[0].call_id
        assert text(chat.query("!text Other.")) == "Other."
        assert_accepted(server.journal()[-1]["body"]["messages"])
        with pytest.raises(InputError, match="nothing"):
            list(chat.resume({call: Refuse("No.")}))


# --- opening and closing ----------------------------------------------------------------------------------------------


class Counting:
    """A toolset that counts its sessions and records the loop of each."""

    name = "counting"

    def __init__(self, *, broken: bool = False) -> None:
        self.opened = self.closed = 0
        self.loops: set[int] = set()
        self.broken = broken

    @asynccontextmanager
    async def session(self) -> AsyncGenerator[Sequence[Tool]]:
        if self.broken:
            raise AgentError("The counter is out of order.")
        self.opened += 1
        self.loops.add(id(asyncio.get_running_loop()))

        async def count() -> int:
            """Count."""
            self.loops.add(id(asyncio.get_running_loop()))
            return self.opened

        yield [tool(count)]
        self.closed += 1


def test_tool_sessions_live_as_long_as_chat(server: Running) -> None:
    toolset = Counting()
    with Chat(Agent(connect(QWEN3, Endpoint(server.base_url)), tools=[quick, toolset])) as chat:
        assert toolset.opened == 0, "nothing opens before the first run"
        assert "1" in text(chat.query("!tool count {}"))
        assert "1" in asyncio.run(chat.ask("!tool count {}")).text
        assert (toolset.opened, toolset.closed, len(toolset.loops)) == (1, 0, 1)
    assert (toolset.opened, toolset.closed) == (1, 1)
    assert len(server.journal()[-1]["body"]["tools"]) == 2


def test_failed_toolset_ends_run_not_chat(server: Running) -> None:
    toolset = Counting(broken=True)
    with Chat(Agent(connect(QWEN3, Endpoint(server.base_url)), tools=[toolset])) as chat:
        [error] = chat.query("!tool count {}")
        assert (error.type, error.content) == ("error", "The counter is out of order.")
        toolset.broken = False
        assert "1" in text(chat.query("!tool count {}"))


@pytest.mark.parametrize("how", ["close", "aclose", "with", "forgotten"])
def test_thread_ends_with_chat(agent: Agent, how: str) -> None:
    assert threads() == []
    chat = Chat(agent)
    assert threads() == [], "no thread starts before it is needed"
    list(chat.query("!text Yes."))
    assert threads() == ["chat"]
    if how == "forgotten":
        there = weakref.ref(chat)
        del chat
        gc.collect()
        assert there() is None
    else:
        ways: dict[str, Callable[[], Any]] = {
            "close": chat.close,
            "aclose": lambda: asyncio.run(chat.aclose()),
            "with": lambda: chat.__exit__(None, None, None),
        }
        ways[how]()
        ways[how]()
        assert said(chat)[-1] == "Yes.", "a closed chat is still readable"
        with pytest.raises(AgentError, match="closed"):
            next(iter(chat.query("!text No.")))
    assert threads() == []


def test_close_ends_running_run(agent: Agent) -> None:
    chat = Chat(agent)
    answer = chat.query("!stall-after 3")
    next(answer)
    closing = threading.Thread(target=chat.close)
    closing.start()
    assert list(answer) == [] or chat.result is not None
    closing.join(10)
    assert not closing.is_alive()
    assert chat.result is not None
    assert chat.result.finish_reason == "cancelled"


@pytest.mark.slow
def test_open_chat_lets_program_exit(server: Running) -> None:
    script = f"""
from agent import Agent, Chat
chat = Chat(Agent("Qwen/Qwen3-8B", provider="vllm", base_url={server.base_url!r}))
print("".join(str(one.content) for one in chat.query("!text Yes.")))
half = chat.query("!stall-after 2")
next(half)
"""
    ended = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "Yes.\n", "")
