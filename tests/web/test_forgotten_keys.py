"""When a typed key is forgotten, no object in the server's memory holds it any more."""

import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from tests.conftest import CONFIG, App, becomes
from tests.support.dialect_server import Playing, Reply, playing
from tests.support.http_client import HttpVisitor
from tests.support.replies import openai_responses

COLLECTED = "collected garbage after a key was forgotten"
PREFIX = "sk-heap-"
MODEL = "openai:gpt-6-luna"
SETTINGS = CONFIG.replace("tools = [", 'tools = ["tests.support.heap_tools:find_keys", ') + "[server]\nkey_seconds = "
LOOK = f"!tool find_keys {json.dumps({'prefix': PREFIX})} !text Looked."


@pytest.fixture(scope="module")
def provider() -> Iterator[Playing]:
    with playing() as server:
        yield server


@pytest.fixture
def start(start_app: Callable[..., App], provider: Playing) -> Callable[[float], App]:
    """Start an app that forgets a key some seconds after the last sign of its page."""
    provider.clear()
    address = {"OPENAI_BASE_URL": f"{provider.url}/v1", "OPENAI_API_KEY": "", "LOG_LEVEL": "DEBUG"}
    return lambda key_seconds: start_app(f"{SETTINGS}{key_seconds}", **address)


def event(program: HttpVisitor, widget: str, kind: str) -> int:
    """Return the number of an event of a widget."""
    ids = {one["props"].get("elem_id"): one["id"] for one in program.config.json["components"]}
    wanted = [ids[widget], kind]
    return next(one["id"] for one in program.events if wanted in one["targets"])


def type_key(program: HttpVisitor, key: str) -> None:
    """Paste a key into the page's box and press the button."""
    number = event(program, "chat", "use_key")
    assert program.join(number, [key, MODEL]).status == 200


def begin(program: HttpVisitor, text: str) -> str:
    """Send a message to the hosted model through the public event, and return the event's id."""
    return program.join(program.chat, [{"text": text, "files": []}, MODEL, {}, None]).json["event_id"]


def ask(program: HttpVisitor, text: str) -> str:
    """Send a message and wait for the answer."""
    begin(program, text)
    return program.listen()


def holders(app: App) -> list[str]:
    """Return the holders of a key in the server. Another visitor calls a tool that looks for them."""
    said = HttpVisitor(app.url).say(LOOK, tools=True)
    found = re.findall(r"(\d+) hold a key\.((?:\\\\?n[^\"\\]+)*)", said)
    assert found, said[-2000:]
    return re.split(r"\\+n", found[-1][1])[1:]


def residue(app: App, key: str) -> int | str:
    """Return the number of copies of the key in the process's memory, free memory included. Only root can read it."""
    assert app.process is not None
    if os.geteuid():
        return "unknown"
    count, pid = 0, app.process.pid
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            begin, end, mode = re.match(r"(\w+)-(\w+) (\S+)", line).groups()  # type: ignore[union-attr]
            if not mode.startswith("rw"):
                continue
            try:
                memory.seek(int(begin, 16))
                count += memory.read(int(end, 16) - int(begin, 16)).count(key.encode())
            except OSError:
                continue
    return count


def test_forgotten_key_is_held_by_nothing(start: Callable[[float], App], provider: Playing) -> None:
    """This holds after a retry, an answer and a refusal that repeats the key, with the page still open."""
    app = start(600.0)
    visitor, key = HttpVisitor(app.url), PREFIX + uuid4().hex
    type_key(visitor, key)
    provider.play(
        Reply(status=500, body={"error": {"message": f"no, {key}"}}),
        openai_responses.answer("Hello."),
        Reply(status=401, body={"error": {"message": f"Wrong key: {key}"}}),
    )
    assert "Hello." in ask(visitor, "hello")
    assert [request.headers["authorization"] for request in provider.requests] == [f"Bearer {key}"] * 2
    assert "rejected the API key" in ask(visitor, "again")
    assert holders(app)
    assert visitor.join(event(visitor, "chat", "forget"), [MODEL]).status == 200
    becomes(1, lambda: app.log.count(COLLECTED))
    assert holders(app) == []
    print("In freed memory the key is left so many times:", residue(app, key))
