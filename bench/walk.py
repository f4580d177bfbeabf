"""Counts the rooms that a message and a token enter: `python -m bench.walk [-v]`.

It runs the app in this process, with a scripted model and SQLite in a new folder, and sends a chat's second message, so
that nothing is loaded for the first time. A room is a folder or a module directly in `agent/`. The floors are those of
`bench.style`.

- A message's walk begins at the request to `POST /conversations/ID/messages`, and ends when the model server has read
  the whole request for its answer.
- A token's walk lies between two events with text on the page's stream, `GET /runs/ID/events?format=blocks`: what the
  app does from the moment one is sent until the next is sent.

It counts the rooms and the modules whose functions run, on every thread, and the climbs: pairs of a room and a room on
a higher floor whose function it runs, directly or through a library. A callback that a higher room passed down is a
climb, and so is a coroutine of a higher room that a lower room resumes. Code that only defines names is not counted.
With `-v` it names the rooms and the climbs.
"""

import asyncio
import json
import sys
import threading
from collections.abc import Collection
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any

from fastapi import FastAPI
from starlette.types import Message

from bench.style import floors_and_arrows, imports_within
from tests.support.asgi_requests import asked, running_app
from tests.support.scripted_server import Config, Running, running

AGENT = Path("agent").resolve()
TOKENS = 40


class Walk:
    """Records the modules of `agent/` whose functions run, and which module runs which."""

    def __init__(self) -> None:
        self.modules: set[str] = set()
        self.calls: set[tuple[str, str]] = set()

    def begin(self) -> None:
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)

    def end(self) -> None:
        sys.setprofile(None)
        threading.setprofile(None)  # pyright: ignore[reportArgumentType]

    def lines(self, name: str, floors: dict[str, int], *, is_long: bool) -> list[str]:
        """The figures of this walk."""
        rooms = {_room(one) for one in self.modules}
        pairs = {(_room(one), _room(other)) for one, other in self.calls}
        climbs = sorted((one, other) for one, other in pairs if floors.get(one, 1) < floors.get(other, 1))
        lines = [f"{name}: {len(rooms)} rooms entered, {len(climbs)} climbs, {len(self.modules)} modules"]
        if is_long:
            lines += [f"  rooms: {' '.join(sorted(rooms))}", f"  modules: {' '.join(sorted(self.modules))}"]
            lines += [f"  climb {one} > {other}: {self._between(one, other)}" for one, other in climbs]
        return lines

    def _between(self, room: str, other: str) -> str:
        return ", ".join(sorted(f"{a} > {b}" for a, b in self.calls if (_room(a), _room(b)) == (room, other)))

    def _profile(self, frame: FrameType, event: str, _argument: object) -> None:
        if event != "call" or frame.f_code.co_name == "<module>" or not (module := _module(frame)):
            return
        self.modules.add(module)
        caller, name = frame.f_back, ""
        while caller is not None and not (name := _module(caller)):
            caller = caller.f_back
        if name:
            self.calls.add((name, module))


def _module(frame: FrameType) -> str:
    name = str(frame.f_globals.get("__name__", ""))
    return name.removeprefix("agent.") if name.startswith("agent.") else ""


def _room(module: str) -> str:
    return module.partition(".")[0]


async def walk_of_message(app: FastAPI, server: Running, chat: str, about: dict[str, Any]) -> tuple[Walk, str]:
    """Send a message. Return its walk to the model's request, and the name of its run."""
    walk, before = Walk(), len(server.journal())
    body = json.dumps({"text": f"!tokens {TOKENS} hold 1 first"}).encode()
    walk.begin()
    sent = asyncio.create_task(asked(app, "POST", f"/conversations/{chat}/messages", body=body, waits=True, **about))
    while len(server.journal()) == before:  # noqa: ASYNC110 - the server is on another thread
        await asyncio.sleep(0)
    walk.end()
    return walk, str(json.loads((await sent).text)["run"])


async def walk_of_token(app: FastAPI, server: Running, run: str, about: dict[str, Any]) -> Walk:
    """Read an answer as the page does. Return the walk from its third event with text to the next."""
    walk, texts = Walk(), 0

    async def read(scope: Any, receive: Any, send: Any) -> None:
        async def counted(message: Message) -> None:
            nonlocal texts
            texts += b"word" in message.get("body", b"")
            walk.end()
            await send(message)
            if texts == 3:
                walk.begin()

        await app(scope, receive, counted)

    server.release("first")
    await asked(read, "GET", f"/runs/{run}/events", "format=blocks", waits=True, **about)
    return walk


async def main(words: Collection[str]) -> None:
    """Print the figures of both walks."""
    floors, _ = floors_and_arrows(imports_within(AGENT))
    with TemporaryDirectory() as folder, running(Config(rate=20, models=("m",))) as server:
        async with running_app(Path(folder), server.base_url) as app:
            chats = app.state.conversations
            await chats.models.local.ready()
            cookie = (await asked(app, "GET", "/")).cookie
            about: dict[str, Any] = {"cookie": cookie, "content_type": b"application/json"}
            first = await asked(app, "POST", "/conversations", body=b'{"text": "!text First."}', waits=True, **about)
            while chats.live_runs.count:  # noqa: ASYNC110 - nothing is measured yet
                await asyncio.sleep(0.01)
            sent, run = await walk_of_message(app, server, json.loads(first.text)["conversation"], about)
            token = await walk_of_token(app, server, run, about)
    for name, walk in (("a message", sent), ("a token", token)):
        print(*walk.lines(name, floors, is_long="-v" in words), sep="\n")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
