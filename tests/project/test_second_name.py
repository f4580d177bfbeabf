"""The package under its second name, `switchboard`, with and without other code that is called `agent`."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.clean_environments import Distribution, Environment
from tests.support.scripted_server import Config, Running

pytestmark = pytest.mark.slow
SERVER = Config(rate=0, models=("Qwen/Qwen3-VL-8B-Instruct",))

OTHERS: dict[str, Callable[[Path], None]] = {
    "module": lambda folder: (folder / "agent.py").write_text("MINE = 'mine'\n"),
    "package": lambda folder: write_package(folder / "agent"),
}
"""Other code with the name `agent`, in the folder of a program."""


def write_package(folder: Path) -> None:
    """Write a package that has modules of the same names as ours."""
    folder.mkdir()
    (folder / "__init__.py").write_text("from agent.errors import MINE as MINE\n")
    (folder / "errors.py").write_text("MINE = 'mine'\n")


@pytest.mark.full
def test_second_name_has_the_same_objects(core: Environment, tmp_path: Path) -> None:
    assert (
        core.says(
            """
import switchboard, switchboard.errors, switchboard.history.sqlite
import agent, agent.errors, agent.history.sqlite
from switchboard.tools.rest import rest_tool
from agent.tools.rest import rest_tool as same
print(
    switchboard is agent,
    switchboard.Agent is agent.Agent,
    switchboard.errors is agent.errors,
    switchboard.history.sqlite.SqliteStore is agent.history.sqlite.SqliteStore,
    rest_tool is same,
    agent.errors.__spec__.name,
)
""",
            cwd=tmp_path,
        )
        == "True True True True True agent.errors"
    )


@pytest.mark.full
def test_each_stub_is_the_same_module(core: Environment, built: Distribution, tmp_path: Path) -> None:
    stubs = [Path(name).with_suffix("") for name in built.names_in_wheel() if name.startswith("switchboard/")]
    modules = sorted({".".join(one.parts[1:]).removesuffix("__init__").rstrip(".") for one in stubs} - {"", "py"})
    assert {"errors", "history", "history.sqlite", "messages"} <= {*modules}
    said = core.says(
        f"""
from importlib import import_module
from importlib.util import find_spec
from agent import AgentError
same = 0
for name in {modules!r}:
    try:
        assert find_spec(f"switchboard.{{name}}").origin == find_spec(f"agent.{{name}}").origin, name
        module = import_module(f"agent.{{name}}")
    except (ImportError, AgentError):  # it needs an extra
        continue
    assert import_module(f"switchboard.{{name}}") is module, name
    same += 1
print(same > 100)
""",
        cwd=tmp_path,
    )
    assert said == "True"


TYPED = """
from typing import assert_type

import agent
import agent.history.sqlite
import switchboard
import switchboard.history.sqlite
from switchboard import errors
from switchboard.errors import Conflict
from switchboard.history import HistoryStore, nothing  # type: ignore[attr-defined] # pyright: ignore
from switchboard.messages.openai import to_openai
from switchboard.messages.prompt import to_messages
from switchboard.nothing import Nothing  # type: ignore[import-not-found] # pyright: ignore

assert_type(switchboard.history.sqlite.SqliteStore, type[agent.history.sqlite.SqliteStore])
failure: agent.AgentError = Conflict("Changed.")
chat: agent.Chat = switchboard.Chat(switchboard.Agent("auto"))
store: HistoryStore | None = None
again: switchboard.history.HistoryStore | None = store
listed = to_openai(to_messages("Hello"))
assert_type(listed, list[dict[str, object]])  # type: ignore[assert-type] # pyright: ignore
number: int = errors.Conflict("Changed.")  # type: ignore[assignment] # pyright: ignore
print(nothing, Nothing)  # pyright: ignore
"""
"""A program that uses modules of the second name, with slips that a checker must find."""

PYRIGHT = {
    "include": ["program.py"],
    "typeCheckingMode": "strict",
    "reportUnnecessaryTypeIgnoreComment": True,
    "enableTypeIgnoreComments": False,
}
CHECKERS = {
    "pyright": ("0 errors, 0 warnings", "-m", "pyright", "--pythonpath", "{python}", "-p", "."),
    "mypy": (
        "Success: no issues found",
        *("-m", "mypy", "--strict", "--follow-imports", "silent", "--warn-unused-ignores"),
        *("--cache-dir", "cache", "--config-file", "", "--python-executable", "{python}", "program.py"),
    ),
}
"""What each checker says of a correct program, and its command."""


@pytest.mark.parametrize("checker", [pytest.param(name, marks=pytest.mark.full) for name in CHECKERS])
def test_checkers_know_modules_of_second_name(core: Environment, tmp_path: Path, checker: str) -> None:
    (tmp_path / "program.py").write_text(TYPED)
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(PYRIGHT))
    says, *command = CHECKERS[checker]
    words = [word.format(python=core.python) for word in command]
    done = subprocess.run([sys.executable, *words], cwd=tmp_path, capture_output=True, text=True)
    assert says in done.stdout, done.stdout + done.stderr


@pytest.mark.full
@pytest.mark.parametrize("other", [None, *OTHERS])
def test_second_name_runs_as_a_program(core: Environment, server: Running, tmp_path: Path, other: str | None) -> None:
    if other is not None:
        OTHERS[other](tmp_path)
    done = core.run("python", "-m", "switchboard", "--help", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: python -m switchboard ")
    command = [core.python, "-m", "switchboard", "--model", "Qwen/Qwen3-VL-8B-Instruct"]
    variables = core.variables(tmp_path, VLLM_BASE_URL=server.base_url)
    chat = subprocess.run(
        command, cwd=tmp_path, env=variables, input="!text Here I am.\n", capture_output=True, text=True
    )
    assert (chat.returncode, "Here I am." in chat.stdout) == (0, True), chat.stdout + chat.stderr


@pytest.mark.full
@pytest.mark.parametrize("first", ["agent", "switchboard"])
def test_either_name_can_come_first(core: Environment, tmp_path: Path, first: str) -> None:
    second = {"agent": "switchboard", "switchboard": "agent"}[first]
    source = f"from {first} import errors\nfrom {second} import errors as same\nprint(errors is same)"
    assert core.says(source, cwd=tmp_path) == "True"


@pytest.mark.full
def test_unknown_module_is_reported(core: Environment, tmp_path: Path) -> None:
    source = """
try:
    import switchboard.nothing
except ModuleNotFoundError as error:
    print(error)
"""
    assert core.says(source, cwd=tmp_path) == "No module named 'switchboard.nothing'"


@pytest.mark.full
@pytest.mark.parametrize("first", ["agent", "switchboard"])
@pytest.mark.parametrize("other", OTHERS)
def test_other_code_keeps_the_name_agent(core: Environment, tmp_path: Path, other: str, first: str) -> None:
    OTHERS[other](tmp_path)
    second = {"agent": "switchboard", "switchboard": "agent"}[first]
    said = core.says(
        f"""
import sys
import {first}, {second}
import switchboard.errors, switchboard.history.sqlite
assert switchboard.errors.AgentError is switchboard.AgentError
assert switchboard.history.sqlite.HistoryError is switchboard.errors.HistoryError
print(agent.MINE, sorted(name for name in sys.modules if name.partition(".")[0] == "agent"))
""",
        cwd=tmp_path,
    )
    assert said == {"module": "mine ['agent']", "package": "mine ['agent', 'agent.errors']"}[other]


@pytest.mark.full
@pytest.mark.parametrize("other", OTHERS)
def test_run_works_beside_other_code(core: Environment, server: Running, tmp_path: Path, other: str) -> None:
    OTHERS[other](tmp_path)
    said = core.says(
        """
import asyncio
from PIL import Image as Picture
from switchboard import Agent, Approve, Chat, Image, tool

@tool(needs_approval=True)
def double(number: int) -> int:
    \"\"\"Double a number.\"\"\"
    return 2 * number

async def main():
    picture = Picture.new("RGB", (40, 40), "red")
    async with Agent("Qwen/Qwen3-VL-8B-Instruct", tools=[double, "preset:currency"]) as agent:
        asked = await agent.ask(['!tool double {"number": 21} !text It is done.', Image.from_pillow(picture)])
        result = await agent.resume(asked.suspension, Approve()).finished()
        print(result.checked().text, [one["content"] for one in result.to_input_list() if one["role"] == "tool"])

asyncio.run(main())
with Chat(Agent("Qwen/Qwen3-VL-8B-Instruct")) as chat:
    print("".join(response.content for response in chat.query("!text And this.")))
""",
        cwd=tmp_path,
        VLLM_BASE_URL=server.base_url,
    )
    assert said == "It is done. ['42']\nAnd this."


@pytest.mark.full
def test_program_can_be_called_agent(core: Environment, tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text("from switchboard import Agent\nprint(Agent.__module__)\n")
    done = core.run("python", "agent.py", cwd=tmp_path)
    assert (done.stdout, done.stderr) == ("switchboard.agent\n", "")


@pytest.mark.full
def test_other_code_can_use_the_package(core: Environment, tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text("from switchboard import Agent, Limits\nLIMITS = Limits(steps=3)\n")
    assert core.says("import agent\nprint(agent.LIMITS.steps)", cwd=tmp_path) == "3"


@pytest.mark.full
def test_command_works_beside_other_code(core: Environment, tmp_path: Path) -> None:
    OTHERS["module"](tmp_path)
    done = core.run("switchboard", "chat", "--help", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
