"""How much of a conversation a page shows: the newest turns, as many as fit its window."""

from dataclasses import dataclass

from agent.i18n.translator import ENGLISH, Translator
from agent.web.chat.transcript import Turn
from agent.web.ui.render import WireMessage, render_turn


@dataclass(frozen=True, kw_only=True)
class View:
    """What the chatbot shows; `earlier` where older turns are stored, `busy` while an answer is being written."""

    messages: list[WireMessage]
    earlier: bool = False
    busy: bool = False


def to_view(all_turns: list[Turn], window: int, *, cut: bool, busy: bool = False, words: Translator = ENGLISH) -> View:
    """The newest turns with at most `window` bubbles, at least one turn; a turn that the limit cut is left out."""
    if cut and all_turns and all_turns[0].user is None:
        all_turns = all_turns[1:]
    newest: list[list[WireMessage]] = []
    total = 0
    for turn in reversed(all_turns):
        made = render_turn(turn, words=words)
        total += len(made)
        if newest and total > window:
            break
        newest.insert(0, made)
    messages = [message for made in newest for message in made]
    return View(messages=messages, earlier=cut or len(newest) < len(all_turns), busy=busy)
