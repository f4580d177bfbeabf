"""Stops Gradio from doing work in each event and session that this page does not need.

Gradio describes every component of a page for each new session, and a component again for each update of it, with JSON
schemas that pydantic makes anew. Only deep links use these descriptions. They took 30 ms of CPU for each page load and
3 ms for each message. Gradio also looks for matplotlib twice in each event.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from gradio import utils
from gradio.state_holder import SessionState

from agent.web.gradio_compat.import_hook import nothing

_begin: Callable[[Any, Any], None] = SessionState.__init__


def reduce_event_cost() -> None:
    """Patch all sessions and events."""
    cast(Any, SessionState).__init__ = _begin_session
    manager = cast(Any, utils).MatplotlibBackendMananger
    manager.__enter__ = manager.__exit__ = nothing


def _begin_session(session: Any, blocks: Any) -> None:
    """Begin a session that describes no components, neither now nor when they change."""
    _begin(session, SimpleNamespace(default_config=blocks.default_config, blocks=()))
    session.blocks_config.config_for_block = nothing
