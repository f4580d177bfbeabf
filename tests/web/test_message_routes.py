"""The routes that send, edit and take back messages, and stop answers. Isolation is in `test_isolation`."""

import asyncio
import json
import re
from collections.abc import Mapping
from typing import Any

import pytest

from agent.errors import Limited, ToolError
from agent.settings import PublicSettings
from agent.tools.function_tools import PromptInfo
from agent.web import message_routes
from agent.web.chat.rate_limit import RateLimiter
from agent.web.chat.visitor import Visitor
from agent.web.message_routes import PROMPTS_FAILED_SECONDS, ServerPrompts
from agent.web.middleware.requests import MAX_BODY
from tests.conftest import App
from tests.support.asking_tools import ASKING_CONFIG
from tests.support.clocks import Clock
from tests.support.http_client import HttpVisitor, marker
from tests.support.turn_edits import applied
from tests.support.waiting import until

CONFIG = ASKING_CONFIG  # which `own` reads


def asked(visitor: HttpVisitor, path: str, body: Any, *, method: str = "POST", status: int = 200) -> Any:
    answer = visitor.ask(method, path, json=body)
    assert answer.status == status, answer.text
    return answer.json if answer.text else None


def answer_of(visitor: HttpVisitor, begun: Any) -> list[dict[str, Any]]:
    """Wait for the end of the answer. Return its events."""
    text = visitor.ask("GET", f"/runs/{begun['run']}/events").text
    return [json.loads(line) for line in re.findall(r"^data: (\{\"type.*)$", text, re.MULTILINE)]


def text_of(events: list[dict[str, Any]]) -> str:
    assert events[-1]["type"] == "ended", events
    return "".join(event["content"] for event in events if event["type"] == "output_text")


def shown(visitor: HttpVisitor, chat: str) -> str:
    """Return the shown branch of a conversation as Markdown."""
    return visitor.ask("GET", f"/export/{chat}?format=markdown").text


def last_message(visitor: HttpVisitor, chat: str, word: str) -> str:
    [hit] = [hit for hit in visitor.ask("GET", f"/conversations?q={word}").json["hits"] if hit["id"] == chat][:1]
    return visitor.ask("GET", f"/conversations/{chat}/messages/{hit['entry']}").json["message"]


def test_chat_goes_on_over_routes_alone(own: App) -> None:
    visitor, words = HttpVisitor(own.url), [marker() for _ in range(5)]
    begun = asked(visitor, "/conversations", {"text": f"!text {words[0]}"})
    assert text_of(answer_of(visitor, begun)) == words[0]
    chat = f"/conversations/{begun['conversation']}"
    second = asked(visitor, f"{chat}/messages", {"text": f"!text {words[1]}"})
    assert second["conversation"] == begun["conversation"]
    answer_of(visitor, second)
    entry = f"{chat}/messages/{last_message(visitor, begun['conversation'], words[1])}"
    answer_of(visitor, asked(visitor, f"{entry}/retry", {}))
    entry = f"{chat}/messages/{last_message(visitor, begun['conversation'], words[1])}"
    edited = asked(visitor, entry, {"text": f"!text {words[2]}"}, method="PATCH")
    assert text_of(answer_of(visitor, edited)) == words[2]
    assert words[1] not in shown(visitor, begun["conversation"])
    assert visitor.ask("POST", f"{entry}/show").status == 204
    assert words[1] in shown(visitor, begun["conversation"])
    copy = asked(visitor, f"{entry}/copy", None)["conversation"]
    assert words[1] in shown(visitor, copy)
    taken = asked(
        visitor, f"/conversations/{copy}/messages/{last_message(visitor, copy, words[1])}", None, method="DELETE"
    )
    assert taken == {"text": f"!text {words[1]}", "files": []}
    assert words[1] not in shown(visitor, copy)


SCRIPTS = (
    '!reasoning Hm. !tool calculate {"expression": "6*7"} !text It is *42*.\\n\\n- a\\n- b',
    '!tools calculate {"expression": "1/0"} calculate {"expression": "1+1"} !text Done.',
    "!markdown 400",
    "!text See [a]\\n\\n[a]: https://a.example",
    "!reset 3",
    "!status 400",
    "!length 4",
    '!tool ask_user {"question": "Which?"} !text Good.',
)


def last_state(visitor: HttpVisitor, run: str) -> Any:
    """Return the turn to which the frames of an answer lead. An answer that has ended already has no frames: None."""
    turn: Any = None
    events = visitor.ask("GET", f"/runs/{run}/events?format=blocks").text
    for line in re.findall(r"^data: (\{.*)$", events, re.MULTILINE):
        frame = json.loads(line)
        turn = frame.get("turn") or (applied(turn, frame["edits"]) if "edits" in frame else turn)
    return turn


@pytest.mark.parametrize("script", SCRIPTS)
def test_frames_of_an_answer_lead_to_the_stored_turn(own: App, script: str) -> None:
    visitor = HttpVisitor(own.url)
    begun = asked(visitor, "/conversations", {"text": script})
    path = f"/conversations/{begun['conversation']}"
    for _ in range(2):
        live = last_state(visitor, begun["run"])
        stored = visitor.ask("GET", f"{path}?format=blocks").json["turns"][-1]
        assert live == stored or (live is None and script == "!status 400")  # it ends at once
        if {"do": "continue", "entry": stored["id"]} not in [one["value"] for one in stored.get("buttons", ())]:
            break
        begun = asked(visitor, f"{path}/messages/{stored['id']}/continue", {})


def test_message_with_files_reports_progress(own: App) -> None:
    visitor, word = HttpVisitor(own.url), marker()
    path = visitor.upload("notes.txt", word.encode())
    sent = visitor.ask(
        "POST", "/conversations", json={"text": "!echo", "files": [path]}, headers={"accept": "application/x-ndjson"}
    )
    *_, last = [json.loads(line) for line in sent.text.splitlines()]
    assert last["type"] == "done"
    assert word in text_of(answer_of(visitor, last))
    message = last_message(visitor, last["conversation"], word)
    taken = asked(visitor, f"/conversations/{last['conversation']}/messages/{message}", None, method="DELETE")
    [file] = taken["files"]
    assert file["name"] == "notes.txt"
    again = asked(visitor, "/conversations", {"text": "!echo", "files": [file["path"]]})
    assert word in text_of(answer_of(visitor, again))


def test_file_of_another_visitor_is_refused(own: App) -> None:
    path = HttpVisitor(own.url).upload("notes.txt", b"secret")
    for given in (path, "/etc/hostname", ""):
        refused = HttpVisitor(own.url).ask("POST", "/conversations", json={"text": "!echo", "files": [given]})
        assert refused.status == 400
        assert refused.json["detail"] == "An attachment could not be read. Attach it again."


def test_stop_ends_the_answer(own: App) -> None:
    visitor = HttpVisitor(own.url)
    begun = asked(visitor, "/conversations", {"text": "!tokens 9000 @20"})
    chat = f"/conversations/{begun['conversation']}"
    assert asked(visitor, f"{chat}/messages", {"text": "more"}, status=409)["detail"]
    assert visitor.ask("POST", f"{chat}/stop").status == 204
    ended = answer_of(visitor, begun)[-1]
    assert (ended["type"], ended["finish_reason"]) == ("ended", "cancelled")


def test_cut_answer_is_continued(own: App) -> None:
    visitor, word = HttpVisitor(own.url), marker()
    begun = asked(visitor, "/conversations", {"text": f"!text {word} !length 3"})
    answer_of(visitor, begun)
    message = last_message(visitor, begun["conversation"], word)
    more = asked(visitor, f"/conversations/{begun['conversation']}/messages/{message}/continue", {})
    assert answer_of(visitor, more)[-1]["type"] == "ended"


def test_question_is_answered(own: App) -> None:
    visitor = HttpVisitor(own.url)
    question = json.dumps({"question": "Which?"})
    begun = asked(visitor, "/conversations", {"text": f"!tool ask_user {question} !echo", "settings": {"tools": True}})
    events = answer_of(visitor, begun)
    call = next(event["content"]["id"] for event in events if event["type"] == "tool_call")
    path = f"/conversations/{begun['conversation']}/messages"
    wrong = {"text": "This.", "question": {"run": begun["run"], "call": "another"}}
    assert asked(visitor, path, wrong, status=409)["detail"]
    more = asked(visitor, path, {"text": "This.", "question": {"run": begun["run"], "call": call}})
    assert "This." in text_of(answer_of(visitor, more))


BAD: dict[str, tuple[str, Any, int]] = {
    "nothing": ("/conversations", {}, 400),
    "blank text": ("/conversations", {"text": " "}, 400),
    "unknown field": ("/conversations", {"text": "x", "owner": "me"}, 400),
    "text of another kind": ("/conversations", {"text": 5}, 400),
    "files of another kind": ("/conversations", {"text": "x", "files": [5]}, 400),
    "id of another kind": ("/conversations", {"text": "x", "id": "../x"}, 400),
    "a list": ("/conversations", [], 400),
    "unknown setting": ("/conversations", {"text": "x", "settings": {"colour": "red"}}, 400),
    "setting of another kind": ("/conversations", {"text": "x", "settings": {"tools": "yes"}}, 400),
    "model of another kind": ("/conversations", {"text": "x", "settings": {"model": 5}}, 400),
    "unknown model": ("/conversations", {"text": "x", "settings": {"model": "nobody:nothing"}}, 400),
    "long text": ("/conversations", {"text": "x" * 200_001}, 400),
    "long body": ("/conversations", {"text": "x" * MAX_BODY}, 413),
    "many nodes": ("/conversations", {"text": "x", "files": ["x"] * 20_000}, 413),
    "missing chat": ("/conversations/" + "0" * 32 + "/messages", {"text": "x"}, 404),
    "missing message": ("$chat/messages/" + "0" * 32 + "/retry", {}, 409),
    "missing version": ("$chat/messages/" + "0" * 32 + "/show", {}, 409),
    "unknown action": ("$chat/messages/" + "0" * 32 + "/explode", {}, 405),
}


@pytest.fixture(scope="module")
def owner(own: App) -> tuple[HttpVisitor, str]:
    """Return a visitor and the path of their conversation."""
    visitor = HttpVisitor(own.url)
    begun = asked(visitor, "/conversations", {"text": "!text Yes."})
    answer_of(visitor, begun)
    return visitor, f"/conversations/{begun['conversation']}"


def test_bad_request_gets_a_reason_and_stores_nothing(own: App, owner: tuple[HttpVisitor, str]) -> None:
    visitor, chat = owner
    before = visitor.ask("GET", "/conversations").json, shown(visitor, chat.rpartition("/")[2])
    for name, (path, body, status) in BAD.items():
        answer = visitor.ask("POST", path.replace("$chat", chat), json=body)
        assert (answer.status, bool(answer.json["detail"])) == (status, True), (name, answer.text)
        assert name != "unknown setting" or answer.json["detail"].endswith(" and model")
    assert (visitor.ask("GET", "/conversations").json, shown(visitor, chat.rpartition("/")[2])) == before
    assert "Traceback" not in own.log


class PromptServer:
    """A server with one prompt, which answers when `can_answer` is set, or fails."""

    prompts = True

    def __init__(self, name: str, failure: Exception | None = None) -> None:
        self.name, self.failure, self.asked, self.can_answer = name, failure, 0, asyncio.Event()

    async def list_prompts(self) -> list[PromptInfo]:
        self.asked += 1
        await self.can_answer.wait()
        if self.failure is not None:
            raise self.failure
        return [PromptInfo(f"of {self.name}", "", ())]

    async def get_prompt(self, name: str, arguments: Mapping[str, str]) -> str:
        return f"{name} {arguments}"


async def test_prompts_are_read_at_once_also_if_a_client_leaves() -> None:
    """A server that does not answer delays no other one, and what was begun for a client serves the next."""
    servers = PromptServer("a"), PromptServer("b")
    prompts = ServerPrompts(servers, RateLimiter(None))
    leaving = asyncio.create_task(prompts.list())
    await until(lambda: [one.asked for one in servers] == [1, 1])
    leaving.cancel()
    await asyncio.wait([leaving])
    staying = asyncio.create_task(prompts.list())
    for one in servers:
        one.can_answer.set()
    assert [(one["server"], one["name"]) for one in await staying] == [("a", "of a"), ("b", "of b")]
    assert [one.asked for one in servers] == [1, 1]


@pytest.mark.parametrize("failure", [ToolError("It does not start."), RuntimeError("odd")], ids=["known", "odd"])
async def test_prompts_of_a_failed_server_are_asked_again_later(
    monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    clock = Clock()
    monkeypatch.setattr(message_routes, "monotonic", clock)
    servers = PromptServer("a", failure), PromptServer("b")
    for one in servers:
        one.can_answer.set()
    prompts, asked_by_time = ServerPrompts(servers, RateLimiter(None)), list[list[int]]()
    for passed in (0.0, PROMPTS_FAILED_SECONDS - 1, 1.0):
        clock.now += passed
        assert [one["name"] for one in await prompts.list()] == ["of b"]
        asked_by_time.append([one.asked for one in servers])
    assert asked_by_time == [[1, 1], [1, 1], [2, 1]]


async def test_prompt_of_a_server_counts_as_a_message() -> None:
    prompts, ann = ServerPrompts([PromptServer("a")], RateLimiter(PublicSettings(messages=1))), Visitor(owner="ann")
    assert await prompts.text(ann, "a", "review", {}) == "review {}"
    with pytest.raises(Limited):
        await prompts.text(ann, "a", "review", {})
