"""The frames of a running answer for pages: how the messages of its turn change, rendered as after a reload.

A frame is one of `{"messages": [...]}`, all messages of the turn, and `{"edits": [...]}`. An edit is
`["append", n, text, removed]` to the text of message n, after so many UTF-16 units were removed from its end,
`["set", n, message]`, or `["cut", n]` to the first n messages.
"""

from collections.abc import Sequence
from typing import Any

from agent.i18n.translator import Translator
from agent.web.answer_frames import TurnFrames
from agent.web.chat.chat_view import RunningTurn, wait_text
from agent.web.ui.render import Formulas, WireMessage, render_turn

Edit = list[Any]


class PageForm:
    """The form of these frames. See `agent.web.answer_frames.Form`."""

    def __init__(self, translator: Translator) -> None:
        self._translator, self._formulas = translator, Formulas()

    async def render(self, turn: RunningTurn, watched_since: float, *, is_first: bool) -> list[WireMessage]:
        """Implement `Form.render`."""
        waiting = wait_text(turn.live.waiting, self._translator)
        return render_turn(turn.turn(watched_since), waiting, self._translator, self._formulas)

    def edits(self, old: Sequence[WireMessage] | None, new: Sequence[WireMessage]) -> list[Edit]:
        """Implement `Form.edits`."""
        return _edits(old or (), new)

    def whole(self, value: Sequence[WireMessage]) -> dict[str, Any]:
        """Implement `Form.whole`."""
        return {"messages": value}


def page_frames(turn: RunningTurn, translator: Translator) -> TurnFrames:
    """Return the frames of one answer in one language."""
    return TurnFrames(turn, PageForm(translator))


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
