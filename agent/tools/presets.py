"""Tools by reference: a preset (a TOML file that describes a REST tool or an MCP server) or a Python function.

    [rest]                                    [mcp]
    name = "rates"                            name = "files"
    description = "Exchange rates."           command = "npx"
    url = "https://.../{day}?base={base}"     args = ["-y", "@modelcontextprotocol/server-filesystem", "/srv/files"]
    [rest.parameters]                         tools = ["read_text_file"]
    base = { description = "As in EUR." }     env = ["A_TOKEN"]    # our variables that it can see
    day = { default = "latest" }              # or, for a server that listens: url = "https://.../mcp"

The other keys are those of `rest_tool` and `McpServer`, and `allow`, a list of private hosts such as "127.0.0.1:8000".
Secrets come from `auth = { kind = "bearer", variable = "A_KEY" }`.
"""

import os
import re
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from agent.errors import AgentError, ConfigError
from agent.fetch import Guard
from agent.system.project import FILES
from agent.system.toml_file import TomlFile
from agent.tools.function_tools import Tool, Toolset, as_tool
from agent.tools.rest import Auth, Parameter, rest_tool

FOLDER = FILES / "configs" / "tools"


def load_presets(reference: str, *, env: Mapping[str, str] = os.environ, folder: Path = FOLDER) -> Tool | Toolset:
    """Return the tool or toolset that a reference names. Touches no network.

    "preset:currency" or "currency" is `configs/tools/currency.toml`, a name that ends with ".toml" is a preset's path,
    and "module:name" is a function, a `Tool` or a `Toolset` in a module. Raises `ConfigError` with file, line and key.
    """
    name = reference.removeprefix("preset:")
    if name.endswith(".toml"):
        return _preset(Path(name), env)
    if ":" in name:
        return _in_module(name)
    path = folder / f"{name}.toml"
    if not re.fullmatch(r"[\w-]+", name) or not path.exists():
        known = ", ".join(sorted(one.stem for one in folder.glob("*.toml"))) or "none"
        raise ConfigError(f"there is no preset {name!r} for a tool; known are {known}")
    return _preset(path, env)


_NEVER_QUOTED = ("args", "auth", "body", "headers", "url")
"""Keys whose values can contain a secret."""


class _PresetTable(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Rest(_PresetTable):
    name: str
    url: str
    description: str
    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"] = "GET"
    parameters: dict[str, Parameter] = {}
    headers: dict[str, str] = {}
    auth: Auth | None = None
    body: Any = None
    result: str = ""
    timeout: float = 20.0
    needs_approval: bool = False
    allow: tuple[str, ...] = ()

    def made(self, env: Mapping[str, str]) -> Tool:
        given = {key: getattr(self, key) for key in _Rest.model_fields if key not in ("name", "url", "allow")}
        return rest_tool(self.name, self.url, **given, guard=Guard(allow=self.allow), env=env)


class _Mcp(_PresetTable):
    name: str
    command: str = ""
    args: tuple[str, ...] = ()
    cwd: Path | None = None
    env: tuple[str, ...] = ()
    url: str = ""
    headers: dict[str, str] = {}
    auth: Auth | None = None
    tools: tuple[str, ...] | None = None
    needs_approval: tuple[str, ...] | bool = ()
    timeout: float = 60.0
    start_seconds: float = 30.0
    elicitation: bool = True
    sampling: bool = False
    resources: bool = False
    prompts: bool = False

    def made(self, env: Mapping[str, str]) -> Toolset:
        from agent.tools.mcp import McpServer  # its library takes half a second to import

        if bool(self.command) == bool(self.url):
            raise ConfigError("mcp needs either a command or a url")
        if self.url and (self.args or self.cwd or self.env):
            raise ConfigError("mcp.args, mcp.cwd and mcp.env are for a command")
        if self.command and (self.headers or self.auth):
            raise ConfigError("mcp.headers and mcp.auth are for a url")
        names = ("name", "tools", "needs_approval", "timeout", "start_seconds")
        more = {key: getattr(self, key) for key in (*names, "elicitation", "sampling", "resources", "prompts")}
        if self.url:
            secret = self.auth.credentials(env) if self.auth else None
            if secret and secret.query:
                raise ConfigError("mcp.auth cannot be of the kind query")
            return McpServer.http(self.url, headers={**self.headers, **(secret.headers if secret else {})}, **more)
        if missing := [name for name in self.env if name not in env]:
            raise ConfigError(f"the environment variable {missing[0]} is not set")
        given = {name: env[name] for name in self.env}
        return McpServer.stdio(self.command, self.args, env=given, cwd=self.cwd, **more)


class _PresetsFile(_PresetTable):
    rest: _Rest | None = None
    mcp: _Mcp | None = None


def _preset(path: Path, env: Mapping[str, str]) -> Tool | Toolset:
    file = TomlFile(path, hidden=_NEVER_QUOTED)
    tables = file.check(_PresetsFile, file.table)
    described = tables.rest or tables.mcp
    if described is None or (tables.rest and tables.mcp):
        raise file.error("a preset has one table, [rest] or [mcp]")
    try:
        return described.made(env)
    except AgentError as error:
        raise file.error(str(error), *file.table) from error


def _in_module(name: str) -> Tool | Toolset:
    module, _, attribute = name.partition(":")
    try:
        found = getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"the tool {name!r} cannot be imported: {error}") from error
    if isinstance(found, Toolset):
        return found
    if not callable(found):
        raise ConfigError(f"the tool {name!r} must be a function, and is of the type {type(found).__name__}")
    return as_tool(found)
