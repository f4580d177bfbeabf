"""A temporary chat of a program, which uses the routes of the page."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.http_client import HttpVisitor


def begin_temporary(program: HttpVisitor, text: str = "!text Hello.", guest: str = "") -> tuple[str, str]:
    """Begin a temporary chat with a message. Return its id and that of its answer. `guest` is a guest's token."""
    query = f"?guest={guest}" if guest else ""
    said = program.ask("POST", f"/conversations{query}", json={"text": text, "temporary": True})
    assert said.status == 200, said.text
    return said.json["conversation"], said.json["run"]


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
