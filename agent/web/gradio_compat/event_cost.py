"""Stops Gradio from doing work in each event and session that this page does not need.

Gradio copies the page for each session, and keeps each component that an event has changed for the session's next
events. They took 60 KB of a session, and 500 sessions are kept. This page needs them only within the event: no
component has a state, and how an event reads or writes a value depends on nothing that an earlier event has changed.

Gradio also describes every component of a page for each new session, and a component again for each update of it, with
JSON schemas that pydantic makes anew. Only deep links use these descriptions. They took a third of the CPU of a page
load and 3 ms for each message. Gradio also looks for matplotlib twice in each event, and reads the signature of a
component's class for each update, which are 20 for a page load.

Gradio makes a component anew for each output that an event leaves as it is, and then sends nothing of it.

Gradio reads and writes the value of each component in a thread of its own, one after the other. A message has about 16
of them, which took a third of the time between its arrival and its handler. It also begins each handler that yields
several updates in a thread, and FastAPI asks there whether each request to the queue has a login.
"""

import inspect
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from functools import cache
from types import SimpleNamespace
from typing import Any, cast

import anyio.to_thread
import gradio as gr
from fastapi.dependencies import utils as dependencies
from gradio import blocks, component_meta, utils
from gradio.components import base
from gradio.state_holder import SessionState
from starlette.concurrency import run_in_threadpool

from agent.web.gradio_compat.import_hook import nothing

_begin: Callable[[Any, Any], None] = SessionState.__init__
_get: Callable[[Any, int], Any] = SessionState.__getitem__
_changed: ContextVar[dict[int, Any]] = ContextVar("changed")
"""The components that the running event has changed. Each event runs in a task with a context of its own."""
NOTHING = cast(Any, base)._Keywords.FINISHED_ITERATING
"""The value for which Gradio does not look at an output."""
INSPECT = SimpleNamespace(getfile=inspect.getfile, getfullargspec=cache(inspect.getfullargspec))
"""The functions of `inspect` that Gradio's module uses."""

LOGIN_CHECK = "login_check"
"""The name of Gradio's function that looks whether somebody has logged in."""
CONVERSIONS = ("preprocess", "postprocess")
"""The methods of a component that Gradio runs in a thread. No component of this page reads a file in them."""


async def _run(function: Callable[..., Any], *arguments: Any, limiter: anyio.CapacityLimiter | None = None) -> Any:
    """Run a function in a thread, unless it is quick. See `CONVERSIONS`. A generator function only returns."""
    if getattr(function, "__name__", "") in CONVERSIONS or inspect.isasyncgenfunction(function):
        return function(*arguments)
    return await anyio.to_thread.run_sync(function, *arguments, limiter=limiter)


async def _depend(function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Run a dependency of a request in a thread, unless it only looks whether somebody has logged in."""
    if function.__name__ == LOGIN_CHECK:
        return function(*arguments, **named)
    return await run_in_threadpool(function, *arguments, **named)


ANYIO = SimpleNamespace(to_thread=SimpleNamespace(run_sync=_run))
"""The functions of `anyio` that Gradio's module uses."""


def reduce_event_cost(page: gr.Blocks) -> None:
    """Patch all sessions and events. The page must have no component with a state."""
    assert not any(block.stateful for block in page.blocks.values()), "Sessions share components: use no `gr.State`."
    cast(Any, SessionState).__init__ = _begin_session
    cast(Any, SessionState).__getitem__, cast(Any, SessionState).__setitem__ = _get_component, _set_component
    cast(Any, SessionState)._update_config = nothing
    cast(Any, component_meta).inspect = INSPECT
    cast(Any, blocks).anyio = ANYIO
    cast(Any, dependencies).run_in_threadpool = _depend
    manager = cast(Any, utils).MatplotlibBackendMananger
    manager.__enter__ = manager.__exit__ = nothing
    cast(Any, page).postprocess_data = _without_unchanged(cast(Any, page).postprocess_data)


def _begin_session(session: Any, blocks: Any) -> None:
    """Begin a session that shares the components of the page and describes none of them."""
    _begin(session, SimpleNamespace(default_config=SimpleNamespace(blocks={}), blocks=()))
    session.blocks_config = blocks.default_config


def _set_component(_: Any, key: int, component: Any) -> None:
    """Keep a changed component until the end of the event."""
    changed = _changed.get({})
    _changed.set(changed)
    changed[key] = component


def _get_component(session: Any, key: int) -> Any:
    changed = _changed.get({})
    return changed[key] if key in changed else _get(session, key)


def _without_unchanged(write: Callable[..., Awaitable[list[Any]]]) -> Callable[..., Awaitable[list[Any]]]:
    """Return the function that writes the outputs of an event, for which an unchanged one costs nothing."""

    async def write_changed(event: Any, values: Any, state: Any) -> list[Any]:
        if isinstance(values, dict):
            if values == gr.skip():
                return [gr.skip() for _ in event.outputs]
            values = blocks.convert_component_dict_to_list(event.outputs, cast("dict[Any, Any]", values))
        if len(event.outputs) == 1 or not isinstance(values, list | tuple):
            return await write(event, values, state)
        each = cast("list[Any]", [*values])
        unchanged = {n for n, value in enumerate(each) if isinstance(value, dict) and value == gr.skip()}
        written = await write(event, [NOTHING if n in unchanged else value for n, value in enumerate(each)], state)
        return [gr.skip() if n in unchanged else value for n, value in enumerate(written)]

    return write_changed
