"""Renders a conversation for one page: as many of its newest turns as fit the page's window."""

from dataclasses import dataclass

from agent.i18n.translator import ENGLISH, Translator
from agent.web.chat.chat_view import ChatView, newest_first
from agent.web.chat.views import WINDOW
from agent.web.ui.render import WireMessage, render_turn


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
    rendered = [*newest_first(view, window, lambda turn: render_turn(turn, translator=translator), len)][::-1]
    return PageView(
        messages=[message for messages in rendered for message in messages],
        has_earlier=view.has_earlier or len(rendered) < len(view.turns),
        is_busy=view.live is not None,
    )
