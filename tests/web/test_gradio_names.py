"""The private names of Gradio that `agent/web/gradio_compat` uses.

Imports nothing of the page, which cannot be imported if one of these names has moved.
"""

from importlib import import_module
from typing import Any

import pytest

PRIVATE_NAMES = (
    ("application", "gradio.routes", "App.create_app"),
    ("application", "gradio.route_utils", "BUILD_PATH_LIB"),
    ("application", "gradio.route_utils", "get_root_url"),
    ("event_queue", "gradio.blocks", "Blocks.process_api"),
    *(
        ("event_queue", "gradio.queueing", f"Queue.{name}")
        for name in (
            *("push", "send_message", "get_events", "start_processing", "start_progress_updates", "process_events"),
            *("broadcast_estimations", "close", "_cancel_asyncio_tasks"),
        )
    ),
    ("event_queue", "gradio.utils", "LRUCache"),
    ("event_queue", "gradio.utils", "run_coro_in_background"),
    ("event_queue", "gradio.utils", "set_task_name"),
    ("import_hook", "gradio.component_meta", "create_or_modify_pyi"),
    ("import_hook", "gradio.component_meta", "EventListener.set_doc"),
    ("application", "gradio.oauth", "require_oauth_token"),
    ("application", "gradio.state_holder", "SessionState._update_value_in_config"),
    ("application", "gradio.networking", "setup_tunnel"),
    ("application", "gradio.tunneling", "CURRENT_TUNNELS"),
)
"""The module that uses the name, Gradio's module, and the name."""


@pytest.mark.parametrize(("user", "module", "name"), PRIVATE_NAMES, ids=lambda one: one)
def test_private_name_is_where_it_was(user: str, module: str, name: str) -> None:
    found = find(module, name)
    assert found is not None, f"Gradio has moved {module}.{name}: adapt agent/web/gradio_compat/{user}.py."


def find(module: str, name: str) -> Any:
    """Return the object of this name, or None if there is none."""
    try:
        found: Any = import_module(module)
    except ImportError:
        return None
    for part in name.split("."):
        found = getattr(found, part, None)
    return found
