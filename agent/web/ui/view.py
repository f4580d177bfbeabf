"""Renders a conversation for one page: as many of its newest turns as fit the page's window."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic

from agent.i18n import LocalizedText
from agent.i18n.translator import ENGLISH, Translator
from agent.runtime.retry import Wait
from agent.web.chat.chat_view import ChatView
from agent.web.chat.transcript import Turn
from agent.web.chat.views import WINDOW
from agent.web.ui.render import WireMessage, render_turn

SHORT_WAIT_SECONDS = 5
"""A shorter wait is shown without counting its seconds down."""


@dataclass(frozen=True, kw_only=True)
class PageView:
    """The content of the chatbot. `has_earlier`: older turns are stored. `is_busy`: an answer is being written.

    The turn that is being written is not among the `messages`. The page reads it from the answer's events.
    """

    messages: list[WireMessage]
    has_earlier: bool = False
    is_busy: bool = False


def render_view(view: ChatView, window: int = WINDOW, translator: Translator = ENGLISH) -> PageView:
    """Render the newest complete turns with at most `window` bubbles, but at least one turn."""
    turns: Sequence[Turn] = view.turns
    if view.has_earlier and turns and turns[0].user is None:
        turns = turns[1:]
    rendered: list[list[WireMessage]] = []
    total = 0
    for turn in reversed(turns):
        messages = render_turn(turn, translator=translator)
        total += len(messages)
        if rendered and total > window:
            break
        rendered.insert(0, messages)
    return PageView(
        messages=[message for messages in rendered for message in messages],
        has_earlier=view.has_earlier or len(rendered) < len(turns),
        is_busy=view.live is not None,
    )


def wait_text(wait: Wait | None, translator: Translator = ENGLISH) -> str:
    """Return why nothing comes from the model at the moment, or "" if the run does not wait."""
    if wait is None:
        return ""
    sentence = wait.sentence
    if wait.ahead or wait.seconds < SHORT_WAIT_SECONDS:
        return translator(sentence)
    left = math.ceil(max(0.0, wait.until - monotonic()))
    return translator(LocalizedText(sentence.message, {**sentence.values, "seconds": left}))
