"""What others see of a run while it goes on: all it has said so far, news of more, its result. It does no work."""

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
    """Something that says responses, ends and can be stopped. Owner of `responses`, the log of all it has said so far,
    and of `said_at`, when it said each, on the monotonic clock.

    Several readers may follow it; iterating and awaiting start it. What cannot be done at all (a picture that cannot
    be fetched, a suspended run that was resumed before) is `refused`: iterating and awaiting raise it, and for all
    others it is an `error`.
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
        """Begin, in a task of the running loop; a second call does nothing."""

    @abstractmethod
    def cancel(self, reason: str = "user_request") -> None:
        """End it."""

    @property
    @abstractmethod
    def waiting(self) -> Wait | None:
        """The pause before another try of a request that failed, or the line it stands in, while there is one."""

    @property
    def done(self) -> bool:
        """Whether it has ended; `result` is there then."""
        return self.result is not None

    async def wait_for_update(self, seen: int, *, timeout: float | None = None) -> None:  # noqa: ASYNC109 - it does not raise
        """Return when there are more than `seen` responses, when the run has ended, when `waiting` changes.

        At most after `timeout` seconds.
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
        """Wait that long for the last word, deaf to others: a page that is woken for every token pays for every token.

        Once it is True no more text will come; the result is there when what was said has been kept.
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
        """Wait until it has let go of what it opened: a program that ends with it would leave that open."""
        if self._task is not None:
            await asyncio.wait([self._task])

    def _emit(self, piece: Piece) -> None:
        self.emitted_at.append(monotonic())
        self.responses.append(self._mark(piece))
        self._updated.set()
