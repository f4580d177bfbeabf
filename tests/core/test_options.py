"""The options of a run: each one is checked before any request, and the error lists the valid values."""

import math
import subprocess
import sys
from dataclasses import replace
from typing import Any, get_type_hints

import pytest

from agent import Agent, Chat, Context, Endpoint, InputError, Options, RunOptions, connect
from agent.models.catalog import load_catalog
from agent.settings import ROOT
from agent.tools import ask_user
from tests.support.fakes import FakeConnection
from tests.support.models import QWEN3
from tests.support.scripted_server import Running

WRONG = [
    *(("reasoning", value) for value in ("off", "on", "no", "False", "super", "", 0, 1, 0.5, ["low"])),
    *(("ignore_reasoning", value) for value in (None, 0, "no")),
    *(("temperature", value) for value in ("hot", "0.5", -0.1, 2.1, math.nan, math.inf, True, [1])),
    *(("max_tokens", value) for value in (-5, 0, 1.5, "100", True)),
    ("temprature", 1),
]
KNOWN = {
    "reasoning": "Known values: True, False, None, none, minimal, low, medium, high, xhigh, max.",
    "ignore_reasoning": "Known values: True, False.",
    "temperature": "Known values: 0 - 2, None.",
    "max_tokens": "Known values: 1, 2, 3, ..., None.",
    "temprature": "Known options: reasoning, ignore_reasoning, temperature, max_tokens.",
}


@pytest.mark.parametrize(("name", "value"), WRONG, ids=repr)
async def test_wrong_option_is_refused_before_any_request(server: Running, name: str, value: Any) -> None:
    before = len(server.journal())
    async with Agent(connect(QWEN3, Endpoint(server.base_url)), tools=[ask_user]) as agent:
        waiting = agent.seals.open((await agent.ask('!tool ask_user {"question": "Which?"}')).suspension or "")
        before += 1
        asked: dict[str, Any] = {name: value}
        with pytest.raises(InputError) as refused:
            agent.run("Hello", **asked)
        with pytest.raises(InputError):
            await agent.ask("Hello", **asked)
        if name in KNOWN and name != "temprature":
            with pytest.raises(InputError):
                agent.run("Hello", options=Options(**asked))
        with pytest.raises(InputError):
            agent.resume(replace(waiting, options=asked), "daily")
    said = str(refused.value)
    assert repr(name if name == "temprature" else value) in said
    assert name in said
    assert said.endswith(KNOWN[name])
    assert len(server.journal()) == before


def test_wrong_option_leaves_a_chat_as_it_was(server: Running) -> None:
    with Chat(Agent(connect(QWEN3, Endpoint(server.base_url)))) as chat:
        with pytest.raises(InputError, match="reasoning cannot be 'off'"):
            list(chat.query("Hello", reasoning="off"))
        assert chat.context.messages == ()
        assert "".join(str(one.content) for one in chat.query("!text Hi.", reasoning=False)) == "Hi."


@pytest.mark.parametrize("options", [Options(), Options(reasoning="max", temperature=0, max_tokens=1)], ids=repr)
def test_right_options_are_taken(options: Options) -> None:
    Agent(FakeConnection([])).run("Hello", context=Context(), options=options)


def test_temperature_keeps_to_the_dialect() -> None:
    spec = replace(load_catalog().find("claude-haiku-4-5", "anthropic"), temperature=True)
    agent = Agent(connect(spec, Endpoint("http://127.0.0.1:9", "key")))
    with pytest.raises(InputError, match=r"temperature cannot be 1\.5\. Known values: 0 - 1"):
        agent.run("Hello", temperature=1.5)
    agent.run("Hello", temperature=1)


async def test_temperature_that_cannot_be_set_is_noted() -> None:
    connection = FakeConnection([])
    connection.spec = replace(connection.spec, temperature=False)
    result = await Agent(connection).ask("Hello", temperature=0.5)
    assert result.notes == ("The temperature of Parts cannot be set; it was asked without.",)


async def test_retired_model_names_its_replacement() -> None:
    connection = FakeConnection([])
    connection.spec = replace(connection.spec, retired=True, replaced_by="gpt-6-luna")
    result = await Agent(connection).ask("Hello")
    assert result.notes == ("Parts was shut down. gpt-6-luna replaces it. It can still be tried.",)


def test_keywords_are_the_fields() -> None:
    keywords, fields = get_type_hints(RunOptions), get_type_hints(Options)
    assert {name: keywords[name] for name in fields} == fields
    assert keywords.keys() - fields.keys() == {"options", "journal"}


@pytest.mark.full
@pytest.mark.slow
def test_type_checker_finds_misspelt_options() -> None:
    command = [sys.executable, "-m", "pyright", "tests/support/typed_programs.py"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
