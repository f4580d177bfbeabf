"""Chats whose run waits, for people or at a limit: reopened by their id, resumed once, or given up for a new prompt."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from agent import Agent, Approve, Chat, Endpoint, InputError, Limits, SuspensionError, Tool, connect, tool
from agent.errors import Conflict
from agent.tools.function_tools import ask_user
from tests.support import stored_chats
from tests.support.message_rules import assert_accepted
from tests.support.models import QWEN3, SMALL
from tests.support.scripted_server import Running
from tests.support.stored_chats import ALL, ID, ONE, SHARED, start_program

url = stored_chats.url
CALLS: list[int] = []


@tool
def look(x: int) -> str:
    """Look."""
    CALLS.append(x)
    return f"seen {x}"


@tool(needs_approval=True)
def delete(name: str) -> str:
    """Delete it."""
    CALLS.append(len(name))
    return f"{name} is gone"


LOOKS = '!tool look {"x": 1} !text Done.'
MORE = '!tool look {"x": 2} !text Done.'
"""What the user answers at a limit: the model gets it as a message."""
WAITS = {
    "steps": (Limits(steps=1, interactive=True), LOOKS, "Stopped after 1 steps"),
    "time": (Limits(seconds=0.3, interactive=True), "!text Well. !stall-after 2", "Stopped after 0.3 s"),
    "tokens": (Limits(tokens=5, interactive=True), LOOKS, "the limit of 5 tokens"),
    "question": (Limits(), '!tool ask_user {"question": "Which one?"} !text Done.', "Which one?"),
    "approval": (Limits(), '!tool delete {"name": "x"} !text Done.', ""),
}
"""Limits and a script of a run that waits, and the beginning of the question."""


@pytest.fixture
def open_chat(server: Running, url: str) -> Iterator[Callable[..., Chat]]:
    """Return a function that opens the chat of the test."""
    opened: list[Chat] = []
    CALLS.clear()

    def open_(limits: Limits | None = None, tools: Sequence[Any] = (look, delete, ask_user), spec: Any = QWEN3) -> Chat:
        agent = Agent(connect(spec, Endpoint(server.base_url)), tools=tools, limits=limits)
        opened.append(Chat(agent, store=url, id=ID))
        return opened[-1]

    yield open_
    for chat in opened:
        chat.close()


def suspend(open_chat: Callable[..., Chat], kind: str, **options: Any) -> tuple[Chat, Callable[..., Chat]]:
    """Return a chat whose run waits in this way, and a function that opens the same chat with its limits."""
    limits, script, question = WAITS[kind]
    first = open_chat(limits)
    assert first.say(script, **options).finish_reason == "suspended"
    [pending] = first.pending
    assert question in pending.question
    return first, partial(open_chat, limits)


def reply(chat: Chat) -> Any:
    [pending] = chat.pending
    return Approve() if pending.kind == "approval" else MORE


# --- resumed ----------------------------------------------------------------------------------------------------------


@ALL
@pytest.mark.parametrize("kind", ["steps", "question", "approval"])
def test_waiting_chat_is_resumed_by_its_id(open_chat: Callable[..., Chat], server: Running, kind: str) -> None:
    first, reopen = suspend(open_chat, kind, max_tokens=77)
    first.close()
    other, late = reopen(), reopen()
    assert list(other.pending) == list(late.pending) == list(first.pending)
    list(other.resume(reply(other)))
    assert server.journal()[-1]["body"]["max_completion_tokens"] == 77, (
        "the options of the run are those of its beginning"
    )
    assert_accepted(server.journal()[-1]["body"]["messages"])
    if kind == "steps":  # one more step is allowed, not any number
        assert [one.name for one in other.pending] == ["steps"]
        assert [one.content for one in reopen().resume("!text Done.")][-1] == "Done."
        assert CALLS == [1, 2]
        assert reopen().messages[-1]["content"] == "Done."
    assert reopen().pending == ()
    with pytest.raises(Conflict, match="was answered elsewhere"):
        list(late.resume(reply(late)))


@pytest.mark.parametrize("kind", WAITS)
def test_every_kind_of_waiting_survives(open_chat: Callable[..., Chat], server: Running, kind: str) -> None:
    first, reopen = suspend(open_chat, kind)
    other = reopen()
    assert list(other.pending) == list(first.pending)
    seen = len(server.journal())
    list(other.resume(reply(other)))
    assert len(server.journal()) > seen
    assert_accepted(server.journal()[-1]["body"]["messages"])


def test_stop_at_a_limit_ends_the_run(open_chat: Callable[..., Chat]) -> None:
    _, reopen = suspend(open_chat, "steps")
    other = reopen()
    assert [one.type for one in other.resume("Stop")] == ["error"]
    assert other.result is not None
    assert other.result.finish_reason == "limit"
    assert reopen().pending == ()


# --- once -------------------------------------------------------------------------------------------------------------


class Meeting:
    """A toolset without tools. Its sessions open when both chats have loaded what is stored."""

    name = "meeting"

    def __init__(self) -> None:
        self.both = threading.Barrier(2)

    @asynccontextmanager
    async def session(self) -> AsyncGenerator[Sequence[Tool]]:

        await asyncio.to_thread(self.both.wait, 30)
        yield []


@ALL
@pytest.mark.parametrize(("kind", "calls"), [("steps", [1, 2]), ("approval", [1])])
def test_one_of_two_resumes_at_once_wins(open_chat: Callable[..., Chat], kind: str, calls: list[int]) -> None:
    _, reopen = suspend(open_chat, kind)
    meeting, results = Meeting(), list[Any]()

    def resume(chat: Chat) -> None:
        try:
            results.append([one.type for one in chat.resume(reply(chat))])
        except Conflict as refused:
            results.append(refused)

    chats = [reopen([look, delete, ask_user, meeting]) for _ in range(2)]
    threads = [threading.Thread(target=resume, args=[chat]) for chat in chats]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(map(type, results), key=str) == [Conflict, list]
    assert calls == CALLS, "the call was made once"


RACER = """
chat.pending
print("ready", flush=True)
input()
try:
    print([one.type for one in chat.resume(Approve())][-1])
except InputError as error:
    print("late" if "nothing in this chat waits" in str(error) else error)
except Conflict:
    print("late")
"""


@ONE
@pytest.mark.slow
def test_one_of_two_processes_wins(open_chat: Callable[..., Chat], server: Running, url: str, tmp_path: Path) -> None:
    made = tmp_path / "calls"
    before = f"""
from agent import Approve, InputError
from agent.errors import Conflict
@tool(needs_approval=True)
def delete(name: str) -> str:
    "Delete it."
    with open({str(made)!r}, "a") as file:
        file.write(name)
    return "gone"
"""
    assert open_chat(tools=[delete]).say('!tool delete {"name": "x"} !text Done.').finish_reason == "suspended"
    programs = [start_program(server, url, RACER, before=before, options="tools=[delete]") for _ in range(2)]
    for program in programs:
        assert program.stdout
        assert program.stdout.readline() == "ready\n"
    for program in programs:
        assert program.stdin
        program.stdin.write("\n")
        program.stdin.flush()
    assert sorted(program.communicate(timeout=60)[0] for program in programs) == ["late\n", "output_text\n"]
    assert made.read_text() == "x"


@SHARED
@pytest.mark.slow
def test_killed_resumption_is_not_repeated(open_chat: Callable[..., Chat], server: Running, url: str) -> None:
    before = """
from agent import Approve
import time
@tool(needs_approval=True)
async def delete(name: str) -> str:
    "Delete it."
    print("deleting", flush=True)
    time.sleep(600)
"""
    assert open_chat(tools=[delete]).say('!tool delete {"name": "x"} !text Done.').finish_reason == "suspended"
    program = start_program(server, url, "list(chat.resume(Approve()))", before=before, options="tools=[delete]")
    assert program.stdout
    assert program.stdout.readline() == "deleting\n"
    program.kill()
    program.communicate()
    chat = open_chat(tools=[delete])
    assert chat.pending == ()
    with pytest.raises(InputError, match="nothing in this chat waits"):
        list(chat.resume(Approve()))
    assert chat.say("!text On.").text == "On."
    assert_accepted(server.journal()[-1]["body"]["messages"])
    assert CALLS == []


def test_sealed_text_and_chat_share_the_ledger(open_chat: Callable[..., Chat]) -> None:
    first, reopen = suspend(open_chat, "approval")
    assert first.result is not None
    sealed = first.result
    other = reopen()
    list(other.resume(Approve()))

    async def resume() -> None:
        await first.agent.resume(sealed, Approve())

    with pytest.raises(SuspensionError) as used:
        asyncio.run(resume())
    assert used.value.reason == "used"
    assert CALLS == [1]


# --- refused and given up ---------------------------------------------------------------------------------------------


@ALL
def test_refused_resumption_uses_nothing_up(open_chat: Callable[..., Chat]) -> None:
    _, reopen = suspend(open_chat, "approval")
    for other, reason in ((open_chat(tools=[look, delete]), "tools"), (open_chat(spec=SMALL), "model")):
        with pytest.raises(SuspensionError) as refused:
            list(other.resume(Approve()))
        assert refused.value.reason == reason
        assert len(other.pending) == len(reopen().pending) == 1
    with pytest.raises(InputError, match="Approve"):
        list(reopen().resume("Go on"))
    changed = open_chat(tools=[look, delete])
    assert [one.content for one in changed.resume(Approve(), changed_ok=True)][-1] == "Done."
    assert CALLS == [1]


@ALL
@pytest.mark.parametrize("kind", ["steps", "approval"])
def test_new_prompt_gives_up_what_waits(open_chat: Callable[..., Chat], server: Running, kind: str) -> None:
    first, reopen = suspend(open_chat, kind)
    calls = [*CALLS]
    other = reopen()
    assert other.say("!text Other.").text == "Other."
    assert_accepted(server.journal()[-1]["body"]["messages"])
    assert (other.pending, reopen().pending, CALLS) == ((), (), calls)
    with pytest.raises(Conflict):  # it has seen the question
        list(first.resume("Go on"))
    for late in (first, other, reopen()):
        with pytest.raises(InputError, match="nothing in this chat waits"):
            list(late.resume("Go on"))
    assert calls == CALLS


def test_new_prompt_that_fails_gives_up_too(open_chat: Callable[..., Chat]) -> None:
    _, reopen = suspend(open_chat, "steps")
    other = reopen()
    assert other.say("!status 400").finish_reason == "error"
    assert other.pending == reopen().pending == ()


def test_refused_prompt_gives_up_nothing(open_chat: Callable[..., Chat]) -> None:
    _, reopen = suspend(open_chat, "steps")
    other = reopen()
    with pytest.raises(InputError):
        other.say("")
    assert len(other.pending) == len(reopen().pending) == 1


def test_version_that_is_not_known_is_refused(open_chat: Callable[..., Chat], monkeypatch: pytest.MonkeyPatch) -> None:
    _, reopen = suspend(open_chat, "steps")
    monkeypatch.setattr("agent.suspension.seals.SCHEMA", 2)
    other = reopen()
    assert other.messages
    with pytest.raises(SuspensionError) as refused:
        list(other.resume("Go on"))
    assert refused.value.reason == "schema"
