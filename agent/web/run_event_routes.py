"""The routes of a running answer: `/runs/{id}/events` and `/runs/{id}/sound`, the sound that its model writes.

The events are Server-Sent Events for programs, and frames for pages.

Only the owner of the run can read it. A reader continues after the number that it has, so it loses nothing when its
connection breaks. `docs/http.md` describes the format.

A page gets one frame with the whole turn, and then edits (see `agent.rendering.bubbles`). The id of a frame is a random
tag of its instance and a number. So a page that missed some continues where it was, and one that continues after a
frame of another instance gets the whole turn again.

The end is `{"stored": true, "complete": ...}` if the store has it: the page then shows the turn as it is stored, and
`complete` says whether a waiting message can follow (see `agent.web.chat.views.is_complete`). It is
`{"goes_on": run}` if the process of the answer was lost: the page asks for the rest then. Otherwise it is `{}`, and the
page asks for the stored turns.
"""

import asyncio
import json
import sys
from bisect import bisect_right
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing
from itertools import islice
from time import monotonic
from typing import Any, Protocol, cast
from uuid import uuid4

from fastapi import FastAPI, Request, Response
from starlette.requests import ClientDisconnect

from agent.errors import Limited, NotFound, StoreUnavailable
from agent.history import HistoryStore, RunEvent
from agent.i18n.text import _
from agent.i18n.translator import Translator
from agent.providers.connection import SoundPiece
from agent.rendering import bubbles
from agent.system.threads import TURNS
from agent.web.chat.answers import TEXT_SECONDS, AnswersTogether, LiveRun, OneAnswer, RunningAnswer, RunningAnswers
from agent.web.chat.recovery import GOES_ON
from agent.web.chat.side_by_side import ColumnsTurn
from agent.web.chat.turns import TurnRenderer
from agent.web.chat.views import RunningTurn, is_complete, wait_text
from agent.web.client_address import client_address
from agent.web.heavy_work import HeavyResponse, HeavyWork, RequestLimit, RequestSlot, result_unless_gone

PING_SECONDS = 2.0
"""Seconds between two comments while nothing happens, so that a reader knows that the server is there."""
RETRY_MS = 1000
"""Milliseconds after which a browser connects again."""
SOUND_SECONDS = 15.0
"""The most seconds that a request for the sound of an answer waits for its first piece."""
STREAMS = 1000
"""The most open streams. A reader beyond this is refused and asks for single answers instead."""
STREAMS_PER_OWNER = 32
STREAMS_ALWAYS = 8
"""Streams that one network address can always have."""
ENDED_A_MINUTE, ENDED_A_MINUTE_PER_ADDRESS = 240, 960
"""Requests a minute of one visitor of a public page, and of one network address, for answers that are not running."""
CHUNK = 16 * 1024
"""Characters that are handed to a connection at once. The next ones wait until the reader has taken them."""
FRAMES = 1000
"""Frames that are looked up at once for a reader."""

PAGE_FORMAT = "blocks"
HEADERS = {"cache-control": "no-store, no-transform", "x-accel-buffering": "no"}
NOTHING = "{}"

SentEvent = tuple[str, str]
"""The id and the data of one Server-Sent Event."""


class Frames(Protocol):
    """The events of a running answer in one format. The same texts serve all readers."""

    async def after(self, last_id: str) -> Sequence[SentEvent]:
        """Return up to `FRAMES` frames after the one with this id, or the first ones if there is no such frame."""
        ...

    @property
    def due(self) -> float:
        """The time (`monotonic`) of the next frame, because the last one is recent. The end does not wait for it."""
        ...

    def end(self) -> str:
        """Return what readers get with the end, as JSON."""
        ...


class RunFrames:
    """The frames of programs: the events themselves, with their numbers as ids.

    A reader can have events that were lost with their process. It gets the end all the same, whose number is lower.
    """

    due = 0.0

    def __init__(self, live: OneAnswer) -> None:
        self._live = live

    async def after(self, last_id: str) -> Sequence[SentEvent]:
        number, events = number_in(last_id), self._live.events
        if number > len(events) and self._live.is_ended:
            return [_frame(events[-1])]
        return [_frame(event) for event in events[number : number + FRAMES]]

    def end(self) -> str:
        return NOTHING


class StoredFrames:
    """The frames of an answer that has ended, as the store has them. `end` is what readers get with the end."""

    due = 0.0

    def __init__(self, events: Sequence[RunEvent], end: str = NOTHING) -> None:
        self._events, self._end = events, end

    async def after(self, last_id: str) -> Sequence[SentEvent]:
        first = bisect_right(self._events, number_in(last_id), key=lambda event: event.number)
        return [_frame(event) for event in self._events[first : first + FRAMES]]

    def end(self) -> str:
        return self._end


class RunEventRoutes:
    """The route. Owns the places of open streams.

    `owner_of` returns the owner that a request speaks for. `page_frames` returns the frames of an answer for a page.
    On a `public` page, the requests for ended answers are counted: all their events are read.
    """

    def __init__(
        self,
        running: RunningAnswers,
        store: HistoryStore,
        owner_of: Callable[[Request], str],
        page_frames: Callable[[RunningAnswer, Request], Awaitable[Frames]],
        *,
        public: bool = False,
    ) -> None:
        self._running, self._store = running, store
        self._limit = RequestLimit(ENDED_A_MINUTE, ENDED_A_MINUTE_PER_ADDRESS) if public else None
        self._owner_of, self._page_frames = owner_of, page_frames
        self._live, self._ended = (HeavyWork(STREAMS, each=STREAMS_PER_OWNER, always=STREAMS_ALWAYS) for _ in range(2))
        """The places of streams of running and of ended answers, counted apart: the latter are easy to get many of."""

    def add_to(self, app: FastAPI) -> None:
        """Add the route to the application."""
        app.add_api_route("/runs/{run_id}/events", self.events)
        app.add_api_route("/runs/{run_id}/sound", self.sound)

    async def events(self, request: Request) -> Response:
        """Answer a request. `after` or `Last-Event-ID` is the last event that the reader has.

        With the format `PAGE_FORMAT`, the events are frames for a page. With `wait=0`
        the answer ends with the events so far, for readers whose connection delivers no stream.
        """
        owner, run_id = self._owner_of(request), str(request.path_params["run_id"])
        last_id = request.headers.get("last-event-id") or request.query_params.get("after", "")
        for_page = request.query_params.get("format") == PAGE_FORMAT
        live = await (self._running.find_for_page if for_page else self._running.find)(run_id, owner)
        if live is None:
            return await self._stored(request, run_id, owner, last_id, for_page=for_page)
        try:
            if request.query_params.get("wait") != "0":
                with self._live.place(owner, client_address(request.scope)) as place:
                    frames = await self._frames(live, request, for_page=for_page)
                    return _answer(stream(live, frames, last_id), place)
            frames = await self._frames(live, request, for_page=for_page)
            with live.watched():  # a page that asks again and again watches, too
                await live.publish()
            return _answer(_rest(frames, last_id, is_ended=live.is_ended))
        except NotFound:  # the conversation has just been deleted
            return Response("Not found.", status_code=404)
        except Limited:
            return Response("Too many streams at once.", status_code=429)

    async def sound(self, request: Request) -> Response:
        """Answer with the samples of the sound that the model writes, as they come.

        The answer is empty (204) if the model writes none, or if another process writes the answer: the whole sound is
        a file of the answer later. It is empty, too, with `retry-after`, if there is none after `SOUND_SECONDS`, or at
        once with `wait=0`: proxies cut a silent request, and a browser has six connections to a server for all tabs.
        """
        owner, run_id = self._owner_of(request), str(request.path_params["run_id"])
        live = await self._running.find(run_id, owner)
        if live is None:
            return await self._ended_sound(request, run_id, owner)
        if not isinstance(live, LiveRun):
            return Response(status_code=204)
        if request.query_params.get("wait") == "0" and not live.run.sound:
            return _no_sound_yet()
        pieces = live.sound()
        try:
            with self._live.place(owner, client_address(request.scope)) as place:
                try:
                    first = await result_unless_gone(request, asyncio.wait_for(anext(pieces, None), SOUND_SECONDS))
                except TimeoutError:
                    return _no_sound_yet()
                if first is None:
                    return Response(status_code=204)
                kind = f"audio/pcm;rate={first.rate};channels={first.channels}"
                return HeavyResponse(_samples(first, pieces), place, HEADERS, kind)
        except ClientDisconnect:
            return Response(status_code=499)
        except Limited:
            return Response("Too many streams at once.", status_code=429)

    async def _ended_sound(self, request: Request, run_id: str, owner: str) -> Response:
        if self._limit is not None:
            self._limit.count(owner, client_address(request.scope))
        try:
            await self._store.runs.events(run_id, owner=owner, after=sys.maxsize)
        except NotFound:
            return Response("Not found.", status_code=404)
        except StoreUnavailable:
            return Response("The history store does not answer.", status_code=503)
        return Response(status_code=204)

    async def _frames(self, live: RunningAnswer, request: Request, *, for_page: bool) -> Frames:
        if for_page or isinstance(live, AnswersTogether):
            return await self._page_frames(live, request)
        return RunFrames(live)

    async def _stored(self, request: Request, run_id: str, owner: str, last_id: str, *, for_page: bool) -> Response:
        """Answer with the events of an answer that has ended, as long as the store keeps them.

        A page gets only the end: it asks for the conversation or for the rest then. Other readers count as streams,
        because what was read for them stays in memory until they have it.
        """
        after, address = number_in(last_id), client_address(request.scope)
        if self._limit is not None:
            self._limit.count(owner, address)
        try:
            if for_page:
                events = await self._store.runs.events(run_id, owner=owner)
                goes_on = bool(events) and bool(events[-1].value.get(GOES_ON))
                end = end_of_lost(run_id) if goes_on else NOTHING
                return _answer(_rest(StoredFrames((), end), last_id, is_ended=True))
            with self._ended.place(owner, address) as place:
                events = await self._store.runs.events(run_id, owner=owner, after=after)
                if not events and after:
                    last = (await self._store.runs.events(run_id, owner=owner))[-1:]
                    if last and last[0].number < after:  # see `RunFrames`
                        events, last_id = last, ""
                return _answer(_rest(StoredFrames(events), last_id, is_ended=True), place)
        except NotFound:
            return Response("Not found.", status_code=404)
        except StoreUnavailable:
            return Response("The history store does not answer.", status_code=503)
        except Limited:
            return Response("Too many streams at once.", status_code=429)


async def stream(live: RunningAnswer, frames: Frames, last_id: str) -> AsyncGenerator[str]:
    """Yield the text of a stream: a comment at once, then each frame, and the end.

    A reader that is slow gets several frames at once: nothing is kept for it but the id of its last frame, and the
    frames and the piece of text that it gets now.
    """
    yield f": connected\nretry: {RETRY_MS}\n\n"
    spoke_at = _now()
    async with aclosing(live.updates()) as updates, aclosing(_with_pauses(updates)) as steps:
        async for is_update in steps:
            is_silent = True
            if is_update and (early := frames.due - monotonic()) > 0:
                await live.pause(early)
            while is_update and (new := await frames.after(last_id)):
                for text in _chunks(new):
                    yield text
                last_id, is_silent = new[-1][0], False
            if not is_silent:
                spoke_at = _now()
            elif _now() - spoke_at >= PING_SECONDS:
                yield ": ping\n\n"
                spoke_at = _now()
    if live.is_ended:  # otherwise another process goes on with it: the reader connects again, and gets it there
        yield _end(frames)


async def _with_pauses(updates: AsyncGenerator[int]) -> AsyncGenerator[bool]:
    """Yield True after each update, and False after each `PING_SECONDS` without one, for example in a slow store."""
    while True:
        step = asyncio.ensure_future(anext(updates, None))
        try:
            while not (await asyncio.wait((step,), timeout=PING_SECONDS))[0]:
                yield False
        finally:
            if not step.done():
                step.cancel()
                await asyncio.wait((step,))
        if step.result() is None:
            return
        yield True


async def _rest(frames: Frames, last_id: str, *, is_ended: bool) -> AsyncGenerator[str]:
    """Yield the text of all frames so far, and the end."""
    while new := await frames.after(last_id):
        for text in _chunks(new):
            yield text
        last_id = new[-1][0]
    if is_ended:
        yield _end(frames)


def _end(frames: Frames) -> str:
    return f"event: end\ndata: {frames.end()}\n\n"


def end_of_lost(run_id: str) -> str:
    """Return the end for a page that is to ask for the rest of this run, whose process was lost."""
    return json.dumps({GOES_ON: run_id})


def _no_sound_yet() -> Response:
    return Response(status_code=204, headers={"retry-after": "1"})


async def _samples(first: SoundPiece, pieces: AsyncGenerator[SoundPiece]) -> AsyncGenerator[bytes]:
    async with aclosing(pieces):
        yield first.samples
        async for piece in pieces:
            if (piece.rate, piece.channels) != (first.rate, first.channels):
                return  # of another model: the answer has its sound later
            yield piece.samples


SSE = "text/event-stream"


def _now() -> float:
    return asyncio.get_running_loop().time()


def _chunks(frames: Sequence[SentEvent]) -> Iterator[str]:
    """Yield the text of the frames in pieces of at most `CHUNK` characters. A piece is made when it is needed."""
    piece, size = list[str](), 0
    for id_, data in frames:
        for part in (f"id: {id_}\ndata: ", *(data[at : at + CHUNK] for at in range(0, len(data), CHUNK)), "\n\n"):
            if piece and size + len(part) > CHUNK:
                yield "".join(piece)
                piece, size = [], 0
            piece.append(part)
            size += len(part)
    if piece:
        yield "".join(piece)


def _answer(texts: AsyncGenerator[str], place: RequestSlot | None = None) -> Response:
    """Return a response with these texts, which holds the place until it ends."""
    return HeavyResponse(texts, place or RequestSlot(lambda: None), HEADERS, SSE)


def _frame(event: RunEvent) -> SentEvent:
    return str(event.number), event.json


def number_in(last_id: str) -> int:
    """Return the number in an id, or 0 for anything else."""
    return int(last_id) if last_id.isascii() and last_id.isdigit() and len(last_id) < 16 else 0


KEPT_CHARACTERS = 1_000_000
"""Characters of the frames of one answer that are kept for readers that are behind."""
WAIT_SECONDS = 0.5
"""Seconds after which a turn is rendered again without a new event, because a wait is counted."""


class TurnFrames:
    """The frames of one answer in one language: `{"turn": Turn}` or `{"edits": [...]}`. The same ones serve all pages.

    See `agent.web.run_event_routes.Frames`.
    """

    def __init__(self, turn: RunningTurn | ColumnsTurn, translator: Translator) -> None:
        self._turn, self._translator, self._renderer = turn, translator, TurnRenderer(translator)
        self._tag, self._frames, self._size = uuid4().hex[:8], deque[SentEvent](), 0
        self._first = 0
        """The number of the oldest frame that is kept."""
        self.due = 0.0
        """Implement `Frames.due`."""
        self._lock = asyncio.Lock()
        self._shown = cast(bubbles.Turn, {"bubbles": []})
        self._rendered: tuple[int, int] | None = None
        self._rendered_at = 0.0
        self._whole: SentEvent | None = None

    async def after(self, last_id: str) -> Sequence[SentEvent]:
        """Return the frames after this one, or a single frame with the whole turn, which all new readers share."""
        async with self._lock:
            await self._advance()
            if not self._frames:
                return ()
            tag, _, number = last_id.partition("-")
            if tag == self._tag and number == str(number_in(number)):
                first = number_in(number) + 1 - self._first
                if first >= 0:
                    return [*islice(self._frames, first, first + FRAMES)]
            if self._whole is None:
                self._whole = self._frames[-1][0], _dump({"turn": await self._render(is_first=True)})
            return [self._whole]

    def end(self) -> str:
        turn, ending = self._turn, self._turn.live.ending
        if ending is not None and ending.goes_on:
            return end_of_lost(turn.live.run_id)
        if not turn.live.is_end_stored or not turn.is_shown:
            return NOTHING
        return _dump({"stored": True, "complete": is_complete(turn.turn(monotonic()))})

    async def _advance(self) -> None:
        """Add a frame if something has changed, or if a wait is counted. One reader of many renders for all of them.

        Old frames are dropped. A reader that is further behind gets the whole turn.
        """
        live = self._turn.live
        state, now = (live.number, self._turn.ended), monotonic()
        if state == self._rendered and now - self._rendered_at < WAIT_SECONDS:
            return
        self._rendered, self._rendered_at, self._whole = state, now, None
        shown = await self._render(is_first=False)
        if edits := bubbles.edits(self._shown, shown):
            self._shown = shown
            self.due = monotonic() + TEXT_SECONDS if bubbles.is_growth(edits) else 0.0
            data = _dump({"edits": edits})
            self._frames.append((f"{self._tag}-{self._first + len(self._frames)}", data))
            self._size += len(data)
            while self._size > KEPT_CHARACTERS and len(self._frames) > 1:
                self._size -= len(self._frames.popleft()[1])
                self._first += 1

    async def _render(self, *, is_first: bool) -> bubbles.Turn:
        """Return the turn. `is_first`: for a page that begins to watch.

        A thread renders, because a long list or code takes many milliseconds.
        """
        live, turn = self._turn.live, self._turn.turn(monotonic())
        waiting = wait_text(live.waiting, self._translator)
        if not waiting and turn.is_waiting and isinstance(live, LiveRun) and live.draws:
            seconds = int(monotonic() - live.quiet_since)
            waiting = self._translator(_("A picture may be on its way · {seconds} s", seconds=seconds))
        return await TURNS.run(self._renderer.render, turn, waiting, is_first=is_first)


class AnswerFrames:
    """The frames of all running answers, by answer and language. `read` returns the turn of a running answer."""

    def __init__(self, read: Callable[[RunningAnswer], Awaitable[RunningTurn | ColumnsTurn]]) -> None:
        self._read = read

    async def of(self, live: RunningAnswer, translator: Translator) -> TurnFrames:
        """Return the frames of this answer in this language."""
        if translator.language not in live.frames:
            turn = await self._read(live)
            live.frames.setdefault(translator.language, TurnFrames(turn, translator))
        return live.frames[translator.language]


def _dump(value: dict[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
