"""Starts the app and prints when a message passes each step on its way to the model, for `bench.first_token`.

The app itself is unchanged: the steps are seen from outside, through four of its methods. Each message makes one line,
`bench {"join": [epoch ms, CPU ms], ...}`. The CPU time is that of all threads of the process.
"""

import json
import time
from collections.abc import AsyncIterator
from typing import Any, cast

import app
from agent.providers import http
from agent.web.chat.journal import StoreJournal
from agent.web.middleware.isolation import IsolationMiddleware
from agent.web.ui.handlers import Handlers

STEPS = ("join", "handler", "stored", "leaves")
"""The request of the page arrives; its handler starts; the message is stored; the request to the model leaves."""

Mark = tuple[float, float]


class Steps:
    """The times of the message that is on its way. The bench sends one at a time."""

    def __init__(self) -> None:
        self._marks: dict[str, Mark] = {}

    def begin(self, joined: Mark) -> None:
        """Begin with a message whose request arrived at this moment."""
        self._marks = {"join": joined, "handler": now()}

    def pass_(self, step: str) -> None:
        """Note the first time of a step. Print the line at the last one."""
        if not self._marks or step in self._marks:
            return
        self._marks[step] = now()
        if step == STEPS[-1]:
            print("bench", json.dumps(self._marks), flush=True)
            self._marks = {}


def now() -> Mark:
    """Return the time since the epoch and the CPU time of this process, in milliseconds."""
    return time.time() * 1000, time.process_time() * 1000


def watch(steps: Steps) -> None:
    """Let the methods of the app report their steps."""
    isolate, submit, write = IsolationMiddleware.__call__, Handlers.submit, StoreJournal.write
    transport = cast(Any, http)._BatchingTransport
    send = transport.handle_async_request

    async def isolated(self: IsolationMiddleware, scope: Any, receive: Any, answer: Any) -> None:
        if str(scope.get("path", "")).endswith("/queue/join"):
            scope["bench"] = now()
        await isolate(self, scope, receive, answer)

    async def submitted(self: Handlers, given: Any, request: Any) -> AsyncIterator[Any]:
        steps.begin(request.request.scope["bench"])
        async for shown in submit(self, given, request):
            yield shown

    async def written(self: StoreJournal, message: Any, note: Any) -> None:
        await write(self, message, note)
        steps.pass_("stored")

    async def sent(self: Any, request: Any) -> Any:
        steps.pass_("leaves")
        return await send(self, request)

    cast(Any, IsolationMiddleware).__call__ = isolated
    submitted.__annotations__ = submit.__annotations__  # Gradio reads them to find the request
    cast(Any, Handlers).submit = submitted
    cast(Any, StoreJournal).write = written
    transport.handle_async_request = sent


if __name__ == "__main__":
    watch(Steps())
    raise SystemExit(app.main())
