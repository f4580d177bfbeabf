"""The frames of running answers for pages: a turn as a whole, and then how it changes.

Their form decides what is in them: `agent.web.ui.page_frames`, or `BlockForm`. A page gets one frame with the whole
turn, and then edits. The id of a frame is a random tag of its instance and a number. So a page that missed some
continues where it was, and one that continues after a frame of another instance gets the whole turn again.

The end is `{"stored": true, "complete": ...}` if the store has it: the page then shows the turn as it is stored, and
`complete` says whether a waiting message can follow (see `agent.web.chat.chat_view.is_complete`). Otherwise it is `{}`,
and the page asks for the stored turns.
"""

import asyncio
import json
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import islice
from time import monotonic
from typing import Any, Protocol, cast
from uuid import uuid4

from agent.i18n.translator import Translator
from agent.rendering import bubbles
from agent.system.threads import TURNS
from agent.web.chat.chat_view import RunningTurn, is_complete, wait_text
from agent.web.chat.running_answer import RunningAnswer
from agent.web.chat.turns import TurnRenderer
from agent.web.run_event_routes import FRAMES, NOTHING, Frame, number_in

KEPT_CHARACTERS = 1_000_000
"""Characters of the frames of one answer that are kept for readers that are behind."""
WAIT_SECONDS = 0.5
"""Seconds after which a turn is rendered again without a new event, because a wait is counted."""


class Form(Protocol):
    """Renders the frames of one answer in one language. A value is a rendered turn."""

    async def render(self, turn: RunningTurn, watched_since: float, *, is_first: bool) -> Any:
        """Return the turn. `is_first`: for a page that begins to watch. Others watch `watched_since` this time."""
        ...

    def edits(self, old: Any, new: Any) -> list[Any]:
        """Return what has changed since the value `old`, None before the first one."""
        ...

    def whole(self, value: Any) -> dict[str, Any]:
        """Return the frame for a page that has nothing yet."""
        ...


class BlockForm:
    """Frames of bubbles and blocks: `{"turn": Turn}` or `{"edits": [...]}` (see `agent.rendering.bubbles`)."""

    def __init__(self, translator: Translator) -> None:
        self._translator, self._renderer = translator, TurnRenderer(translator)

    async def render(self, turn: RunningTurn, watched_since: float, *, is_first: bool) -> bubbles.Turn:
        """Implement `Form.render`. A thread renders, because a long list or code takes many milliseconds."""
        waiting, shown = wait_text(turn.live.waiting, self._translator), turn.turn(monotonic())
        return await TURNS.run(self._renderer.render, shown, waiting, is_first=is_first)

    def edits(self, old: bubbles.Turn | None, new: bubbles.Turn) -> list[bubbles.Edit]:
        """Implement `Form.edits`."""
        return bubbles.edits(old or cast(bubbles.Turn, {"bubbles": []}), new)

    def whole(self, value: bubbles.Turn) -> dict[str, Any]:
        """Implement `Form.whole`."""
        return {"turn": value}


class TurnFrames:
    """The frames of one answer. See `agent.web.run_event_routes.Frames`. The same frames serve all pages."""

    def __init__(self, turn: RunningTurn, form: Form) -> None:
        self._turn, self._form = turn, form
        self._tag, self._frames, self._size = uuid4().hex[:8], deque[Frame](), 0
        self._first = 0
        """The number of the oldest frame that is kept."""
        self._lock = asyncio.Lock()
        self._value: Any = None
        self._watched_since = monotonic()
        self._rendered: tuple[int, bool] | None = None
        self._rendered_at = 0.0
        self._whole: Frame | None = None

    async def after(self, last_id: str) -> Sequence[Frame]:
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
                value = await self._form.render(self._turn, monotonic(), is_first=True)
                self._whole = self._frames[-1][0], _dump(self._form.whole(value))
            return [self._whole]

    def end(self) -> str:
        """Implement `Frames.end`."""
        turn = self._turn
        if not turn.live.is_end_stored:
            return NOTHING
        return _dump({"stored": True, "complete": is_complete(turn.turn(self._watched_since))})

    async def _advance(self) -> None:
        """Add a frame if something has changed, or if a wait is counted. One reader of many renders for all of them.

        Old frames are dropped. A reader that is further behind gets the whole turn.
        """
        live = self._turn.live
        state, now = (live.number, live.ending is not None), monotonic()
        if state == self._rendered and now - self._rendered_at < WAIT_SECONDS:
            return
        self._rendered, self._rendered_at, self._whole = state, now, None
        value = await self._form.render(self._turn, self._watched_since, is_first=False)
        if edits := self._form.edits(self._value, value):
            self._value = value
            data = _dump({"edits": edits})
            self._frames.append((f"{self._tag}-{self._first + len(self._frames)}", data))
            self._size += len(data)
            while self._size > KEPT_CHARACTERS and len(self._frames) > 1:
                self._size -= len(self._frames.popleft()[1])
                self._first += 1


class AnswerFrames:
    """The frames of all running answers, by answer, form and language.

    `read` returns the turn of a running answer, and `forms` makes forms by the names that a page asks for.
    """

    def __init__(
        self,
        read: Callable[[RunningAnswer], Awaitable[RunningTurn]],
        forms: Mapping[str, Callable[[Translator], Form]],
    ) -> None:
        self._read, self._forms = read, forms

    async def of(self, live: RunningAnswer, form: str, translator: Translator) -> TurnFrames:
        """Return the frames of this answer in this language."""
        name = f"{form} {translator.language}"
        if name not in live.frames:
            turn = await self._read(live)
            live.frames.setdefault(name, TurnFrames(turn, self._forms[form](translator)))
        return live.frames[name]


def _dump(value: dict[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
