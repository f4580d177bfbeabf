"""The readers' view of a run in progress: its responses so far, notifications of more, and its result."""

import asyncio
import sys
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Generator
from contextlib import suppress
from time import monotonic
from typing import Any

from agent.errors import InputError
from agent.responses import BubbleMarker, Piece, Response
from agent.result import RunResult
from agent.runtime.retry import Wait


class RunStream(ABC):
    """A cancellable stream of responses.

    Owns `responses`, the log of all responses so far, and `emitted_at`, their times on the monotonic clock. Several
    readers can follow it. Iterating and awaiting start it. `refused` is the error of a run that cannot be done at all,
    for example because a picture cannot be fetched or a suspension was used before. Iterating and awaiting raise it;
    other readers see an `error` response.
    """

    def __init__(self) -> None:
        self.responses: list[Response] = []
        self.emitted_at: list[float] = []
        self.result: RunResult | None = None
        self.refused: InputError | None = None
        self._mark = BubbleMarker()
        self._updated, self._last_word = asyncio.Event(), asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @abstractmethod
    def start(self) -> Any:
        """Begin in a task of the running event loop. A second call does nothing."""

    @abstractmethod
    def cancel(self, reason: str = "user_request") -> None:
        """Cancel the run."""

    @property
    @abstractmethod
    def waiting(self) -> Wait | None:
        """The current pause before a retry, or the place in the request queue; None if the run is not waiting."""

    @property
    def done(self) -> bool:
        """True if the run has ended and `result` is set."""
        return self.result is not None

    async def wait_for_update(self, seen: int, *, timeout: float | None = None) -> None:  # noqa: ASYNC109 - it does not raise
        """Wait until there are more than `seen` responses, the run has ended, or `waiting` changes.

        Returns after `timeout` seconds at the latest.
        """
        before = self.waiting
        try:
            async with asyncio.timeout(timeout):
                while len(self.responses) <= seen and not self.done and self.waiting is before:
                    self._updated.clear()
                    await self._updated.wait()
        except TimeoutError:
            return

    async def wait_until_done(self, seconds: float) -> bool:
        """Wait up to `seconds` for the end without waking for each token, because each wake-up costs the page time.

        Return True if no more text will come. The result is set a little later, after the messages are saved.
        """
        with suppress(TimeoutError):
            await asyncio.wait_for(self._last_word.wait(), seconds)
        return self._last_word.is_set()

    async def __aiter__(self) -> AsyncIterator[Response]:
        self.start()
        seen = 0
        try:
            while not (self.done and seen == len(self.responses)):
                await self.wait_for_update(seen)
                if self.refused is not None:
                    raise self.refused
                for response in self.responses[seen:]:
                    seen += 1
                    yield response
            await self._released()
        finally:
            self.cancel("client_disconnect")

    def __await__(self) -> Generator[Any, None, RunResult]:
        return self._result().__await__()

    async def _result(self) -> RunResult:
        self.start()
        try:
            while not self.done:
                await self.wait_for_update(sys.maxsize)
        except asyncio.CancelledError:
            self.cancel("client_disconnect")
            raise
        await self._released()
        assert self.result is not None
        if self.refused is not None:
            raise self.refused
        return self.result

    async def _released(self) -> None:
        """Wait until the run has closed what it opened, because the program can end right after the run."""
        if self._task is not None:
            await asyncio.wait([self._task])

    def _emit(self, piece: Piece) -> None:
        self.emitted_at.append(monotonic())
        self.responses.append(self._mark(piece))
        self._updated.set()
