"""Chats with a store and an id: continued by that id, also in another process, and never overwritten by each other."""

import asyncio
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from agent import Agent, Approve, Chat, Endpoint, InputError, connect, tool
from agent.errors import Conflict, HistoryError, StoreUnavailable
from agent.history import PROGRAM, Conversation, HistoryStore, open_store
from tests.conftest import becomes
from tests.support import stored_chats
from tests.support.message_rules import assert_accepted
from tests.support.models import QWEN3
from tests.support.scripted_server import Running
from tests.support.stored_chats import ALL, ID, SHARED, start_program

url = stored_chats.url
DELETED: list[str] = []


@tool(needs_approval=True)
def delete(name: str) -> str:
    """Delete it."""
    DELETED.append(name)
    return f"{name} is gone"


@pytest.fixture
def open_chat(server: Running, url: str) -> Iterator[Callable[..., Chat]]:
    """Return a function that opens a chat with the store of the test."""
    opened: list[Chat] = []
    DELETED.clear()

    def open_(id_: str = ID, tools: Sequence[Any] = (delete,)) -> Chat:
        agent = Agent(connect(QWEN3, Endpoint(server.base_url)), system_message="Be brief.", tools=tools)
        opened.append(Chat(agent, store=url, id=id_))
        return opened[-1]

    yield open_
    for chat in opened:
        chat.close()


def said(chat: Chat) -> list[Any]:
    return [message["content"] for message in chat.messages[1:]]


def in_store(url: str, work: Callable[[HistoryStore], Any]) -> Any:
    """Return what `work` finds in the store, opened on its own."""

    async def look() -> Any:
        store = await open_store(url, folder=Path())
        try:
            return await work(store)
        finally:
            await store.aclose()

    return asyncio.run(look())


# --- continued --------------------------------------------------------------------------------------------------------


@ALL
def test_chat_is_continued_by_its_id(open_chat: Callable[..., Chat], server: Running) -> None:
    first = open_chat()
    assert (first.id, said(first)) == (ID, [])
    assert first.say("!text One.").text == "One."
    first.close()
    other = open_chat()
    assert said(other) == ["!text One.", "One."]
    assert other.say("!text Two.").text == "Two."
    body = server.journal()[-1]["body"]["messages"]
    assert [message["content"] for message in body] == ["Be brief.", "!text One.", "One.", "!text Two."]
    assert said(open_chat()) == ["!text One.", "One.", "!text Two.", "Two."]
    assert said(open_chat("customer-43")) == [], "another id is another conversation"


@SHARED
@pytest.mark.slow
def test_another_process_continues_chat(open_chat: Callable[..., Chat], server: Running, url: str) -> None:
    open_chat().say("!text One.")
    program = start_program(server, url, "print(chat.say('!text Two.').text, len(chat.messages))")  # it never closes
    assert program.communicate(timeout=60)[0] == "Two. 4\n"
    assert program.returncode == 0
    assert said(open_chat()) == ["!text One.", "One.", "!text Two.", "Two."]


@SHARED
@pytest.mark.slow
def test_killed_process_loses_only_running_turn(open_chat: Callable[..., Chat], server: Running, url: str) -> None:
    seen = len(server.journal())
    program = start_program(server, url, "chat.say('!text One.')\nchat.say('!stall-after 3')")
    server.wait_for(lambda lines: len(lines) == seen + 2, 60.0)
    program.kill()
    program.communicate()
    chat = open_chat()
    assert said(chat) == ["!text One.", "One.", "!stall-after 3"], "the prompt was stored before the model was asked"
    assert chat.say("!text Three.").text == "Three."
    assert_accepted(server.journal()[-1]["body"]["messages"])
    assert said(open_chat())[-1] == "Three."


def test_chat_without_id_gets_one(server: Running, url: str) -> None:
    with Chat(Agent(connect(QWEN3, Endpoint(server.base_url))), store=url) as chat:
        assert chat.say("!text One.").text == "One."
    with Chat(Agent(connect(QWEN3, Endpoint(server.base_url))), store=url, id=chat.id) as other:
        assert [message["content"] for message in other.messages] == ["!text One.", "One."]


def test_failed_run_is_left_out_everywhere(open_chat: Callable[..., Chat], server: Running) -> None:
    chat = open_chat()
    chat.say("!text One.")
    assert chat.say("!cut 2").finish_reason == "error"
    other = open_chat()
    assert said(chat) == said(other) == ["!text One.", "One."]
    chat.say("!text Two.")
    assert said(open_chat()) == ["!text One.", "One.", "!text Two.", "Two."]
    other.say("!text Three.")
    assert said(open_chat())[2:] == ["!text Two.", "Two.", "!text Three.", "Three."]
    assert_accepted(server.journal()[-1]["body"]["messages"])


# --- several at once --------------------------------------------------------------------------------------------------


@ALL
def test_chats_of_one_id_take_turns(open_chat: Callable[..., Chat]) -> None:
    chats = [open_chat(), open_chat()]
    for number in range(4):
        assert chats[number % 2].say(f"!text {number}.").text == f"{number}."
    assert said(open_chat())[1::2] == ["0.", "1.", "2.", "3."]
    assert said(chats[1]) == said(open_chat())


@ALL
def test_running_chat_is_not_overwritten(open_chat: Callable[..., Chat]) -> None:
    slow, quick = open_chat(), open_chat()
    slow.say("!text One.")
    answer = slow.query("!stall-after 3")
    next(answer)
    assert quick.say("!text Two.").text == "Two."
    slow.cancel()
    responses = list(answer)
    assert slow.result is not None
    assert isinstance(slow.result.failure, Conflict)
    assert "was continued elsewhere meanwhile" in str(responses[-1].content)
    assert said(open_chat()) == ["!text One.", "One.", "!stall-after 3", "!text Two.", "Two."]
    assert slow.say("!text Three.").text == "Three."
    assert said(open_chat())[-3:] == ["Two.", "!text Three.", "Three."]


@ALL
def test_new_chats_of_one_id_do_not_overwrite(open_chat: Callable[..., Chat]) -> None:
    chats = [open_chat() for _ in range(4)]
    together = threading.Barrier(len(chats))
    results: list[Any] = []

    def say(chat: Chat) -> None:
        assert chat.context
        together.wait(30)
        results.append(chat.say("!text Yes."))

    threads = [threading.Thread(target=say, args=[chat]) for chat in chats]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    kept = said(open_chat())
    assert len(results) == len(chats)
    assert kept.count("Yes.") == sum(result.finish_reason == "stop" for result in results) >= 1
    assert all(isinstance(result.failure, Conflict) for result in results if result.failed)


def test_id_of_somebody_else_is_refused(open_chat: Callable[..., Chat], url: str) -> None:
    in_store(url, lambda store: store.save(Conversation(id=ID, owner="0" * 32)))
    result = open_chat().say("!text One.")
    assert result.finish_reason == "error"
    assert type(result.failure) is HistoryError
    assert "taken in this store by a conversation of somebody else" in result.why


# --- removed and resumed ----------------------------------------------------------------------------------------------


@ALL
def test_clear_removes_stored_chat(open_chat: Callable[..., Chat]) -> None:
    chat, other = open_chat(), open_chat()
    chat.say("!text One.")
    assert other.say("!text Two.").text == "Two."
    chat.clear()
    assert said(chat) == said(open_chat()) == []
    assert other.say("!text Three.").text == "Three."
    assert said(other) == said(open_chat()) == ["!text Three.", "Three."]


def test_clear_in_mid_run_is_told(open_chat: Callable[..., Chat]) -> None:
    slow = open_chat()
    slow.say("!text One.")
    answer = slow.query("!stall-after 3")
    next(answer)
    open_chat().clear()
    slow.cancel()
    assert "was deleted meanwhile" in str(list(answer)[-1].content)
    assert said(open_chat()) == []


def test_failed_resume_is_not_repeated(open_chat: Callable[..., Chat]) -> None:
    open_chat().say('!tool delete {"name": "x"} !cut 2')
    chat = open_chat()
    assert list(chat.resume(Approve()))[-1].type == "error"
    assert DELETED == ["x"]
    for again in (chat, open_chat()):
        assert again.pending == ()
        with pytest.raises(InputError, match="nothing in this chat waits"):
            list(again.resume(Approve()))


# --- owners -----------------------------------------------------------------------------------------------------------


def test_stored_chat_belongs_to_programs(open_chat: Callable[..., Chat], url: str) -> None:
    chat = open_chat()
    chat.say("!text One.")
    [conversation] = in_store(url, lambda store: store.list(PROGRAM))
    assert (conversation.id, conversation.owner, conversation.expires_at) == (ID, "program", None)
    assert conversation.output_tokens > 0


def test_store_is_closed_with_its_last_chat(open_chat: Callable[..., Chat]) -> None:
    earlier = set(threading.enumerate())

    def connections() -> set[threading.Thread]:
        return {one for one in threading.enumerate() if "connection" in one.name.lower()} - earlier

    chats = [open_chat(id_) for id_ in ("a", "b", "c")]
    chats[0].say("!text Yes.")
    opened = connections()
    assert opened
    for chat in chats[1:]:
        chat.say("!text Yes.")
    assert connections() == opened, "chats share the connections of one store"
    for chat in chats[:2]:
        chat.close()
    assert chats[2].say("!text Yes.").text == "Yes."
    chats[2].close()
    becomes(set(), connections)  # a thread ends a moment after its connection
    assert said(open_chat("a")) == ["!text Yes.", "Yes."], "the store is opened again"


@pytest.mark.parametrize(
    ("do", "host", "cause"),
    [
        pytest.param(lambda chat: chat.say("Hello"), "127.0.0.1:1", "no server listens there", id="say"),
        pytest.param(lambda chat: chat.messages, "127.0.0.1:1", "no server listens there", id="messages"),
        pytest.param(
            lambda chat: chat.messages, "none.invalid:1", "no address is known for its host", id="unknown host"
        ),
    ],
)
def test_absent_server_is_named_without_traceback_of_its_driver(
    server: Running, do: Callable[[Chat], Any], host: str, cause: str
) -> None:
    seen = len(server.journal())
    with (
        Chat(Agent(connect(QWEN3, Endpoint(server.base_url))), store=f"redis://:hush@{host}/0", id=ID) as chat,
        pytest.raises(StoreUnavailable) as caught,
    ):
        do(chat)
    said = "".join(traceback.format_exception(caught.value))
    assert host in str(caught.value)
    assert f"({cause})" in str(caught.value)
    assert "redis/" not in said
    assert "hush" not in said
    assert len(server.journal()) == seen
