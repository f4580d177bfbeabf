"""Fetches linked images on the server, through the fetch guard, after the visitor has agreed on the page."""

import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from urllib.parse import unquote, urlsplit

from agent.errors import InputError
from agent.fetch import Guard
from agent.files.images import KINDS
from agent.files.mime import SUFFIXES, detect_mime
from agent.i18n.text import _
from agent.web.chat.rate_limit import RateLimiter
from agent.web.chat.visitor import Visitor

LINK_SECONDS = 20.0
ACCEPTED_TYPES = ("image/*", "application/octet-stream", "binary/octet-stream")
"""Media types that servers use for images. Some servers label every file as bytes."""


@dataclass(frozen=True, slots=True)
class FetchedPicture:
    """An image and its name. `media_type` is detected from its first bytes."""

    name: str
    data: bytes
    media_type: str


class LinkFetcher:
    """Fetches linked images for visitors, within their limits. `guard` decides which hosts are allowed."""

    def __init__(
        self, guard: Guard, rate_limiter: RateLimiter, *, max_bytes: int, seconds: float = LINK_SECONDS
    ) -> None:
        self._guard, self._rate_limiter, self._max_bytes, self._seconds = guard, rate_limiter, max_bytes, seconds

    async def fetch(self, visitor: Visitor, url: str) -> FetchedPicture:
        """Return the image at `url`. Raises `Limited`, and `InputError` if the guard refuses or it is no image."""
        with self._rate_limiter.reserve_fetch(visitor):
            return await self._fetch(url)

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


def _name(url: str, found: str) -> str:
    """Return the file name: the name in the URL without unsafe characters, with the suffix of the detected type."""
    called = PurePosixPath(unquote(urlsplit(url).path)).name.partition(".")[0]
    stem = re.sub(r"[^\w-]+", "-", called).strip("-")[:60]
    return f"{stem or 'picture'}.{SUFFIXES[found]}"
