"""The code in README and examples/ runs as written, and every public name has a docstring."""

import inspect
import io
import json
import re
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import agent
from agent.settings import ROOT
from tests.support.scripted_server import Config, Running

MODELS = ("Qwen/Qwen3-VL-8B-Instruct", "Qwen/Qwen3-8B")
"""The first one is `auto`."""
SECTION = (ROOT / "README.md").read_text(encoding="utf-8").split("\n## The package\n")[1].split("\n## ")[0]
PAGE = "".join((ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("package.md", "coming-from.md"))
BLOCKS = [  # those about a store of one's own run in `tests/history/test_own_store.py`
    block for block in re.findall(r"```python\n(.*?)```", SECTION + PAGE, re.DOTALL)
]


SERVER = Config(rate=0, models=MODELS)


@pytest.fixture(autouse=True)
def at_home(server: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in an empty folder, with the scripted server as the model's."""
    monkeypatch.setenv("VLLM_BASE_URL", server.base_url)
    monkeypatch.chdir(tmp_path)


def run(name: str, *arguments: str, said: str = "", monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Run an example as a program and return the names that it defines."""
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    monkeypatch.setattr(sys, "stdin", io.StringIO(said))
    return runpy.run_path(str(ROOT / "examples" / f"{name}.py"), run_name="__main__")


EXAMPLES: dict[str, tuple[list[str], str, str]] = {
    "chat": (["!reasoning Hm. !text One.", "!text Two."], "", r"Hm\.\nOne\.\n\nTwo\.\n5 messages"),
    "images": (["!text Red."], "", r"Red\."),
    "tools": (
        ['!tool weather {"city": "Rome"} !text Rain.'],
        "",
        r'calls weather.*"sky": ?"rain".*Rain\.\n.*output_tokens',
    ),
    "approval": (['!tool delete {"mail": 7} !text Gone.'], "y\n", r"sealed: \d+ characters\n.*Gone\."),
    "cancel": (["!tokens 9000 @200"], "", r"## word0 .*\ncancelled: Stopped\.\nHello!"),
    "json_history": (["talk.json", "!text Kept."], "", r"Kept\."),
    "many": (["Ada", "Bob"], "", r"Ada: .*\n?.*Bob: |Bob: .*\n?.*Ada: "),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_example_does_what_it_says(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments, said, expected = EXAMPLES[name]
    run(name, *arguments, said=said, monkeypatch=monkeypatch)
    assert re.search(expected, capsys.readouterr().out, re.DOTALL)


def test_pictures_are_sent(server: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import PIL.Image

    PIL.Image.new("RGB", (2, 2)).save(tmp_path / "a.jpg")
    run("images", "!text Black.", "a.jpg", monkeypatch=monkeypatch)
    url = server.journal()[-1]["body"]["messages"][-1]["content"][1]["image_url"]["url"]
    assert url.startswith("data:image/jpeg;base64,")


def test_only_approved_actions_happen(monkeypatch: pytest.MonkeyPatch) -> None:
    script = '!tool delete {"mail": 7} !text Gone.'
    assert run("approval", script, said="y\n", monkeypatch=monkeypatch)["DELETED"] == [7]
    assert run("approval", script, said="n\n", monkeypatch=monkeypatch)["DELETED"] == []


def test_json_file_keeps_conversation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for prompt in ("!text Kept.", "Hello"):
        run("json_history", "talk.json", prompt, monkeypatch=monkeypatch)
    assert "Before it I was sent 2 messages." in capsys.readouterr().out
    kept = json.loads((tmp_path / "talk.json").read_text())
    assert [message["role"] for message in kept] == ["system", "user", "assistant", "user", "assistant"]


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_readme_code_runs(number: int, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(BLOCKS[number], f"README, block {number}", "exec"), {"__name__": "__main__"})
    said = "ok events" if "agent.conformance" in BLOCKS[number] else "Hello! You said"
    assert said in capsys.readouterr().out


def test_readme_is_true() -> None:
    assert len(BLOCKS) == 23
    history = next(block for block in BLOCKS if "talk.json" in block)
    body = history.split("async def")[1].split("print(")[0]
    assert len([line for line in body.splitlines() if line.strip()]) <= 10, "more than ten lines of history"
    linked = set(re.findall(r"\]\(\.\./examples/(\w+)\.py\)", PAGE))
    there = {path.stem for path in (ROOT / "examples").glob("*.py")} - {"words_server"}
    assert linked == there, "the linked and the existing examples differ"


# --- what is public ---------------------------------------------------------------------------------------------------


def public() -> Iterator[tuple[str, Any]]:
    """Yield the public names, and the public methods and properties of public classes."""
    for name in agent.__all__:
        value = getattr(agent, name)
        yield name, value
        if inspect.isclass(value) and value.__module__.startswith("agent"):
            for own, member in vars(value).items():
                if not own.startswith("_") and (
                    callable(member) or isinstance(member, property | staticmethod | classmethod)
                ):
                    yield f"{name}.{own}", member


ALIASES = {"Effort", "Event", "FinishReason", "ModelMessage", "Prompt", "ResponseType"}
"""Names for a choice of words or types, which cannot have a docstring."""


def test_public_names_have_docstrings() -> None:
    for name, value in public():
        if name not in ALIASES:
            own = value.__func__ if isinstance(value, staticmethod | classmethod) else value
            text = getattr(own, "__doc__", None) or ""
            assert len(text.split()) >= 3, f"{name} has no docstring"
            assert not text.startswith(f"{name}("), f"{name} has only the docstring that dataclasses make"


def test_public_package_is_complete_and_typed() -> None:
    assert agent.__all__ == sorted(agent.__all__, key=lambda name: (not name.isupper(), not name[0].isupper(), name))
    assert (ROOT / "agent" / "py.typed").is_file()
    star: dict[str, Any] = {}
    exec("from agent import *", star)
    assert set(agent.__all__) <= star.keys()
