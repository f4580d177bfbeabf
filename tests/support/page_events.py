"""Requests for events of the page, as a script of somebody else would make them."""

import json
from typing import Any
from uuid import uuid4

from tests.support.http_client import API, Answer, HttpVisitor


def send_event(program: HttpVisitor, trigger: str, values: dict[str, Any]) -> Answer:
    """Send the event with this trigger in a session of its own, with these values of widgets. Return the answer."""
    session = uuid4().hex[:11]
    event = next(one for one in program.events if one["inputs"] and trigger in [name for _, name in one["targets"]])
    widgets = {one["id"]: one["props"] for one in program.config.json["components"]}
    inputs = [(widgets[id_].get("elem_id"), widgets[id_].get("value")) for id_ in event["inputs"]]
    data = [values.get(name, value) for name, value in inputs]
    body = {"data": data, "fn_index": event["id"], "session_hash": session}
    headers = {"content-type": "application/json"}
    said = program.ask("POST", f"{API}queue/join", content=json.dumps(body), headers=headers)
    if said.status == 200:
        said.text += program.listen(session, seconds=20.0)
    return said
