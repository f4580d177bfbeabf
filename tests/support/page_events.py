"""Requests for events of the page, as a script of somebody else would make them.

The page's own script tells the server in `Referer` which conversation is open. Whoever sends it without the page can
name any conversation there.
"""

import json
from typing import Any
from uuid import uuid4

from tests.support.http_client import API, Answer, HttpVisitor

SUBMIT = "composer submit"
CHAT = "chat"
"""The event of programs instead of one of the page."""


def send_event(program: HttpVisitor, events: str, values: dict[str, Any], conversation: str) -> Answer:
    """Send events of the page in a session of their own, with this conversation in `Referer`. Return what is answered.

    `events` are names of a widget and its trigger, or only the trigger if no other widget has it, with `>` between two
    events. `values` are the values of widgets by their names.
    """
    session, said = uuid4().hex[:11], None
    referer = f"{str(program.http.base_url).rstrip('/')}/c/{conversation}"
    headers = {"referer": referer, "content-type": "application/json"}
    for event in events.split(" > "):
        number, data = _with_data(program, event, values)
        body = {"data": data, "fn_index": number, "session_hash": session}
        said = program.ask("POST", f"{API}queue/join", content=json.dumps(body), headers=headers)
        if said.status == 200:
            said.text += program.listen(session, seconds=20.0)
    assert said is not None
    return said


def _with_data(program: HttpVisitor, event: str, values: dict[str, Any]) -> tuple[int, list[Any]]:
    """Return the number of an event, and the values of its inputs."""
    if event == CHAT:
        return program.chat, [{"text": values["text"], "files": []}, "", {}]
    found = _event(program, event)
    widgets = {one["id"]: one["props"] for one in program.config.json["components"]}
    inputs = [(widgets[id_].get("elem_id"), widgets[id_].get("value")) for id_ in found["inputs"]]
    return found["id"], [values.get(name, value) for name, value in inputs]


def _event(program: HttpVisitor, event: str) -> dict[str, Any]:
    """Return the event of the page that begins an action. Those that follow it have no trigger of a widget."""
    *widget, trigger = event.split(" ")
    names = {one["id"]: one["props"].get("elem_id") for one in program.config.json["components"]}
    return next(
        one
        for one in program.events
        for id_, name in one["targets"]
        if name == trigger and (names.get(id_) == widget[0] if widget else one["inputs"])
    )
