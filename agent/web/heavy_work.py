"""Limits for requests that cost much: how many are answered at once, and how many a minute."""

import asyncio
import math
from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Mapping
from contextlib import aclosing
from time import monotonic
from types import TracebackType
from typing import Any, Self, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from agent.errors import Limited
from agent.i18n.text import _
from agent.web.client_address import client_address, has_full_share

T = TypeVar("T")

MINUTE_SECONDS = 60.0
REQUESTS_EACH = 60
"""Searches and changes a minute of one visitor of a public page."""
REQUESTS_PER_ADDRESS = 240
"""The same of all visitors at one network address."""
RETRY_AFTER_SECONDS = 5
"""The seconds after which a request is tried again that found no place."""


class TooManyRequests(Limited):
    """There are too many requests. The next one can be tried after `seconds`."""

    def __init__(self, seconds: int) -> None:
        super().__init__(_("Too many requests. Try again in {seconds} s.", seconds=seconds))
        self.seconds = seconds


class RequestLimit:
    """Counts costly requests of the last minute, by visitor and by network address. Forgets those that are older.

    Requests that have neither count together, as those of one address.
    """

    def __init__(
        self, each: int = REQUESTS_EACH, per_address: int = REQUESTS_PER_ADDRESS, clock: Callable[[], float] = monotonic
    ) -> None:
        self._each, self._per_address, self._clock = each, per_address, clock
        self._times = dict[str, deque[float]]()
        """The times of the requests that count, by visitor and by address: who asked last is at the end."""

    @classmethod
    def of_page(cls, *, public: bool) -> "RequestLimit | None":
        """Return a new limit for one kind of requests to a public page, None for a private page."""
        return cls() if public else None

    def count(self, owner: str, address: str | None, number: int = 1) -> None:
        """Count a request, as so many. Raises `TooManyRequests`, which counts nothing."""
        now = self._clock()
        for key in self._keys(owner, address, now, number):
            times = self._times.pop(key, deque[float]())
            times.extend([now] * number)
            self._times[key] = times

    def check(self, owner: str, address: str | None, number: int = 1) -> None:
        """Raise `TooManyRequests` if a request would be too many. Counts nothing."""
        self._keys(owner, address, self._clock(), number)

    def _keys(self, owner: str, address: str | None, now: float, number: int) -> Iterable[str]:
        """Return what a request counts for. Raises `TooManyRequests`."""
        while self._times and (first := next(iter(self._times.items())))[1][-1] <= now - MINUTE_SECONDS:
            del self._times[first[0]]
        limits = {f"owner {owner}": self._each} if owner else {}
        if address is not None or not owner:
            limits[f"address {address}"] = self._per_address
        for key, most in limits.items():
            times = self._times.get(key, deque[float]())
            while times and times[0] <= now - MINUTE_SECONDS:
                times.popleft()
            if (over := len(times) + number - most) > 0:
                last = times[min(over, len(times)) - 1] if times else now  # the one that must be forgotten first
                raise TooManyRequests(max(1, math.ceil(last + MINUTE_SECONDS - now)))
        return limits


def count_request(limit: RequestLimit | None, request: Request, owner: str) -> None:
    """Count a request to a route, if the page has a limit. Raises `TooManyRequests`."""
    if limit is not None:
        limit.count(owner, client_address(request.scope))


class HeldPlace:
    """A place that is released once. The `with` block releases it at its end, unless it was handed over."""

    def __init__(self, release: Callable[[], object]) -> None:
        self._release: Callable[[], object] | None = release
        self._is_handed_over = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if not self._is_handed_over:
            self.release()

    def hand_over(self) -> None:
        """Hand the place over. Its new owner calls `release`."""
        self._is_handed_over = True

    def release(self) -> None:
        """Release the place. A second call does nothing."""
        if self._release is not None:
            self._release, release = None, self._release
            release()


class RequestSlot(HeldPlace):
    """A place among the requests that are answered at once. It is released at the latest if it is lost."""

    def __del__(self) -> None:
        self.release()


class HeavyWork:
    """The places for one kind of request: `most` in all, and `each` for one visitor.

    A network address has its share of the free places, and can always have the number `always`.
    """

    def __init__(self, most: int, *, each: int, always: int) -> None:
        self._capacity, self._each, self._always = most, each, always
        self._used, self._owners, self._addresses = 0, Counter[str](), Counter[str]()

    def place(self, owner: str, address: str | None) -> RequestSlot:
        """Return a place. Raises `TooManyRequests`. No other request can come between the check and the count.

        `owner` is "" if the visitor is not known, and `address` is None if the network address is not known.
        """
        free, mine = self._capacity - self._used, self._addresses[address] if address is not None else 0
        if (
            free <= 0
            or (owner and self._owners[owner] >= self._each)
            or (address is not None and has_full_share(mine, free=free, always=self._always))
        ):
            raise TooManyRequests(RETRY_AFTER_SECONDS)
        self._count(1, owner, address)
        return RequestSlot(lambda: self._count(-1, owner, address))

    def _count(self, number: int, owner: str, address: str | None) -> None:
        self._used += number
        for counts, key in ((self._owners, owner), (self._addresses, address)):
            if key:
                counts[key] += number
                if counts[key] <= 0:
                    del counts[key]


class HeavyBody:
    """The pieces of an answer. Its place is given back when they are over, are closed, or were never asked for."""

    def __init__(self, pieces: AsyncGenerator[Any], place: RequestSlot) -> None:
        self._pieces, self._place = pieces, place
        place.hand_over()

    def __aiter__(self) -> "HeavyBody":
        return self

    async def __anext__(self) -> bytes:
        try:
            piece: str | bytes = await anext(self._pieces)
        except BaseException:
            await self.aclose()
            raise
        return piece if isinstance(piece, bytes) else piece.encode(errors="replace")

    async def aclose(self) -> None:
        """End the work, and give the place back."""
        try:
            await self._pieces.aclose()
        finally:
            self._place.release()


class HeavyResponse(StreamingResponse):
    """An answer in pieces of text or bytes that ends its work when it ends, also if the client has gone."""

    def __init__(
        self, pieces: AsyncGenerator[Any], place: RequestSlot, headers: Mapping[str, str], media_type: str
    ) -> None:
        self._body = HeavyBody(pieces, place)
        super().__init__(self._body, headers=headers, media_type=media_type)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the pieces. A request for the head alone makes none.

        Starlette would cancel the work again and again until its step has ended, and so keep the loop busy.
        """
        async with aclosing(self._body):
            if scope["method"] == "HEAD":
                await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
                await send({"type": "http.response.body", "body": b""})
                return
            sending = asyncio.ensure_future(self.stream_response(send))
            listening = asyncio.ensure_future(self.listen_for_disconnect(receive))
            try:
                await asyncio.wait((sending, listening), return_when=asyncio.FIRST_COMPLETED)
            finally:
                sending.cancel()
                listening.cancel()
                await asyncio.wait((sending, listening))
            if not sending.cancelled():
                sending.result()


async def result_unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of the work. If the client has gone, cancel it, and raise `ClientDisconnect` after its end."""
    working, gone = asyncio.ensure_future(work), asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait((working, gone), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientDisconnect
    finally:
        working.cancel()
        gone.cancel()  # which `asyncio.wait_for` can ignore, in a body that has just come: it ends with the request
        await asyncio.wait((working,))


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
