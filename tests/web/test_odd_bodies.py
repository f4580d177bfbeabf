"""Every route that takes a body refuses an odd one with a sentence, in a short time, and counts it.

The routes are those of the app itself, so a new one is tried without being listed. The isolation middleware answers
some more, which are listed.
"""

import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from agent.settings import PublicSettings
from agent.web.heavy_work import REQUESTS_EACH
from agent.web.middleware.isolation import API
from tests.support.asgi_requests import Asked, asked, longest_step, routes_of, running_app
from tests.support.gate_rows import gate_rows
from tests.support.scripted_server import Running
from tests.support.waiting import until

MOST_SECONDS = 0.05
"""The most processor time of one step of the event loop."""
DEEP = 100_000
FIELDS = (
    *("text", "files", "id", "again", "temporary", "question", "settings", "title", "pinned", "days", "later_messages"),
    *("attachments", "system_prompt", "document", "page", "passage", "data", "session_hash", "fn_index", "event_id"),
    *("event_data", "trigger_id", "messages", "model", "tools", "tool_choice", "stop", "stream_options", "max_tokens"),
)
"""The fields of the bodies of all routes."""
VALUES: dict[str, Any] = {
    "a number": 5,
    "a list": ["a"],
    "an object": {"a": 1},
    "null": None,
    "a fraction": -1.5,
    "true": True,
    "NUL": "a\0b",
    "half of an emoji": "\ud800",
    "a large number": 10**19,
    "lists": [[[]]],
    "a field of many": {"a" * 5000: "b"},
}
BODIES: dict[str, tuple[bytes, dict[str, Any]]] = {
    "not JSON": (b"not json", {}),
    "NUL": (b"\0", {}),
    "null": (b"null", {}),
    "a number": (b"1", {}),
    "a list": (b"[]", {}),
    "objects": (b"[{}]", {}),
    "a text": (b'"text"', {}),
    "an unknown field": (b'{"x":1}', {}),
    "brackets": (b"[" * DEEP, {}),
    "closed brackets": (b"[" * DEEP + b"]" * DEEP, {}),
    "brackets in a field": (b'{"text":' + b"[" * DEEP + b"]" * DEEP + b"}", {}),
    "some brackets in a field": (b'{"data":' + b"[" * 1500 + b"]" * 1500 + b"}", {}),
    "objects in objects": (b'{"a":' * DEEP, {}),
    "a huge number": (b'{"days":1' + b"0" * 100_000 + b"}", {}),
    "a huge exponent": (b'{"days":1e' + b"9" * 5000 + b"}", {}),
    "a long fraction": (b'{"days":1.' + b"1" * 4000 + b',"text":1}', {}),
    "NaN": (b'{"days":NaN,"text":NaN,"settings":{"temperature":NaN}}', {}),
    "infinity": (b'{"days":Infinity,"page":-Infinity,"text":1e999}', {}),
    "a field twice": (b'{"text":"a","text":1,"title":"a","title":1,"days":1,"days":"x","page":1,"page":""}', {}),
    "a raw NUL": (b'{"text":"a\0b"}', {}),
    "half of an emoji": (b'{"\\ud800":"\\udfff"}', {}),
    "not UTF-8": (b'{"text":"\xff\xfe"}', {}),
    "a mark of the encoding": (b"\xef\xbb\xbf{}", {}),
    "UTF-16": ('{"text":1}'.encode("utf-16"), {}),
    "UTF-32": ('{"text":1}'.encode("utf-32"), {}),
    "10 MB": (b'{"text":"' + b"a" * 10_000_000 + b'"}', {}),
    "10 MB of numbers": (b"[" + b"1," * 5_000_000 + b"1]", {}),
    "a plain text": (b"text=1", {"content_type": b"text/plain"}),
    "fields of a form": (b"text=1&title=2", {"content_type": b"application/x-www-form-urlencoded"}),
    "a form without an end": (b'--b\r\ncontent-disposition: form-data; name="files"; filename="x"\r\n\r\nx', {}),
    "no boundary": (b"--b\r\n\r\n--b--", {"content_type": b"multipart/form-data"}),
    "an odd boundary": (b"--b\r\n\r\n--b--", {"content_type": b"multipart/form-data; boundary=\xff"}),
    "a long boundary": (b"--b\r\n\r\n--b--", {"content_type": b"multipart/form-data; boundary=" + b"b" * 300}),
    "an unknown type": (b'{"text":1}', {"content_type": b"\xff\xff"}),
    "no type": (b'{"text":1}', {"content_type": b""}),
    "an encoding": (b"\x1f\x8b\x08{}", {"content_encoding": b"gzip"}),
    "without a length": (b'{"x":1}', {"transfer_encoding": b"chunked"}),
    "nothing, without a length": (b"", {"transfer_encoding": b"chunked"}),
    "a long length": (b"x", {"content_length": b"9" * 5000}),
    "a negative length": (b"x", {"content_length": b"-1"}),
    "another digit as length": (b"x", {"content_length": "٣".encode()}),
    "cut off": (b'{"text":"', {"is_cut": True}),
    "cut off late": (b'{"text":"' + b"a" * 50_000, {"is_cut": True}),
    "a long header": (b'{"x":1}', {"x_odd": b"a" * 60_000}),
    "a long language": (b'{"x":1}', {"accept_language": b"a-" * 30_000}),
    "a header that is no text": (b'{"x":1}', {"accept": b"\xff\xfe", "referer": b"\xff"}),
    **{
        f"{name} as {field}": (json.dumps({field: value}).encode(), {})
        for field in FIELDS
        for name, value in VALUES.items()
    },
}
MORE_ROUTES = [
    ("POST", API + route) for route in ("upload", "cancel", "reset", "call/chat", "queue/join", "run/predict", "x")
]
"""The routes that the isolation middleware answers, or passes on to Gradio."""
TAKES_NO_BODY = re.compile("DELETE .*|POST (.*/(restore|stop|show|copy)|/temporary/.*)")
"""The routes that read no body. They answer as if there were none."""
HAS_NO_COST = re.compile(r"(POST|DELETE) /temporary/.*|POST /(login/?|gradio_api/x)|DELETE .*/links/0*")
"""The routes that need not count: they are refused, or look up one chat in memory."""
INSIDE = re.compile(
    r"/(work|tmp|home|usr|root)/|\.py\b|Traceback|\w(Error|Exception)\b|pydantic|site-packages|0x[0-9a-f]{6}"
)
"""What no visitor may see of the program."""


def sentence_in(answer: Asked) -> str:
    """Return what an answer says, or "" if that is no sentence."""
    text = answer.text
    if text.startswith("<!doctype html>"):
        return re.sub(r"<[^<>]+>", " ", text).strip()
    if text.startswith("{"):
        value = json.loads(text.splitlines()[-1])
        text = value.get("detail") or value.get("message") or value.get("error", {}).get("message", "")
    return text if re.match(r"\w", text) and text.rstrip().endswith((".", "!", "…")) else ""


def fault_of(route: str, name: str, answer: Asked) -> str:
    """Return what is wrong with an answer to an odd body, or ""."""
    if not answer.status:
        return "" if "cut off" in name else "no answer"
    if answer.status >= 500:
        return f"status {answer.status}"
    if found := INSIDE.search(answer.text):
        return f"shows {found[0]!r}"
    if answer.status == 499 or (answer.status == 400 and "cut off" in name):
        return ""  # nobody reads it
    if answer.text.startswith('{"detail":"unknown options: ') and len(answer.text) < 600:
        return ""  # it ends with the known ones
    if answer.status < 400 and (TAKES_NO_BODY.fullmatch(route) or " as " in name):
        return ""
    return "" if sentence_in(answer) else f"status {answer.status} says {answer.text[:100]!r}"


async def opened(app: FastAPI) -> tuple[bytes, dict[str, str]]:
    """Return a visitor's cookie, and the names of its chat and of a message there."""
    cookie, chats = (await asked(app, "GET", "/")).cookie, app.state.conversations
    await until(lambda: chats.models.find(""))
    begun = await asked(app, "POST", "/conversations", body=b'{"text":"!text pear"}', cookie=cookie)
    await until(lambda: not chats.live_runs.count)
    found = await asked(app, "GET", "/conversations", query="q=pear", waits=True, cookie=cookie)
    [hit] = json.loads(found.text)["hits"]
    return cookie, {"id_": json.loads(begun.text)["conversation"], "entry": hit["entry"], "conversation": hit["id"]}


def requests_to(app: FastAPI, names: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the method and path of each route that changes something, with names that exist and names that do not."""
    for method, path in dict.fromkeys([*routes_of(app.routes), *MORE_ROUTES]):
        if method in ("GET", "HEAD"):
            continue
        paths = [re.sub(r"\{[^}]*\}", "0" * 32, path)]
        if method != "DELETE" and not path.endswith("/copy"):
            paths.append(re.sub(r"\{(\w+)[^}]*\}", lambda found: names.get(found[1], "0" * 32), path))
        yield from ((method, one) for one in dict.fromkeys(paths))


@pytest.mark.slow
@pytest.mark.parametrize("is_field", gate_rows({"whole bodies": False, "fields": True}, ["whole bodies"]))
async def test_odd_body_is_refused_with_a_sentence(
    tmp_path: Path, server: Running, caplog: pytest.LogCaptureFixture, *, is_field: bool
) -> None:
    faults, count = list[str](), 0
    caplog.set_level(logging.ERROR)
    async with running_app(tmp_path, server.base_url) as app:
        cookie, names = await opened(app)
        for method, path in requests_to(app, names):
            for name in (one for one in BODIES if (" as " in one) == is_field):
                body, more = BODIES[name]
                count += 1
                with longest_step() as longest:
                    try:
                        answer = await asked(app, method, path, body=body, waits=True, **{"cookie": cookie, **more})
                        fault = fault_of(f"{method} {path}", name, answer)
                    except Exception as error:
                        fault = f"raised {error!r}"
                await until(lambda: not app.state.conversations.live_runs.count)
                if longest[0][0] > MOST_SECONDS:
                    with longest_step() as longest:  # a busy machine can be slow
                        await asked(app, method, path, body=body, waits=True, **{"cookie": cookie, **more})
                if longest[0][0] > MOST_SECONDS:
                    fault += f" held the loop for {longest[0][0]:.3f} s in {longest[0][1][:200]}"
                faults += [f"{method} {path}: {name}: {fault}"] if fault else []
    assert count > 1000
    assert not faults, "\n".join(faults)
    assert not caplog.records


@pytest.mark.slow
async def test_odd_bodies_count(tmp_path: Path, server: Running) -> None:
    """A visitor that goes on sending them is refused before they are read."""
    public = PublicSettings(api=True, links=True, messages=1000, messages_per_address=1000, messages_in_all=1000)
    uncounted = list[str]()
    async with running_app(tmp_path, server.base_url, public=public) as app:
        for method, path in requests_to(app, {}):
            cookie = (await asked(app, "GET", "/")).cookie
            if HAS_NO_COST.fullmatch(f"{method} {path}"):
                continue
            for _ in range(REQUESTS_EACH):
                await asked(app, method, path, body=b"[", waits=True, cookie=cookie)
            last = await asked(app, method, path, body=b"[", waits=True, cookie=cookie)
            if last.status not in (413, 429) or not re.search(r"Try again in \d+ s\.", last.text):
                uncounted.append(f"{method} {path}: {last.status} {last.text[:80]}")
    assert not uncounted, "\n".join(uncounted)


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("/settings", b"not json", (400, "Nicht verstanden.")),
        ("/conversations", b"[" * DEEP, (413, "Das ist zu groß für den Server.")),
    ],
)
async def test_refusal_is_said_in_the_language_of_the_page(
    tmp_path: Path, server: Running, path: str, body: bytes, said: tuple[int, str]
) -> None:
    method = "PATCH" if path == "/settings" else "POST"
    async with running_app(tmp_path, server.base_url) as app:
        cookie = (await asked(app, "GET", "/")).cookie
        about: dict[str, Any] = {"cookie": cookie, "content_type": b"application/json", "accept_language": b"de"}
        answer = await asked(app, method, path, body=body, waits=True, **about)
    assert (answer.status, json.loads(answer.text)["detail"]) == said
