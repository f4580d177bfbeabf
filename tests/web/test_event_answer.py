"""A request for an event of the page is answered with the event's messages, and with no others."""

import json
from collections.abc import Callable
from typing import Any

import httpx

from agent.web.gradio_compat.event_queue import BUSY, EVENTS_PER_VISITOR
from tests.conftest import App, becomes
from tests.support.http_client import API, HttpVisitor
from tests.support.scripted_server import Running

PAGE = {"x-event-stream": "1"}


def messages(text: str) -> list[dict[str, Any]]:
    return [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: ")]


def event(program: HttpVisitor, text: str) -> dict[str, Any]:
    """Return the request for the public event in a new chat. Those of the page go the same way."""
    data: list[Any] = [{"text": text, "files": []}, "", {"new": True}]
    return {"data": data, "fn_index": program.chat, "session_hash": program.session}


def test_answer_has_all_messages_of_its_event(app: App) -> None:
    program = HttpVisitor(app.url)
    answer = program.ask("POST", f"{API}queue/join", json=event(program, "!text One."), headers=PAGE)
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["x-accel-buffering"] == "no"
    said = messages(answer.text)
    assert {one["event_id"] for one in said} == {answer.headers["x-event-id"]}
    assert [one["msg"] for one in said if one["msg"] == "process_completed"] == [said[-1]["msg"]]
    assert said[-1]["success"]
    assert said[-1]["output"]["data"][0]["text"] == "One."


def test_events_of_a_page_have_an_answer_each(app: App) -> None:
    """Also if one page asks for both ways at the same time: nothing is told twice, and nothing to the wrong reader."""
    program = HttpVisitor(app.url)
    joined = program.begin("!wait 1 !text Stream.")
    own = program.ask("POST", f"{API}queue/join", json=event(program, "!text Own."), headers=PAGE).text
    stream = program.listen()
    assert joined.json["event_id"] in stream
    assert ("Own." in own, "Stream." in own) == (True, False)
    assert ("Own." in stream, "Stream." in stream) == (False, True)


def test_session_of_somebody_else_is_another_one(app: App) -> None:
    victim, stranger = HttpVisitor(app.url), HttpVisitor(app.url)
    body = event(victim, "!text My secret.") | {"session_hash": "shared"}
    assert "My secret." in victim.ask("POST", f"{API}queue/join", json=body, headers=PAGE).text
    body["data"] = [{"text": "!echo", "files": []}, "", {}]
    assert "My secret." in victim.ask("POST", f"{API}queue/join", json=body, headers=PAGE).text
    said = stranger.ask("POST", f"{API}queue/join", json=body, headers=PAGE).text
    assert "!echo" in said
    assert "My secret." not in said


def test_refused_event_is_told_why(app: App) -> None:
    """An event whose page is gone gives its place back."""
    program = HttpVisitor(app.url)
    body = event(program, "!tokens 9000 @20")
    with httpx.Client(base_url=app.url, headers={**program.http.headers, **PAGE}, timeout=30) as http:
        streams = [http.send(http.build_request("POST", f"{API}queue/join", json=body), stream=True) for _ in range(40)]
        refused = [one for one in streams if one.status_code != 200]
        assert len(refused) == 40 - EVENTS_PER_VISITOR
        assert {(one.status_code, json.loads(one.read())["detail"]) for one in refused} == {(503, BUSY)}
        for one in streams:
            one.close()
    again = event(program, "!text Again.")
    becomes(200, lambda: program.ask("POST", f"{API}queue/join", json=again, headers=PAGE).status)


def test_answer_to_a_slow_event_stays_open(start_app: Callable[..., App], server: Running) -> None:
    """A comment now and then keeps proxies from ending it."""
    app = start_app(VLLM_BASE_URL=server.base_url, GRADIO_HEARTBEAT_INTERVAL="0.5")
    program = HttpVisitor(app.url)
    said = program.ask("POST", f"{API}queue/join", json=event(program, "!wait 3 !text Slow."), headers=PAGE).text
    assert said.count(": waiting") >= 3
    assert messages(said)[-1]["output"]["data"][0]["text"] == "Slow."


def test_answered_event_leaves_nothing_to_read(app: App) -> None:
    program = HttpVisitor(app.url)
    program.ask("POST", f"{API}queue/join", json=event(program, "!text One."), headers=PAGE)
    assert "One." not in program.listen(seconds=5.0)
