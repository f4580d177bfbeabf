"""Fetches linked images on the server, through the fetch guard, after the visitor has agreed on the page."""

import asyncio
import re
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePosixPath
from time import monotonic
from urllib.parse import unquote, urlsplit

from agent.errors import InputError
from agent.fetch import Guard
from agent.i18n import _
from agent.media.images import KINDS
from agent.media.mime import SUFFIXES, detect_mime
from agent.web.chat.rate_limit import RateLimiter
from agent.web.chat.visitor import Visitor

LINK_SECONDS = 20.0
MAX_CANCELLED_PER_VISITOR = 20
MAX_CANCELLED = 1000
CANCELLED_SECONDS = 60.0
"""The number of fetches remembered as cancelled before they arrived, per visitor and in total, and for how long."""
_NUMBER = re.compile("[0-9]{1,9}")
ACCEPTED_TYPES = ("image/*", "application/octet-stream", "binary/octet-stream")
"""Media types that servers use for images. Some servers label every file as bytes."""


@dataclass(frozen=True, slots=True)
class FetchedPicture:
    """An image and its name. `media_type` is detected from its first bytes."""

    name: str
    data: bytes
    media_type: str


class LinkFetcher:
    """Fetches linked images. Owns the running fetches by `fetch_id`, a name that is never used twice."""

    def __init__(
        self,
        guard: Guard,
        rate_limiter: RateLimiter,
        *,
        max_bytes: int,
        seconds: float = LINK_SECONDS,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._guard, self._rate_limiter, self._max_bytes, self._seconds, self._clock = (
            guard,
            rate_limiter,
            max_bytes,
            seconds,
            clock,
        )
        self._fetches: dict[str, asyncio.Task[FetchedPicture]] = {}
        self._cancelled_early: OrderedDict[str, tuple[str, float]] = OrderedDict()
        """By fetch_id: the visitor who cancelled it before it arrived, and when."""

    async def fetch(self, visitor: Visitor, fetch_id: str, url: str) -> FetchedPicture | None:
        """Return the image at `url`, or None if the fetch was cancelled.

        Raises `InputError` if the guard refuses or the file is no image, and `Limited`.
        """
        if self._cancelled_early.pop(fetch_id, None):
            return None
        with self._rate_limiter.reserve_fetch(visitor):
            task = self._fetches[fetch_id] = asyncio.create_task(self._fetch(url))
            try:
                await asyncio.wait([task])
                return None if task.cancelled() else task.result()
            finally:
                task.cancel()
                if self._fetches.get(fetch_id) is task:
                    del self._fetches[fetch_id]

    def cancel(self, visitor: Visitor, fetch_id: str) -> None:
        """Cancel this fetch. A fetch that arrives soon after its cancellation does not begin."""
        if task := self._fetches.get(fetch_id):
            task.cancel()
            return
        now, cancelled = self._clock(), self._cancelled_early
        cancelled[fetch_id] = visitor.rate_limit_key, now
        cancelled.move_to_end(fetch_id)
        mine = [one for one, (who, _) in cancelled.items() if who == visitor.rate_limit_key]
        for one in mine[:-MAX_CANCELLED_PER_VISITOR]:
            del cancelled[one]
        while len(cancelled) > MAX_CANCELLED or next(iter(cancelled.values()))[1] <= now - CANCELLED_SECONDS:
            cancelled.popitem(last=False)

    async def _fetch(self, url: str) -> FetchedPicture:
        got = await self._guard.fetch(url, kinds=ACCEPTED_TYPES, max_bytes=self._max_bytes, seconds=self._seconds)
        found = detect_mime(got.data)
        if found not in KINDS:
            raise InputError(
                _(
                    "The file from {host} can't be opened as an image. Supported: PNG, JPEG, WebP, GIF, HEIC, AVIF.",
                    host=urlsplit(got.url).hostname or "",
                )
            )
        return FetchedPicture(_name(url, found), got.data, found)


def fetch_id_of(session: str | None, number: str) -> str | None:
    """Return the name of the fetch that a page session calls `number`, or None if that is not a page's number."""
    return f"{session} {number}" if _NUMBER.fullmatch(number) else None


def _name(url: str, found: str) -> str:
    """Return the file name: the name in the URL without unsafe characters, with the suffix of the detected type."""
    called = PurePosixPath(unquote(urlsplit(url).path)).name.partition(".")[0]
    stem = re.sub(r"[^\w-]+", "-", called).strip("-")[:60]
    return f"{stem or 'picture'}.{SUFFIXES[found]}"
