"""`Agent("auto")` is the model that the page would choose, and every example and documented program runs with it."""

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import PIL.Image
import psutil
import pytest

from agent import Agent, Approve, InputError, Seals, tool
from agent.local.manager import LocalModels
from agent.settings import ROOT, load_settings
from tests.support.scripted_server import Config, Running, running
from tests.support.waiting import command_of

SERVER = Config(rate=0, models=("Qwen/Qwen3-8B", "Qwen/Qwen3-VL-8B-Instruct"))
BARE = {"SWITCHBOARD_OFFLINE": "1", "PATH": "/usr/bin:/bin"}
HIDDEN = ("VLLM_BASE_URL", "LLAMA_CPP_BASE_URL", "LOCAL_MODEL", "MODEL")
PAGES = [(ROOT / "README.md").read_text(encoding="utf-8").split("\n## The package\n")[1].split("\n## ")[0]]
PAGES += [(ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("package.md", "coming-from.md")]
PROGRAMS = {
    f"block {number}": block
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", "\n".join(PAGES), re.DOTALL))
}
EXAMPLES = {path.stem: path.read_text() for path in (ROOT / "examples").glob("*.py") if path.stem != "words_server"}
EXAMPLES = {name: text for name, text in EXAMPLES.items() if ".launch()" not in text}
"""The examples that end by themselves. A page does not end (see `tests/page/test_transcript_page.py`)."""


@pytest.fixture(autouse=True)
def bare_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Hide this machine's servers, GPU and cache of the hub, and turn off downloads."""
    for name in HIDDEN:
        monkeypatch.delenv(name, raising=False)
    for name, value in (BARE | {"HF_HUB_CACHE": str(tmp_path / "hub")}).items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def named(server: Running, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    """Name the scripted server as people do."""
    monkeypatch.setenv("VLLM_BASE_URL", server.base_url)
    return server


def children() -> list[psutil.Process]:
    found = psutil.Process().children(recursive=True)
    alive = [one for one in found if one.status() != psutil.STATUS_ZOMBIE]  # that has ended, and waits for its parent
    return [one for one in alive if any("llama_server" in word for word in command_of(one))]


# --- which model ------------------------------------------------------------------------------------------------------


async def test_auto_is_first_model_of_named_server(named: Running) -> None:
    async with Agent("auto") as agent:
        seen = len(named.journal())
        assert agent.connection.spec.id == "auto"
        result = await agent.ask("!reasoning Hm. !text One.", reasoning=True)
        assert (result.text, result.note.model, result.effort) == ("One.", "vllm:Qwen/Qwen3-8B", True)
        assert named.journal()[seen]["body"]["model"] == "Qwen/Qwen3-8B"
        async with asyncio.timeout(60):
            [served, *_] = await LocalModels(load_settings().local, say=lambda _: None).ready()
        assert agent.connection.spec == served.spec


async def test_base_url_names_the_server_of_auto() -> None:
    with running(Config(rate=0, models=("org/only",), api_key="secret")) as other:
        async with Agent("auto", base_url=other.base_url, api_key="secret") as agent:
            assert (await agent.ask("!text One.")).note.model == "vllm:org/only"
    with pytest.raises(InputError, match="http"):
        Agent("auto", base_url="localhost:8000/v1")


async def test_server_that_is_away_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_BASE_URL", "http://127.0.0.1:9/v1")
    async with Agent("auto") as agent:
        result = await agent.ask("Hello")
    assert result.finish_reason == "error"
    assert "127.0.0.1:9" in result.why


async def test_picture_is_refused_once_the_model_is_known(named: Running) -> None:
    picture = PIL.Image.new("RGB", (2, 2))
    async with Agent("auto") as agent:
        seen = len(named.journal())
        for _ in range(2):
            with pytest.raises(InputError, match="Qwen3-8B cannot take images"):
                await agent.ask(["What is this?", picture])
        assert len(named.journal()) == seen


@tool(needs_approval=True)
def delete(name: str) -> str:
    """Delete it."""
    return f"{name} is gone"


async def test_another_process_resumes_a_run_of_auto(named: Running) -> None:
    seals = Seals(keys={"a": "a long secret that is kept elsewhere"})
    async with Agent("auto", tools=[delete], seals=seals) as agent:
        first = await agent.ask('!tool delete {"name": "x"} !text Done.')
        assert first.suspension is not None
    async with Agent("auto", tools=[delete], seals=seals) as other:
        assert (await other.resume(first.suspension, Approve())).text == "Done."


# --- on a bare machine ------------------------------------------------------------------------------------------------


SCRIPT = """
import asyncio, psutil, time
from agent import Agent, Chat

def servers():
    found = psutil.Process().children(recursive=True)
    alive = [one for one in found if one.status() != psutil.STATUS_ZOMBIE]
    return sum(any("llama_server" in word for word in one.cmdline()) for one in alive)

with Agent("auto") as agent:
    assert servers() == 0, "nothing starts before the first run"
    result = asyncio.run(agent.ask("Hello", max_tokens=8))
    assert result.text and result.note.model == "local:smollm2-135m", result
    with Chat(agent) as chat:
        assert chat.say("Hello", max_tokens=8).text
        assert servers() == 2, "each event loop has its own"
    assert servers() == 1
end = time.monotonic() + 30
while servers() and time.monotonic() < end:
    time.sleep(0.05)
print("left:", servers())
"""


@pytest.mark.weights
@pytest.mark.slow
@pytest.mark.full
def test_auto_starts_a_small_model_until_with_ends() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "left: 0\n", done.stderr


@pytest.mark.weights
@pytest.mark.slow
async def test_with_ends_servers_in_a_running_loop() -> None:
    with Agent("auto") as agent:
        assert (await agent.ask("Hello", max_tokens=8)).text
        assert len(children()) == 1
    await asyncio.gather(*(asyncio.all_tasks() - {asyncio.current_task()}), return_exceptions=True)
    assert children() == []


@pytest.mark.full
@pytest.mark.timeout(1800)  # the small model writes for a minute on a busy machine
@pytest.mark.weights
@pytest.mark.slow
@pytest.mark.parametrize("name", [*EXAMPLES, *PROGRAMS])
def test_program_runs_on_a_bare_machine(name: str, tmp_path: Path) -> None:
    program = [str(ROOT / "examples" / f"{name}.py")] if name in EXAMPLES else ["-c", PROGRAMS[name]]
    environment = {key: value for key, value in os.environ.items() if key not in HIDDEN} | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, *program], cwd=tmp_path, env=environment, input="n\n" * 9, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "SmolLM2 135M answers after" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout.strip()
    written = (EXAMPLES | PROGRAMS)[name].replace('Agent("auto"', "").replace('Agent(["ollama:qwen3", "auto"]', "")
    assert "Agent(" not in written, "another model than auto"
