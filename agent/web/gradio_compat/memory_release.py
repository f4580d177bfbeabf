"""Stops Gradio from keeping visitors' messages, files and typed keys in memory longer than needed.

Gradio keeps the widgets' values of the last 500 sessions for deep links, which this app does not use. Also, each event
that raises leaves a reference cycle: the queue's frame holds the exception, and the traceback holds that frame and all
frames below it, with everything that was sent. Only a full garbage collection frees the cycle, and full collections are
rare. See https://github.com/gradio-app/gradio/issues/11009.
"""

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any, cast

from gradio import route_utils
from gradio.state_holder import SessionState

from agent.web.gradio_compat.import_hook import nothing

_raised: ContextVar[list[BaseException]] = ContextVar("raised")
_call: Callable[..., Awaitable[Any]] = cast(Any, route_utils).call_process_api


def release_memory(queue: Any) -> None:
    """Patch this queue and all sessions so that they keep less."""
    cast(Any, SessionState)._update_value_in_config = nothing
    cast(Any, route_utils).call_process_api = _call_and_note_error
    process: Callable[..., Awaitable[None]] = queue.process_events

    async def process_events(*given: Any, **named: Any) -> None:
        raised: list[BaseException] = []
        _raised.set(raised)
        try:
            await process(*given, **named)
        finally:
            for error in raised:
                _drop_tracebacks(error)

    queue.process_events = process_events


async def _call_and_note_error(*given: Any, **named: Any) -> Any:
    try:
        return await _call(*given, **named)
    except Exception as error:
        _raised.get([]).append(error)
        raise


def _drop_tracebacks(error: BaseException) -> None:
    """Drop the tracebacks of an exception and of all its causes, which frees the frames that have ended.

    Don't clear the frames: several tasks can share an exception, and clearing the frame of a waiting coroutine closes
    the coroutine.
    """
    left, seen = list[BaseException | None]([error]), set[int]()
    while left:
        found = left.pop()
        if found is None or id(found) in seen:
            continue
        seen.add(id(found))
        found.__traceback__ = None
        left += [found.__cause__, found.__context__]
        if isinstance(found, BaseExceptionGroup):
            left += cast("BaseExceptionGroup[BaseException]", found).exceptions
