"""Pictures that links lead to: fetched by this server behind the guard, when the page has asked and was told to."""

import asyncio
import re
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import PurePosixPath
from urllib.parse import unquote, urlsplit

from agent.errors import InputError
from agent.guard import Guard
from agent.media.images import KINDS
from agent.media.kinds import SUFFIXES, kind
from agent.ui.gate import Gate
from agent.ui.visitor import Visitor
from agent.ui.words import ours

SECONDS = 20.0
EARLY = 1000
"""Asks that are remembered as given up before they came."""
SAID = ("image/*", "application/octet-stream", "binary/octet-stream")
"""What servers call pictures; some say of every file that it is one of bytes."""


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture and what to call it; what it is, its own first bytes have shown."""

    name: str
    data: bytes
    media_type: str


class Links:
    """Owner of the fetches under way, by what the page calls each: an `ask` names one fetch and never another."""

    def __init__(self, guard: Guard, gate: Gate, *, max_bytes: int, seconds: float = SECONDS) -> None:
        self._guard, self._gate, self._max_bytes, self._seconds = guard, gate, max_bytes, seconds
        self._fetches: dict[str, asyncio.Task[Picture]] = {}
        self._early: OrderedDict[str, None] = OrderedDict()

    async def fetch(self, visitor: Visitor, ask: str, url: str) -> Picture | None:
        """The picture at `url`; None where it was given up.

        Raises `InputError` where the guard refuses, or what came is no picture, and `Limited`.
        """
        if ask in self._early:
            return self._early.pop(ask)
        with self._gate.fetch(visitor):
            task = self._fetches[ask] = asyncio.create_task(self._fetch(url))
            try:
                await asyncio.wait([task])
                return None if task.cancelled() else task.result()
            finally:
                task.cancel()
                del self._fetches[ask]

    def give_up(self, ask: str) -> None:
        """End this fetch; where it comes later than that it is given up, it does not begin."""
        if task := self._fetches.get(ask):
            task.cancel()
            return
        self._early[ask] = None
        while len(self._early) > EARLY:
            self._early.popitem(last=False)

    async def _fetch(self, url: str) -> Picture:
        got = await self._guard.fetch(url, kinds=SAID, max_bytes=self._max_bytes, seconds=self._seconds)
        found = kind(got.data)
        if found not in KINDS:
            raise ours(InputError, "no_picture_there", host=urlsplit(got.url).hostname or "")
        return Picture(_name(url, found), got.data, found)


def _name(url: str, found: str) -> str:
    """What the file is called: as in the URL, without what no file name should have, with the suffix of its kind."""
    called = PurePosixPath(unquote(urlsplit(url).path)).name.partition(".")[0]
    stem = re.sub(r"[^\w-]+", "-", called).strip("-")[:60]
    return f"{stem or 'picture'}.{SUFFIXES[found]}"
