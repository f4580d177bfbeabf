"""Starts the app and prints when a message passes each step to the model, and its first text on the way to the page.

The app itself is unchanged: the steps are seen from outside, through some of its methods. Each step makes one line,
`bench NUMBER STEP EPOCH_MS CPU_MS`, with the number of the message. The CPU time is that of all threads of the process.
"""

import time
from typing import Any, cast

import app
from agent.providers import http
from agent.runtime.run_stream import RunStream
from agent.web.chat.journal import StoreJournal
from agent.web.message_routes import MessageRoutes
from agent.web.middleware.isolation import IsolationMiddleware
from agent.web.run_event_routes import TurnFrames

STEPS = ("join", "handler", "stored", "leaves", "text", "told", "asked", "frame")
"""The request of the page arrives; its handler starts; the message is stored; the request to the model leaves; the run
has its first text; the page is told the answer's id; the page asks for the answer; the text leaves."""

Mark = tuple[float, float]


class Steps:
    """The steps of the message that is on its way. The bench sends one at a time."""

    def __init__(self) -> None:
        self._number, self._passed = -1, set[str]()

    def begin(self, joined: Mark) -> None:
        """Begin with a message whose request arrived at this moment."""
        self._number, self._passed = self._number + 1, set()
        self._print("join", joined)
        self._print("handler", now())

    def pass_(self, step: str, after: str = "handler") -> None:
        """Print the first time of a step, if it comes `after` another one."""
        if self._number >= 0 and step not in self._passed and after in self._passed:
            self._print(step, now())

    def _print(self, step: str, mark: Mark) -> None:
        self._passed.add(step)
        print("bench", self._number, step, *mark, flush=True)


def now() -> Mark:
    """Return the time since the epoch and the CPU time of this process, in milliseconds."""
    return time.time() * 1000, time.process_time() * 1000


def watch(steps: Steps) -> None:
    """Let the methods of the app report their steps."""
    isolate, store, write = IsolationMiddleware.__call__, MessageRoutes._store, StoreJournal.write
    transport = cast(Any, http)._BatchingTransport
    send, emit, after = transport.handle_async_request, RunStream.emit, TurnFrames.after

    async def isolated(self: IsolationMiddleware, scope: Any, receive: Any, answer: Any) -> None:
        path = str(scope.get("path", ""))
        if scope.get("method") == "POST" and path.startswith("/conversations"):
            scope["bench"] = now()
        elif path.startswith("/runs/"):
            steps.pass_("asked")
        await isolate(self, scope, receive, answer)

    async def stored(self: MessageRoutes, request: Any, *given: Any) -> dict[str, Any]:
        steps.begin(request.scope["bench"])
        begun = await store(self, request, *given)
        steps.pass_("told")
        return begun

    async def written(self: StoreJournal, message: Any, note: Any) -> None:
        await write(self, message, note)
        steps.pass_("stored")

    async def sent(self: Any, request: Any) -> Any:
        steps.pass_("leaves")
        return await send(self, request)

    def emitted(self: RunStream, piece: Any) -> None:
        steps.pass_("text")
        emit(self, piece)

    async def frames_after(self: TurnFrames, last_id: str) -> Any:
        frames = await after(self, last_id)
        if any("word0" in data for _, data in frames):
            steps.pass_("frame")
        return frames

    cast(Any, IsolationMiddleware).__call__ = isolated
    cast(Any, MessageRoutes)._store = stored
    cast(Any, StoreJournal).write = written
    cast(Any, RunStream).emit = emitted
    cast(Any, TurnFrames).after = frames_after
    transport.handle_async_request = sent


if __name__ == "__main__":
    watch(Steps())
    raise SystemExit(app.main())
