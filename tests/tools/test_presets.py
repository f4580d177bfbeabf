"""Tools from presets: the shipped presets on servers that answer in their shapes, and faulty preset files."""

import json
import sys
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from pydantic_ai.messages import ToolCallPart, ToolReturnPart

from agent.errors import ConfigError
from agent.settings import ROOT
from agent.tools.function_tools import Tool, Toolset, execute
from agent.tools.mcp import McpServer
from agent.tools.presets import FOLDER, load_presets
from tests.support.small_site import Asked, Site, as_json, site


async def call(tool: Tool | Toolset, **arguments: Any) -> ToolReturnPart:
    assert isinstance(tool, Tool)
    return await execute({tool.name: tool}, ToolCallPart(tool.name, arguments, "1"), timeout=30)


def moved(name: str, there: Site, folder: Path) -> Tool | Toolset:
    """Return a shipped preset with only its base URL changed, and that one allowed on loopback."""
    text = (FOLDER / f"{name}.toml").read_text(encoding="utf-8")
    base = urlsplit(text.partition('url = "')[2].partition('"')[0])
    path = folder / f"{name}.toml"
    path.write_text(
        text.replace(f"https://{base.netloc}", there.url).replace("[rest]\n", f'[rest]\nallow = ["{there.host}"]\n')
    )
    return load_presets(str(path))


def frankfurter(asked: Asked) -> bytes:
    """Answer in the shape of https://api.frankfurter.dev/v1/."""
    query = dict(parse_qsl(urlsplit(asked.target).query))
    rates = {"EUR": 0.86133, "JPY": 156.42, "GBP": 0.7603}
    if query["base"] not in (*rates, "USD"):
        return as_json({"message": "not found"}, status=404)
    wanted = query.get("symbols", ",".join(rates)).split(",")
    day = urlsplit(asked.target).path.rsplit("/", 1)[1]
    date = "2026-11-20" if day == "latest" else day
    return as_json({"amount": 1.0, "base": query["base"], "date": date, "rates": {one: rates[one] for one in wanted}})


async def test_currency_preset(tmp_path: Path) -> None:
    async with site(star=frankfurter) as there:
        tool = moved("currency", there, tmp_path)
        newest = await call(tool, base="USD", symbols="EUR,JPY")
        old = await call(tool, base="USD", date="2024-02-29")
        unknown = await call(tool, base="XXX")
    assert [one.target for one in there.asked] == [
        "/v1/latest?base=USD&symbols=EUR%2CJPY",
        "/v1/2024-02-29?base=USD",
        "/v1/latest?base=XXX",
    ]
    rates = {"amount": 1.0, "base": "USD", "date": "2026-11-20", "rates": {"EUR": 0.86133, "JPY": 156.42}}
    assert json.loads(newest.content) == rates
    assert json.loads(old.content)["rates"].keys() == {"EUR", "JPY", "GBP"}
    assert (unknown.outcome, unknown.content) == (
        "failed",
        'The server answered with status 404: {"message": "not found"}',
    )


async def test_weather_preset(tmp_path: Path) -> None:
    said = {"latitude": 52.52, "timezone": "Europe/Berlin", "current": {"temperature_2m": 4.1}, "daily": {"time": []}}
    async with site(star=lambda _: as_json({**said, "generationtime_ms": 0.1})) as there:
        result = await call(moved("weather", there, tmp_path), latitude=52.52, longitude=13.41)
    assert json.loads(result.content) == {"now": said["current"], "days": said["daily"], "timezone": said["timezone"]}
    query = dict(parse_qsl(urlsplit(there.asked[0].target).query))
    assert (query["latitude"], query["longitude"], query["timezone"]) == ("52.52", "13.41", "auto")


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.toml")), ids=lambda path: path.stem)
def test_shipped_preset_loads_and_describes_itself(path: Path) -> None:
    tool = load_presets(f"preset:{path.stem}", env={})
    assert isinstance(tool, Tool)
    told = tool.definition
    assert told.description
    assert all(one.get("description") for one in told.parameters_json_schema["properties"].values())


def test_modules_provide_functions_tools_and_toolsets() -> None:
    assert load_presets("agent.tools.builtin:calculate").name == "calculate"
    assert isinstance(load_presets("tests.tools.test_presets:PLAIN"), Tool)
    assert isinstance(load_presets("tests.tools.test_presets:THINGS"), Toolset)


MCP = f"""
[mcp]
name = "things"
command = {json.dumps(sys.executable)}
args = ["-m", "tests.support.mcp_server", "stdio"]
cwd = {json.dumps(str(ROOT))}
env = ["A_TOKEN"]
tools = ["add", "surroundings"]
needs_approval = ["add"]
"""


@pytest.mark.slow
async def test_mcp_server_is_a_preset(tmp_path: Path) -> None:
    (tmp_path / "things.toml").write_text(MCP)
    server = load_presets("things", env={"A_TOKEN": "hush", "OTHER": "no"}, folder=tmp_path)
    assert isinstance(server, Toolset)
    assert "hush" not in repr(server)
    assert isinstance(server, McpServer)
    assert (server.elicitation, server.sampling, server.resources) == (True, False, False)
    async with server.session() as tools:
        assert [(tool.name, tool.needs_approval) for tool in tools] == [
            ("things-add", True),
            ("things-surroundings", False),
        ]
        env = json.loads((await call(tools[1])).content)["env"]
    assert (env["A_TOKEN"], "OTHER" in env) == ("hush", False)


REST = '[rest]\nname = "a"\ndescription = "b"\n'
HTTP = '[mcp]\nname = "a"\nurl = "https://e.org/mcp"\n'
WRONG = {
    "no TOML": ("[rest\n", r"bad.toml, line 1: not valid TOML: "),
    "nothing": ("", r"bad.toml, line 1: a preset has one table, \[rest\] or \[mcp\]"),
    "both": (REST + 'url = "https://e.org"\n' + HTTP, "one table"),
    "an unknown table": ("[soap]\n", r"bad.toml, line 1: unknown section \[soap\]; known are rest, mcp"),
    "an unknown key": (
        REST + 'url = "https://e.org/"\nmethd = "GET"\n',
        r"bad.toml, line 5: unknown key 'rest.methd'; perhaps 'method' is meant",
    ),
    "a missing key": (REST, r"bad.toml, line 1: rest.url is missing"),
    "a wrong type": (
        REST + 'url = "https://e.org"\ntimeout = "long"\n',
        r"line 5: rest.timeout must be a number, not 'long'",
    ),
    "a wrong method": (
        REST + 'url = "https://e.org"\nmethod = "TRACE"\n',
        r"line 5: rest.method must be 'GET', .* not 'TRACE'",
    ),
    "an unknown key of a parameter": (
        REST + 'url = "https://e.org/{x}"\n[rest.parameters]\nx = { kind = "string" }\n',
        r"line 6: unknown key 'rest.parameters.x.kind'; known are description, type",
    ),
    "a wrong type of a parameter": (
        REST + 'url = "https://e.org/{x}"\n[rest.parameters.x]\ntype = "date"\n',
        r"line 6: rest.parameters.x.type must be 'string', .* not 'date'",
    ),
    "a place without a parameter": (
        REST + 'url = "https://e.org/{x}"\n',
        r"bad.toml, line 1: tool 'a': \{x\} has no parameter",
    ),
    "a secret that is not set": (
        REST + 'url = "https://e.org/"\nauth = { kind = "bearer", variable = "A_KEY" }\n',
        r"bad.toml, line 1: the environment variable A_KEY is not set",
    ),
    "a wrong auth": (
        REST + 'url = "https://e.org/"\nauth = { kind = "header", variable = "A_KEY" }\n',
        r"bad.toml, line 1: auth.name",
    ),
    "a command and a url": (HTTP + 'command = "true"\n', r"bad.toml, line 1: mcp needs either a command or a url"),
    "neither": ('[mcp]\nname = "a"\n', "either a command or a url"),
    "arguments of a url": (HTTP + 'args = ["a"]\n', "are for a command"),
    "headers of a command": ('[mcp]\nname = "a"\ncommand = "true"\nheaders = { A = "b" }\n', "are for a url"),
    "a name that does not fit": ('[mcp]\nname = "a b"\ncommand = "true"\n', "name is at most"),
    "a variable that is not set": ('[mcp]\nname = "a"\ncommand = "true"\nenv = ["A_KEY"]\n', "A_KEY is not set"),
    "a key for the query": (HTTP + 'auth = { kind = "query", variable = "SET", name = "k" }\n', "kind query"),
}


@pytest.mark.parametrize(("text", "sentence"), WRONG.values(), ids=WRONG)
def test_mistake_is_named_by_file_line_and_key(text: str, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=sentence):
        load_presets(str(path), env={"SET": "hush"})


MISSING = {
    "preset:nothing": r"no preset 'nothing' for a tool; known are currency, weather",
    "nothing": "no preset",
    "../app": "no preset",
    "preset:../app": "no preset",
    "/nowhere/a.toml": r"a.toml cannot be read",
    "agent.tools.builtin:nothing": "cannot be imported",
    "agent.nothing:nothing": "cannot be imported",
    ":": "cannot be imported",
    "agent.tools.builtin:MAX_NAME": "must be a function, and is of the type int",
}


@pytest.mark.parametrize(("reference", "sentence"), MISSING.items(), ids=MISSING)
def test_missing_preset_is_reported(reference: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        load_presets(reference)


def plain(text: str) -> str:
    """Say it again."""
    return text


PLAIN = Tool(plain, "plain")
THINGS = McpServer.stdio("true", name="things")
