"""A temporary chat of a program, which uses the events of the page."""

import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tests.support.http_client import HttpVisitor


def page_event(program: HttpVisitor, widget: str, trigger: str) -> dict[str, Any]:
    """Return an event of a widget of the page."""
    wanted = [next(id_ for id_, name in widgets(program).items() if name == widget), trigger]
    return next(one for one in program.events if wanted in one["targets"])


def widgets(program: HttpVisitor) -> Mapping[int, str]:
    """Return the element ids of the page's widgets, by number."""
    return {one["id"]: one["props"].get("elem_id") for one in program.config.json["components"]}


def begin_temporary(program: HttpVisitor) -> str:
    """Begin a temporary chat in the program's session. Return its id."""
    assert program.join(page_event(program, "chat", "open")["id"], [{"chat": "temporary"}]).status == 200
    found = re.search(r"temporary-[0-9a-f]{32}", program.listen())
    assert found is not None
    return found[0]


def say_on_page(program: HttpVisitor, chat: str, text: str) -> str:
    """Send a message from the composer of a page that shows this chat, and wait until it is accepted."""
    names, event = widgets(program), page_event(program, "composer", "submit")
    values = {one["id"]: one["props"].get("value") for one in program.config.json["components"]}
    given = {"chat": {"chat": chat}, "composer": {"text": text, "files": []}}
    assert program.join(event["id"], [given.get(names[id_], values[id_]) for id_ in event["inputs"]]).status == 200
    return program.listen()


@contextmanager
def kept_alive(program: HttpVisitor, chat: str) -> Iterator[None]:
    """Keep a temporary chat within the block, as its page does."""
    is_over = threading.Event()

    def ask() -> None:
        while not is_over.wait(10.0):
            program.ask("POST", f"/temporary/{chat}")

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join(30)
