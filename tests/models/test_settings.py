"""The settings: values of the file, overrides by the environment, and errors that name the setting."""

import os
from pathlib import Path
from typing import Any

import pytest

from agent.errors import ConfigError
from agent.settings import (
    ROOT,
    LocalSettings,
    PublicSettings,
    Settings,
    given_environment,
    load_settings,
    read_env_file,
)


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
    "a link that is shared": ("[public]\nanswers = 2", {"SHARE": "1"}, "public", PublicSettings(answers=2, keys=False)),
    "a link that is not shared": ("", {"SHARE": "false"}, "share", False),
    "the environment over the file": ("[server]\nport = 1", {"GRADIO_SERVER_PORT": "2"}, "port", 2),
    "an empty variable says nothing": ("[server]\nport = 1", {"GRADIO_SERVER_PORT": ""}, "port", 1),
    "a 0 that is not offline": ("", {"SWITCHBOARD_OFFLINE": "0"}, "local", LocalSettings()),
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
    "no TOML": ("[server", "app.toml, line 1: not valid TOML"),
    "an unknown section": ("[srever]", r"line 1: unknown section \[srever\]; perhaps 'server' is meant"),
    "no section": ("title = 1", "line 1: unknown key 'title'; known are server, "),
    "an unknown setting": ("[server]\nstore = 1", "line 2: unknown key 'server.store'; known are title, "),
    "no number": ('[agent]\nrun_seconds = "long"', "line 2: agent.run_seconds must be a number, not 'long'"),
    "no time": ("[history]\nhousekeeping_minutes = 0", "housekeeping_minutes must be more than 0, not 0"),
    "a negative one": ("[agent]\nretries = -1", "line 2: agent.retries must be at least 0, not -1"),
    "one that is none": ("[local]\nwait_seconds = nan", "line 2: local.wait_seconds must be at least 0, not nan"),
    "no host": ('[server]\nhosts = ["a.example:443"]', "server.hosts must be .* without a port, not 'a.example:443'"),
    "no origin": ('[server]\nframed_by = ["https://a.example; x"]', "line 2: server.framed_by must be an origin"),
    "a truth for a number": ("[agent]\nrun_seconds = true", "line 2: agent.run_seconds must be a number, not True"),
    "a fraction of a step": ("[agent]\nmax_steps = 2.5", "line 2: agent.max_steps must be a whole number, not 2.5"),
    "a share of the disk": ("[uploads]\ndisk_percent = 101", "line 2: uploads.disk_percent must be at most 100"),
    "letters for tools": ('[agent]\ntools = "a:b"', "line 2: agent.tools must be a list, not 'a:b'"),
    "no list of models": ('[public]\non = true\nmodels = "a"', "line 3: public.models must be a list, not 'a'"),
    "no limit, though off": ('[public]\nmessages = "ten"', "public.messages must be a whole number, not 'ten'"),
}
VARIABLES = {
    "GRADIO_SERVER_PORT": ("70000", "must be at most 65535, not '70000'"),
    "SWITCHBOARD_STORE": ("postgre", "must be memory, sqlite.* or a URL .*, not 'postgre'"),
    "VLLM_BASE_URL": ("127.0.0.1:8000", "must start with http"),
    "SHARE": ("perhaps", "must be true or false, not 'perhaps'"),
    "GRADIO_ROOT_PATH": ("chat", "must be a path such as /chat or a whole URL, not 'chat'"),
    "MODEL": ("a" * 201, "must have at most 200 characters"),
}


@pytest.mark.parametrize(("text", "words"), REFUSED.values(), ids=REFUSED)
def test_mistake_is_named(file: Path, text: str, words: str) -> None:
    file.write_text(text)
    with pytest.raises(ConfigError, match=words):
        load_settings(file, {})


@pytest.mark.parametrize("name", VARIABLES)
def test_wrong_variable_is_named(file: Path, name: str) -> None:
    value, words = VARIABLES[name]
    with pytest.raises(ConfigError, match=f"{name} {words}"):
        load_settings(file, {name: value})


def test_all_mistakes_are_told_without_secrets(file: Path) -> None:
    file.write_text('[server]\nport = 70000\napi_key = "sk-hush1234567890"\n\n[local]\nanswers = 0\n')
    with pytest.raises(ConfigError) as refused:
        load_settings(file, {})
    port, key, answers = str(refused.value).splitlines()
    assert port == "app.toml, line 2: server.port must be at most 65535, not 70000."
    assert key.startswith("app.toml, line 3: unknown key 'server.api_key'; known are title, host, ")
    assert answers == "app.toml, line 6: local.answers must be at least 1, not 0."
    file.write_text("")
    env = {"VLLM_BASE_URL": "ann:hush@host:8000", "VLLM_API_KEY": "hush", "GRADIO_SERVER_PORT": "one"}
    with pytest.raises(ConfigError) as refused:
        load_settings(file, env)
    assert str(refused.value).splitlines() == [
        "VLLM_BASE_URL must start with http:// or https://.",
        "GRADIO_SERVER_PORT must be a whole number, not 'one'.",
    ]


@pytest.fixture
def env_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the path of a file .env in the working folder. Its variable is unset after the test."""
    monkeypatch.setenv("SWITCHBOARD_A", "")
    monkeypatch.delenv("SWITCHBOARD_A")
    monkeypatch.setenv("SWITCHBOARD_B", "of the environment")
    monkeypatch.chdir(tmp_path)
    return tmp_path / ".env"


def test_env_file_adds_to_the_environment_until_a_new_start(env_file: Path) -> None:
    read_env_file()  # there is none
    env_file.write_text("SWITCHBOARD_A=of the file\nSWITCHBOARD_B=of the file\n")
    read_env_file()
    assert (os.environ["SWITCHBOARD_A"], os.environ["SWITCHBOARD_B"]) == ("of the file", "of the environment")
    again = given_environment()
    assert "SWITCHBOARD_A" not in again
    assert again["SWITCHBOARD_B"] == "of the environment"


def test_unreadable_env_file_is_named(env_file: Path) -> None:
    env_file.write_bytes(b"SWITCHBOARD_A=\xff\xfe")
    with pytest.raises(ConfigError) as refused:
        read_env_file()
    assert str(refused.value) == f"{env_file} cannot be read: it is no UTF-8"
