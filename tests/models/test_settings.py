"""The settings: values of the file, overrides by the environment, and errors that name the setting."""

from pathlib import Path
from typing import Any

import pytest

from agent.errors import ConfigError
from agent.settings import ROOT, LocalSettings, PublicSettings, Settings, load_settings


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "app.toml"


def test_shipped_file_states_the_defaults(file: Path) -> None:
    ours, without = load_settings(ROOT / "configs" / "app.toml", {}), load_settings(file, {})
    assert ours.tools
    assert Settings(**{**vars_of(ours), "tools": ()}) == without


def vars_of(settings: Settings) -> dict[str, Any]:
    return {name: getattr(settings, name) for name in Settings.__dataclass_fields__}


SAID = {
    "a word": ('[server]\ntitle = "Mine"', {}, "title", "Mine"),
    "a time": ("[agent]\nrun_seconds = 1.5", {}, "run_seconds", 1.5),
    "a path": ('[history]\ndata_dir = "kept"', {}, "data_dir", ROOT / "kept"),
    "hosts": ('[server]\nhosts = ["chat.example"]', {}, "hosts", ("chat.example",)),
    "hosts of the environment": (
        "",
        {"SWITCHBOARD_HOSTS": "a.example, b.example"},
        "hosts",
        ("a.example", "b.example"),
    ),
    "frames": ('[server]\nframed_by = ["https://a.example:8000"]', {}, "framed_by", ("https://a.example:8000",)),
    "limits that are on": (
        '[public]\non = true\nmessages = 3\npublic_tools = ["a:b"]\nmodels = ["c:d"]',
        {},
        "public",
        PublicSettings(messages=3, tools=("a:b",), models=("c:d",)),
    ),
    "limits that are off": ("[public]\nmessages = 3", {}, "public", None),
    "a link that is shared": (
        "[public]\nanswers = 2",
        {"SHARE": "1"},
        "public",
        PublicSettings(answers=2, keys=False),
    ),
    "the environment over the file": ("[server]\nport = 1", {"GRADIO_SERVER_PORT": "2"}, "port", 2),
    "an empty variable says nothing": ("[server]\nport = 1", {"GRADIO_SERVER_PORT": ""}, "port", 1),
    "where others serve": (
        '[local]\ncache_dir = "c"\ndownloads = true',
        {"VLLM_BASE_URL": "http://127.0.0.1:8000/", "VLLM_API_KEY": "k", "SWITCHBOARD_OFFLINE": "1"},
        "local",
        LocalSettings(
            cache_dir=ROOT / "c", vllm_base_url="http://127.0.0.1:8000/v1", vllm_api_key="k", downloads=False
        ),
    ),
}


@pytest.mark.parametrize(("text", "env", "name", "value"), SAID.values(), ids=SAID)
def test_given_setting_is_used(file: Path, text: str, env: dict[str, str], name: str, value: object) -> None:
    file.write_text(text)
    assert getattr(load_settings(file, env), name) == value


REFUSED = {
    "no TOML": ("[server", {}, "app.toml is not valid TOML"),
    "an unknown section": ("[srever]", {}, r"unknown section \[srever\]"),
    "no section": ("title = 1", {}, r"unknown section \[title\]"),
    "an unknown setting": ("[server]\nstore = 1", {}, "server.store"),
    "no number": ('[agent]\nrun_seconds = "long"', {}, "run_seconds must be a number"),
    "no time between rounds": ("[history]\nhousekeeping_minutes = 0", {}, "housekeeping_minutes must be more than 0"),
    "a negative one": ("[agent]\nretries = -1", {}, "retries must not be negative"),
    "one that is none": ("[local]\nwait_seconds = nan", {}, "wait_seconds"),
    "no port": ("", {"GRADIO_SERVER_PORT": "70000"}, "port must be between"),
    "no store": ("", {"SWITCHBOARD_STORE": "postgre"}, "history store must be"),
    "no host": ('[server]\nhosts = ["chat.example:443"]', {}, "hosts"),
    "no origin": ('[server]\nframed_by = ["https://a.example; script-src *"]', {}, "framed_by"),
    "no address": ("", {"VLLM_BASE_URL": "127.0.0.1:8000"}, "VLLM_BASE_URL"),
    "no path": ("", {"GRADIO_ROOT_PATH": "chat"}, "GRADIO_ROOT_PATH"),
    "no list of models": ('[public]\non = true\nmodels = "gpt-6-luna"', {}, "public.models must be a list of names"),
    "no limit, though off": ('[public]\nmessages = "ten"', {}, "messages must be a number"),
}


@pytest.mark.parametrize(("text", "env", "words"), REFUSED.values(), ids=REFUSED)
def test_mistake_is_named(file: Path, text: str, env: dict[str, str], words: str) -> None:
    file.write_text(text)
    with pytest.raises(ConfigError, match=words):
        load_settings(file, env)


def test_long_model_name_is_refused(file: Path) -> None:
    with pytest.raises(ConfigError, match="MODEL has 201 characters"):
        load_settings(file, {"MODEL": "a" * 201})
