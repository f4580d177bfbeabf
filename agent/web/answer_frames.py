"""The frames of running answers for pages: a turn as a whole, and then how it changes.

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
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from itertools import islice
from time import monotonic
from typing import Any, cast
from uuid import uuid4

from agent.i18n.translator import Translator
from agent.rendering import bubbles
from agent.system.threads import TURNS
from agent.web.chat.answers import RunningAnswer
from agent.web.chat.side_by_side import ColumnsTurn
from agent.web.chat.turns import TurnRenderer
from agent.web.chat.views import RunningTurn, is_complete, wait_text
from agent.web.run_event_routes import FRAMES, NOTHING, SentEvent, end_of_lost, number_in

KEPT_CHARACTERS = 1_000_000
"""Characters of the frames of one answer that are kept for readers that are behind."""
TEXT_SECONDS = 0.125
"""Seconds from a frame of a text that grows to the next frame. The first text and the end do not wait."""
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
        """Implement `Frames.end`."""
        turn, ending = self._turn, self._turn.live.ending
        if ending is not None and ending.goes_on:
            return end_of_lost(turn.live.run_id)
        if not turn.live.is_end_stored:
            return NOTHING
        return _dump({"stored": True, "complete": is_complete(turn.turn(monotonic()))})

    async def _advance(self) -> None:
        """Add a frame if something has changed, or if a wait is counted. One reader of many renders for all of them.

        Old frames are dropped. A reader that is further behind gets the whole turn.
        """
        live = self._turn.live
        state, now = (len(live.events), self._turn.ended), monotonic()
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
        waiting, turn = wait_text(self._turn.live.waiting, self._translator), self._turn.turn(monotonic())
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
