"""The route `/runs/{id}/events`: the events of an answer as Server-Sent Events, for pages and programs.

Only the owner of the run can read it. A reader continues after the number that it has, so it loses nothing when its
connection breaks. `docs/http.md` describes the format.
"""

import asyncio
import sys
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Protocol

from fastapi import FastAPI, Request, Response
from fastapi.responses import StreamingResponse

from agent.errors import NotFound
from agent.history import HistoryStore, RunEvent
from agent.web.chat.live_runs import LiveRun, LiveRuns
from agent.web.client_address import client_address, has_full_share

PING_SECONDS = 15.0
"""Seconds between two comments while nothing happens, so that no proxy closes the connection."""
RETRY_MS = 1000
"""Milliseconds after which a browser connects again."""
STREAMS = 1000
"""The most open streams. A reader beyond this is refused and asks for single answers instead."""
STREAMS_PER_OWNER = 32
STREAMS_ALWAYS = 8
"""Streams that one network address can always have."""
CHUNK = 64 * 1024
"""Characters that are handed to a connection at once. The next ones wait until the reader has taken them."""

HEADERS = {"cache-control": "no-store, no-transform", "x-accel-buffering": "no"}
END = "event: end\ndata: {}\n\n"

Frame = tuple[str, str]
"""The id and the data of one Server-Sent Event."""


class Frames(Protocol):
    """The events of a running answer in one format. The same texts serve all readers."""

    def after(self, last_id: str) -> Sequence[Frame]:
        """Return all frames after the one with this id, or all if there is no such frame."""
        ...


class RunFrames:
    """The frames of programs: the events themselves, with their numbers as ids."""

    def __init__(self, live: LiveRun) -> None:
        self._log = live.log

    def after(self, last_id: str) -> Sequence[Frame]:
        """Implement `Frames.after`."""
        return [_frame(event) for event in self._log.events[_number(last_id) :]]


class RunEventRoutes:
    """The route. Owns the number of open streams per owner and address.

    `owner_of` returns the owner that a request speaks for. `page_frames` returns the frames of an answer for a page.
    """

    def __init__(
        self,
        live_runs: LiveRuns,
        store: HistoryStore,
        owner_of: Callable[[Request], str],
        page_frames: Callable[[LiveRun, Request], Awaitable[Frames]],
    ) -> None:
        self._live_runs, self._store = live_runs, store
        self._owner_of, self._page_frames = owner_of, page_frames
        self._streams = Counter[str]()

    def add_to(self, app: FastAPI) -> None:
        """Add the route to the application."""
        app.add_api_route("/runs/{run_id}/events", self.events)

    async def events(self, request: Request) -> Response:
        """Answer a request. `after` or `Last-Event-ID` is the last event that the reader has.

        With `format=page` the events are frames for the page (see `agent.web.ui.page_frames`). With `wait=0` the answer
        ends with the events so far, for readers whose connection delivers no stream.
        """
        owner, run_id = self._owner_of(request), str(request.path_params["run_id"])
        last_id = request.headers.get("last-event-id") or request.query_params.get("after", "")
        live = self._live_runs.find(run_id, owner)
        for_page = request.query_params.get("format") == "page"
        if live is None:
            return await self._stored(run_id, owner, last_id, for_page=for_page)
        try:
            frames = await self._page_frames(live, request) if for_page else RunFrames(live)
        except NotFound:  # the conversation has just been deleted
            return Response("Not found.", status_code=404)
        if request.query_params.get("wait") == "0":
            with live.watched():  # a page that asks again and again watches, too
                await live.log.publish()
            is_ended = live.log.is_ended and live.run.done
            return Response(_text(frames.after(last_id), is_ended=is_ended), headers=HEADERS, media_type=SSE)
        address = client_address(request.scope)
        if self._is_beyond_share(owner, address):
            return Response("Too many streams at once.", status_code=429)
        return StreamingResponse(
            self._counted(owner, address, stream(live, frames, last_id)), headers=HEADERS, media_type=SSE
        )

    async def _stored(self, run_id: str, owner: str, last_id: str, *, for_page: bool) -> Response:
        """Answer with the events of an answer that has ended, as long as the store keeps them.

        A page gets only the end: it asks for the conversation then.
        """
        after = sys.maxsize if for_page else _number(last_id)
        try:
            events = await self._store.run_events(run_id, owner=owner, after=after)
        except NotFound:
            return Response("Not found.", status_code=404)
        return Response(_text([_frame(event) for event in events], is_ended=True), headers=HEADERS, media_type=SSE)

    def _is_beyond_share(self, owner: str, address: str | None) -> bool:
        used = sum(count for key, count in self._streams.items() if key.startswith("owner "))
        if used >= STREAMS or self._streams[f"owner {owner}"] >= STREAMS_PER_OWNER:
            return True
        mine = self._streams[f"address {address}"]
        return address is not None and has_full_share(mine, free=STREAMS - used, always=STREAMS_ALWAYS)

    async def _counted(self, owner: str, address: str | None, texts: AsyncGenerator[str]) -> AsyncIterator[str]:
        keys = (f"owner {owner}", f"address {address}")
        self._streams.update(keys)
        try:
            async with aclosing(texts):
                async for text in texts:
                    yield text
        finally:
            self._streams -= Counter(keys)


async def stream(live: LiveRun, frames: Frames, last_id: str) -> AsyncGenerator[str]:
    """Yield the text of a stream: a comment at once, then each frame, and the end.

    A reader that is slow gets several frames at once: nothing is kept for it but the id of its last frame.
    """
    yield f": connected\nretry: {RETRY_MS}\n\n"
    spoke_at = _now()
    async with aclosing(live.updates()) as updates:
        async for _ in updates:
            new = frames.after(last_id)
            for text in _chunks(new):
                yield text
                spoke_at = _now()
            if new:
                last_id = new[-1][0]
            elif _now() - spoke_at >= PING_SECONDS:
                yield ": ping\n\n"
                spoke_at = _now()
    yield END


SSE = "text/event-stream"


def _now() -> float:
    return asyncio.get_running_loop().time()


def _chunks(frames: Sequence[Frame]) -> list[str]:
    """Return the text of the frames in pieces of about `CHUNK` characters."""
    pieces, size = list[list[str]](), CHUNK
    for id_, data in frames:
        if size >= CHUNK:
            pieces.append([])
            size = 0
        pieces[-1].append(f"id: {id_}\ndata: {data}\n\n")
        size += len(data)
    return ["".join(piece) for piece in pieces]


def _text(frames: Sequence[Frame], *, is_ended: bool) -> str:
    return "".join(_chunks(frames)) + (END if is_ended else "")


def _frame(event: RunEvent) -> Frame:
    return str(event.number), event.json


def _number(last_id: str) -> int:
    """Return the number in an id, or 0 for anything else."""
    return int(last_id) if last_id.isascii() and last_id.isdigit() and len(last_id) < 16 else 0
