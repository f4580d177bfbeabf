"""Tools of models: functions, the built-in ones, REST services and MCP servers.

`agent.tools:ask_user` is the name of that tool in a configuration.
"""

from agent.tools.function_tools import ask_user

__all__ = ["ask_user"]
