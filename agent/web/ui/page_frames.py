"""The frames of a running answer for pages: how the messages of its turn change, rendered as after a reload.

A frame is one of `{"messages": [...]}`, all messages of the turn, and `{"edits": [...]}`. An edit is
`["append", n, text, removed]` to the text of message n, after so many UTF-16 units were removed from its end,
`["set", n, message]`, or `["cut", n]` to the first n messages.

The end is `{"stored": true, "complete": ...}` if the store has it: the page then shows the turn as it is stored, and
`complete` says whether a waiting message can follow (see `agent.web.chat.chat_view.is_complete`). Otherwise it is `{}`,
and the page asks for the stored turns.
"""

import json
from collections.abc import Awaitable, Callable, Sequence
from time import monotonic
from typing import Any
from uuid import uuid4

from agent.i18n.translator import Translator
from agent.web.chat.chat_view import RunningTurn, is_complete
from agent.web.chat.running_answer import RunningAnswer
from agent.web.run_event_routes import FRAMES, NOTHING, Frame, number_in
from agent.web.ui.render import Formulas, WireMessage, render_turn
from agent.web.ui.view import wait_text

WAIT_SECONDS = 0.5
"""Seconds after which the messages are rendered again without a new event, because a wait is counted."""

Edit = list[Any]


class PageFrames:
    """The frames of one answer in one language. See `agent.web.run_event_routes.Frames`.

    The same frames serve all pages. Their ids begin with a random tag, so that a page that continues after a frame of
    another instance gets all messages again.
    """

    def __init__(self, turn: RunningTurn, translator: Translator) -> None:
        self._turn, self._translator = turn, translator
        self._tag, self._frames = uuid4().hex[:8], list[Frame]()
        self._messages: list[WireMessage] = []
        self._watched_since, self._formulas = monotonic(), Formulas()
        self._rendered: tuple[int, bool] | None = None
        self._rendered_at = 0.0
        self._whole: Frame | None = None

    def after(self, last_id: str) -> Sequence[Frame]:
        """Return the frames after this one, or a single frame with all messages, which all new readers share."""
        self._advance()
        if not self._frames:
            return ()
        tag, _, number = last_id.partition("-")
        if tag == self._tag and number == str(number_in(number)):
            first = number_in(number) + 1
            return self._frames[first : first + FRAMES]
        if self._whole is None:
            messages = self._render(monotonic())
            self._whole = self._id(len(self._frames) - 1), _dump({"messages": messages})
        return [self._whole]

    def end(self) -> str:
        """Implement `Frames.end`."""
        turn = self._turn
        if not turn.live.is_end_stored:
            return NOTHING
        return _dump({"stored": True, "complete": is_complete(turn.turn(self._watched_since))})

    def _advance(self) -> None:
        """Add a frame if something has changed.

        All readers wake for each event, but only the first of them renders. They also wake while nothing happens,
        because a wait is shown, too.
        """
        live = self._turn.live
        state, now = (live.number, live.ending is not None), monotonic()
        if state == self._rendered and now - self._rendered_at < WAIT_SECONDS:
            return
        self._rendered, self._rendered_at, self._whole = state, now, None
        messages = self._render(self._watched_since)
        if edits := _edits(self._messages, messages):
            self._messages = messages
            self._frames.append((self._id(len(self._frames)), _dump({"edits": edits})))

    def _render(self, watched_since: float) -> list[WireMessage]:
        turn = self._turn.turn(watched_since)
        waiting = wait_text(self._turn.live.waiting, self._translator)
        return render_turn(turn, waiting, self._translator, self._formulas)

    def _id(self, number: int) -> str:
        return f"{self._tag}-{number}"


class AnswerFrames:
    """The frames of all running answers, by answer and language. `read` returns the turn of a running answer."""

    def __init__(self, read: Callable[[RunningAnswer], Awaitable[RunningTurn]]) -> None:
        self._read = read

    async def of(self, live: RunningAnswer, translator: Translator) -> PageFrames:
        """Return the frames of this answer in this language."""
        language = translator.language
        if language not in live.frames:
            turn = await self._read(live)
            live.frames.setdefault(language, PageFrames(turn, translator))
        return live.frames[language]


def _edits(old: Sequence[WireMessage], new: Sequence[WireMessage]) -> list[Edit]:
    """Return the edits that change the old messages into the new ones."""
    edits: list[Edit] = []
    for number, message in enumerate(new):
        before = old[number] if number < len(old) else None
        if before == message:
            continue
        added = _added_text(before, message) if before else None
        edits.append(["set", number, message] if added is None else ["append", number, *added])
    return edits + ([["cut", len(new)]] if len(old) > len(new) else [])


def _added_text(old: WireMessage, new: WireMessage) -> tuple[str, int] | None:
    """Return the text that was appended to a message, and how much of its end was removed before.

    Return None if the message has changed in another way, or near its beginning.
    """
    if len(old["content"]) != 1 or len(new["content"]) != 1 or {**old, "content": 0} != {**new, "content": 0}:
        return None
    before, after = old["content"][0].get("text"), new["content"][0].get("text")
    if not isinstance(before, str) or not isinstance(after, str):
        return None
    same = _common_length(before, after)
    removed = len(before[same:].encode("utf-16-le", "surrogatepass")) // 2
    return (after[same:], removed) if removed <= same else None


def _common_length(one: str, other: str) -> int:
    """Return the length of the common beginning of two texts."""
    low, high = 0, min(len(one), len(other))
    if one[:high] == other[:high]:
        return high
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _dump(value: dict[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
