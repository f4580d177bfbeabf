"""The package under its second name, `switchboard`, with and without other code that is called `agent`."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.clean_environments import Environment
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


@pytest.mark.parametrize("first", ["agent", "switchboard"])
def test_either_name_can_come_first(core: Environment, tmp_path: Path, first: str) -> None:
    second = {"agent": "switchboard", "switchboard": "agent"}[first]
    source = f"from {first} import errors\nfrom {second} import errors as same\nprint(errors is same)"
    assert core.says(source, cwd=tmp_path) == "True"


def test_unknown_module_is_reported(core: Environment, tmp_path: Path) -> None:
    source = """
try:
    import switchboard.nothing
except ModuleNotFoundError as error:
    print(error)
"""
    assert core.says(source, cwd=tmp_path) == "No module named 'switchboard.nothing'"


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


def test_program_can_be_called_agent(core: Environment, tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text("from switchboard import Agent\nprint(Agent.__module__)\n")
    done = core.run("python", "agent.py", cwd=tmp_path)
    assert (done.stdout, done.stderr) == ("switchboard.agent\n", "")


def test_other_code_can_use_the_package(core: Environment, tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text("from switchboard import Agent, Limits\nLIMITS = Limits(steps=3)\n")
    assert core.says("import agent\nprint(agent.LIMITS.steps)", cwd=tmp_path) == "3"


def test_command_works_beside_other_code(core: Environment, tmp_path: Path) -> None:
    OTHERS["module"](tmp_path)
    done = core.run("switchboard", "chat", "--help", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
