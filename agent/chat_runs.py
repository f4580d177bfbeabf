"""Follows a run of a chat from any thread and any event loop, while the run itself is in the chat's loop."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

from agent.responses import Response
from agent.result import RunResult
from agent.run import Run
from agent.runtime.loop_thread import LoopEnded, LoopThread

BegunRun = tuple[Run, "asyncio.Task[None]"]
"""A run that has begun, and the task that ends once its chat has its result."""


@dataclass(frozen=True, slots=True)
class RunFollower:
    """Begins a run with `begin` in the loop of `thread`, and follows it. Leaving early cancels the run.

    A chat that is closed meanwhile ends the run first.
    """

    thread: Callable[[], LoopThread]
    begin: Callable[[], Coroutine[Any, Any, BegunRun]]

    def responses(self) -> Iterator[Response]:
        """Yield the responses. Nothing begins before the first one is requested."""
        loop_thread = self.thread()
        run, completion = loop_thread.wait(self.begin())
        seen = 0
        try:
            while new_responses := loop_thread.wait(_wait_for_update(run, completion, seen)):
                seen += len(new_responses)
                yield from new_responses
        except LoopEnded:
            yield from run.responses[seen:]
        finally:
            _end(loop_thread, run, completion)

    async def responses_async(self) -> AsyncIterator[Response]:
        """Do the same as `responses`, for `async for`."""
        async with self._run_in_loop() as (loop_thread, run, completion):
            seen = 0
            try:
                while new_responses := await loop_thread.submit(_wait_for_update(run, completion, seen)):
                    seen += len(new_responses)
                    for response in new_responses:
                        yield response
            except LoopEnded:
                for response in run.responses[seen:]:
                    yield response

    def result(self) -> RunResult:
        """Wait for the end and return the result. Raises `InputError` if the run was refused."""
        loop_thread = self.thread()
        run, completion = loop_thread.wait(self.begin())
        try:
            with suppress(LoopEnded):
                loop_thread.wait(_wait_for(completion))
        finally:
            _end(loop_thread, run, completion)
        return _result_of(run)

    async def result_async(self) -> RunResult:
        """Do the same as `result`, for `await`."""
        async with self._run_in_loop() as (loop_thread, run, completion):
            with suppress(LoopEnded):
                await loop_thread.submit(_wait_for(completion))
        return _result_of(run)

    @asynccontextmanager
    async def _run_in_loop(self) -> AsyncGenerator[tuple[LoopThread, Run, "asyncio.Task[None]"]]:
        """Begin a run. Leaving the context cancels it and waits for its end."""
        loop_thread = self.thread()
        run, completion = await loop_thread.submit(self.begin())
        try:
            yield loop_thread, run, completion
        finally:
            run.cancel("reader_left")
            with suppress(LoopEnded):
                await loop_thread.submit(_wait_for(completion))


def _end(loop_thread: LoopThread, run: Run, completion: "asyncio.Task[None]") -> None:
    run.cancel("reader_left")
    with suppress(LoopEnded):
        loop_thread.wait(_wait_for(completion))


def _result_of(run: Run) -> RunResult:
    if run.refused is not None:
        raise run.refused
    assert run.result is not None
    return run.result


async def _wait_for_update(run: Run, completion: "asyncio.Task[None]", seen: int) -> Sequence[Response]:
    """Wait for the responses after the first `seen`. Return none once the run has ended and `Chat.result` is set."""
    while len(run.responses) == seen or run.refused:
        if run.done:
            await _wait_for(completion)
            if run.refused is not None:
                raise run.refused
            return ()
        await run.wait_for_update(seen)
    return run.responses[seen:]


async def _wait_for(completion: "asyncio.Task[None]") -> None:
    await asyncio.shield(completion)
