"""Pictures that links lead to: fetched by this server behind the guard, when the page has asked and was told to."""

import asyncio
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

from gradio.processing_utils import save_bytes_to_cache
from gradio.utils import get_upload_folder

from agent.errors import InputError
from agent.guard import Guard
from agent.media.images import KINDS
from agent.media.kinds import SUFFIXES, kind
from agent.ui.gate import Gate

SECONDS = 20.0
SAID = ("image/*", "application/octet-stream", "binary/octet-stream")
"""What servers call pictures; some say of every file that it is one of bytes."""


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture among the files that were uploaded; what it is, its own first bytes have shown."""

    path: Path
    media_type: str


class Links:
    """Owner of the fetches under way. A page has one at a time: a newer one ends the older."""

    def __init__(self, guard: Guard, gate: Gate, *, max_bytes: int, seconds: float = SECONDS) -> None:
        self._guard, self._gate, self._max_bytes, self._seconds = guard, gate, max_bytes, seconds
        self._fetches: dict[str, tuple[str, asyncio.Task[Picture]]] = {}
        self._owners = Counter[str]()

    async def fetch(self, owner: str, page: str, url: str) -> Picture | None:
        """The picture at `url`, kept as uploads are; None where it was given up.

        Raises `InputError` where the guard refuses, or what came is no picture, and `Limited`.
        """
        self._gate.fetch(owner, self._owners[owner], self._owners.total())
        self.give_up(page)
        task = asyncio.create_task(self._fetch(url))
        self._fetches[page] = url, task
        self._owners[owner] += 1
        try:
            await asyncio.wait([task])
            return None if task.cancelled() else task.result()
        finally:
            task.cancel()
            self._owners[owner] -= 1
            self._owners += Counter()  # keeps those alone that count
            if self._fetches.get(page) == (url, task):
                del self._fetches[page]

    def give_up(self, page: str, url: str | None = None) -> None:
        """End what this page fetches: from `url`, or whatever it is."""
        asked, task = self._fetches.get(page, (None, None))
        if task is not None and url in (None, asked):
            task.cancel()

    async def _fetch(self, url: str) -> Picture:
        got = await self._guard.fetch(
            url, kinds=SAID, max_bytes=self._max_bytes, seconds=self._seconds, wanted="a picture"
        )
        found = kind(got.data)
        if found not in KINDS:
            host = urlsplit(got.url).hostname
            raise InputError(f"What {host} gave is no picture that can be read; PNG, JPEG, WebP, GIF, HEIC, AVIF are.")
        path = await asyncio.to_thread(save_bytes_to_cache, got.data, _name(url, found), get_upload_folder())
        return Picture(Path(path), found)


def _name(url: str, found: str) -> str:
    """What the file is called: as in the URL, without what no file name should have, with the suffix of its kind."""
    called = PurePosixPath(unquote(urlsplit(url).path)).name.partition(".")[0]
    stem = re.sub(r"[^\w-]+", "-", called).strip("-")[:60]
    return f"{stem or 'picture'}.{SUFFIXES[found]}"
