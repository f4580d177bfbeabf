"""Tools of models: functions, the built-in ones, REST services and MCP servers."""

from agent.tools.function_tools import (
    GRACE_SECONDS,
    Function,
    Tool,
    Toolset,
    as_tool,
    ask_user,
    cancelled_result,
    execute,
    execute_all,
    tool,
    with_note,
)

__all__ = [
    "GRACE_SECONDS",
    "Function",
    "Tool",
    "Toolset",
    "as_tool",
    "ask_user",
    "cancelled_result",
    "execute",
    "execute_all",
    "tool",
    "with_note",
]
