"""The settings of the app, read once from `configs/app.toml` and the environment, which takes precedence."""

import os
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, cast

from agent.errors import ConfigError
from agent.models.families import LONGEST_NAME
from agent.space import Space, find_space

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSettings:
    """The model to serve on this machine, and the folder for weights.

    `vllm_base_url` is the URL of a running server; nothing is then downloaded or started. `vllm_model` is a model to
    start `vllm serve` with. `local_model` is the user's own GGUF file. `downloads` False uses only files on disk.
    llama.cpp generates up to `answers` answers at once; further requests wait in a queue.
    """

    cache_dir: Path
    vllm_base_url: str | None = None
    vllm_api_key: str | None = field(default=None, repr=False)
    vllm_model: str | None = None
    local_model: Path | None = None
    downloads: bool = True
    wait_seconds: float = 5.0
    answers: int = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicSettings:
    """The limits of a page that is open to everybody.

    `messages`, `messages_per_address` and `messages_in_all` are the most messages per minute from one visitor, from one
    network address and from all visitors. The same limits apply separately to pictures fetched from links.
    `answers_each`, `answers_per_address` and `answers` limit concurrent answers in the same way. All visitors without
    a cookie count as one visitor. `tools` are the allowed tools. `keys` allows visitors to enter their own API keys.
    `models` are the hosted models that visitors can use with the owner's keys; models on this machine or at the
    configured server need no entry. A conversation is deleted `keep_days` after its last message, 0 for never.

    `stored_mb_...` limit the stored text and files of one visitor with a cookie, of all guests together, and of all
    visitors. All together also cannot take more than `stored_disk_percent` of the free disk.
    """

    messages: int = 10
    messages_per_address: int = 30
    messages_in_all: int = 120
    answers_each: int = 2
    answers_per_address: int = 4
    answers: int = 8
    keep_days: int = 30
    stored_mb_per_visitor: int = 500
    stored_mb_of_guests: int = 1000
    stored_mb_in_all: int = 10_000
    stored_disk_percent: int = 50
    keys: bool = True
    tools: tuple[str, ...] = ()
    models: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadSettings:
    """The limits for attached files that are not sent yet. A MB is a million bytes.

    `mb_of_guests` is for all visitors without a cookie together, because they cannot be told apart. `mb_in_all` and
    `disk_percent` of the free disk are for all visitors; the smaller one applies. Unsent files are removed after
    `minutes`.
    """

    files_per_request: int = 50
    mb_per_request: float = 100.0
    mb_per_visitor: float = 200.0
    mb_of_guests: float = 400.0
    mb_in_all: float = 2000.0
    disk_percent: float = 50.0
    minutes: float = 45.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings of the app. Times are in seconds, sizes in bytes.

    `hosts` are the host names of the page. If there are any, or if `host` is a loopback address, requests for other
    names are refused, except for this machine's own names. `framed_by` are origins such as "https://example.org" that
    can show the page in a frame. `records` is a folder of run records that the page can play. `fetch_from` are
    hosts such as "wiki.intranet:8080" that pictures can be fetched from although they are not on the public internet;
    it has no effect if `public` is set. `upload_dir` holds files until they are sent, None for a folder in `data_dir`.

    `system_prompt` can contain `{model}` and `{date}`. None: a default with both. "": no system prompt.

    A conversation of a visitor without a cookie is deleted `guest_hours` after its last message, any other one
    `keep_days` after it, 0 for never. If `public` is set, its `keep_days` replaces this one.

    An answer that nobody watches for `grace_seconds` is cancelled if `public` is set, and finished otherwise.
    """

    local: LocalSettings
    uploads: UploadSettings = UploadSettings()
    public: PublicSettings | None = None
    space: Space | None = None
    framed_by: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    fetch_from: tuple[str, ...] = ()
    share: bool = False
    host: str = "127.0.0.1"
    port: int = 7860
    root_path: str = ""
    data_dir: Path = ROOT / "data"
    upload_dir: Path | None = None
    store: str = "sqlite"
    guest_hours: float = 24.0
    keep_days: float = 0.0
    housekeeping_minutes: float = 10.0
    system_prompt: str | None = None
    tools: tuple[str, ...] = ()
    records: Path | None = None
    grace_seconds: float = 60.0
    drain_seconds: float = 10.0
    key_seconds: float = 180.0
    max_steps: int = 12
    retries: int = 3
    run_seconds: float = 600.0
    tool_seconds: float = 60.0
    max_upload_bytes: int = 20 * 1024 * 1024
    title: str = "Switchboard"

    @property
    def kept_days(self) -> float:
        """Days that conversations are kept after their last message, 0 for ever. It does not apply to guests."""
        return self.public.keep_days if self.public else self.keep_days

    @property
    def fleeting(self) -> bool:
        """True if this is a Space that loses its conversations when it restarts."""
        if self.space is None:
            return False
        storage = self.space.storage
        return self.store == "memory" or storage is None or not self.data_dir.is_relative_to(storage)


def load_settings(path: Path | None = None, env: Mapping[str, str] = os.environ) -> Settings:
    """Read `path`, else the file in `SWITCHBOARD_CONFIG`, else `configs/app.toml`. The environment takes precedence.

    Raises `ConfigError` with the name of the wrong setting.
    """
    table = _read(path or Path(env.get("SWITCHBOARD_CONFIG") or ROOT / "configs" / "app.toml"))
    space = find_space(env)
    share = env.get("SHARE", "") not in ("", "0")
    values = {**table["server"], **table["history"], **table["agent"]}
    if space:  # its proxy connects from outside the container, and only its storage survives a restart
        values["host"] = "0.0.0.0"
        if space.storage:
            values["data_dir"] = space.storage
            table["local"]["cache_dir"] = space.storage / "cache"
    values |= {name: env[variable] for name, variable in _VARIABLES.items() if env.get(variable)}
    for name in values.keys() & _CONVERTERS.keys():
        values[name] = _CONVERTERS[name](name, values[name])
    if values.get("store", "sqlite") not in ("sqlite", "memory"):
        raise ConfigError(f"history store must be 'sqlite' or 'memory', not {values['store']!r}")
    if not 0 <= values.get("port", 7860) <= 65535:
        raise ConfigError(f"port must be between 0 and 65535, not {values['port']!r}")
    return Settings(
        local=_local(table["local"], env),
        uploads=_uploads(table["uploads"]),
        public=_public(table["public"], share=share, space=space is not None),
        space=space,
        share=share,
        root_path=_root_path(env.get("GRADIO_ROOT_PATH", "")),
        **values,
    )


def _read(path: Path) -> dict[str, dict[str, Any]]:
    """Read the settings of each known section; a missing section is empty."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path.name} is not valid TOML: {error}") from error
    for section, content in table.items():
        if section not in _KNOWN or not isinstance(content, dict):
            raise ConfigError(f"{path.name}: unknown section [{section}]; known are {', '.join(_KNOWN)}")
        for key in cast(dict[str, Any], content):
            if key not in _KNOWN[section]:
                raise ConfigError(f"{path.name}: unknown setting {section}.{key}")
    return {section: dict(table.get(section, {})) for section in _KNOWN}


def _local(given: Mapping[str, Any], env: Mapping[str, str]) -> LocalSettings:
    if (answers := _count("answers", given.get("answers", 4))) < 1:
        raise ConfigError("local.answers must be 1 or more: it is the number of answers written at once")
    return LocalSettings(
        cache_dir=_path("cache_dir", env.get("SWITCHBOARD_CACHE") or given.get("cache_dir", ".cache")),
        vllm_base_url=_url(env.get("VLLM_BASE_URL")),
        vllm_api_key=env.get("VLLM_API_KEY") or None,
        vllm_model=_model(env.get("MODEL")),
        local_model=Path(env["LOCAL_MODEL"]).expanduser() if env.get("LOCAL_MODEL") else None,
        downloads=env.get("SWITCHBOARD_OFFLINE", "") in ("", "0") and bool(given.get("downloads", True)),
        wait_seconds=_number("wait_seconds", given.get("wait_seconds", 5.0)),
        answers=answers,
    )


def _model(name: str | None) -> str | None:
    if name and len(name) > LONGEST_NAME:
        raise ConfigError(f"MODEL has {len(name):,} characters; the name of a model has at most {LONGEST_NAME}")
    return name or None


def _uploads(given: Mapping[str, Any]) -> UploadSettings:
    numbers: dict[str, Any] = {name: _number(f"uploads.{name}", value) for name, value in given.items()}
    if "files_per_request" in numbers:
        numbers["files_per_request"] = int(numbers["files_per_request"])
    if numbers.get("disk_percent", 0) > 100:
        raise ConfigError(f"uploads.disk_percent must be 100 at most, and is {given['disk_percent']!r}")
    return UploadSettings(**numbers)


def _public(given: Mapping[str, Any], *, share: bool, space: bool) -> PublicSettings | None:
    """Return the public limits if a share link, a Space or the configuration turns them on."""
    counts = {name: _count(name, given[name]) for name in _PUBLIC_COUNTS if name in given}
    if counts.get("stored_disk_percent", 0) > 100:
        raise ConfigError(f"public.stored_disk_percent must be 100 at most, and is {given['stored_disk_percent']!r}")
    if not (given.get("on") or share or space):
        return None
    tools, models = (_names(name, given.get(name, [])) for name in ("public_tools", "models"))
    return PublicSettings(keys=not share, tools=tools, models=models, **counts)


def _path(_: str, value: object) -> Path:
    path = Path(str(value)).expanduser()
    return path if path.is_absolute() else ROOT / path


def _number(name: str, value: object) -> float:
    try:
        number = float(str(value))
    except ValueError as error:
        raise ConfigError(f"{name} must be a number, not {value!r}") from error
    zero = not number and name in _NEVER_ZERO
    if wrong := "must not be negative" if not number >= 0 else "must be more than 0" if zero else "":
        raise ConfigError(f"{name} {wrong}, and is {value!r}")
    return number


def _count(name: str, value: object) -> int:
    return int(_number(name, value))


def _names(name: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(one, str) for one in cast(list[object], value)):
        raise ConfigError(f"public.{name} must be a list of names, and is {value!r}")
    return tuple(cast(list[str], value))


def _words(_: str, value: Iterable[object]) -> tuple[str, ...]:
    return tuple(str(one) for one in value)


def _origins(name: str, value: Iterable[object]) -> tuple[str, ...]:
    # Each origin becomes one word of a header. A space or a semicolon in it would begin another word.
    for one in value:
        if not re.fullmatch(r"https?://[A-Za-z0-9.*-]+(:\d+)?", str(one)):
            raise ConfigError(f"{name} must be origins such as https://example.org, and has {one!r}")
    return _words(name, value)


def _host_names(name: str, value: str | Iterable[object]) -> tuple[str, ...]:
    names = value.replace(",", " ").split() if isinstance(value, str) else list(value)
    for one in names:
        if not re.fullmatch(r"[a-z0-9.-]+|\[[0-9a-f:]+\]", str(one)):
            raise ConfigError(f"{name} must be host names such as chat.example.org, without a port, and has {one!r}")
    return _words(name, names)


def _hosts(name: str, value: Iterable[object]) -> tuple[str, ...]:
    for one in value:  # refuse a host that could never match, because its owner would believe that it works
        if not re.fullmatch(r"([a-z0-9.-]+|\[[0-9a-f:]+\]):\d+", str(one)):
            raise ConfigError(f"{name} must be hosts with their port, such as wiki.intranet:443, and has {one!r}")
    return _words(name, value)


def _root_path(value: str) -> str:
    if value and not value.startswith(("/", "http://", "https://")):
        raise ConfigError(f"GRADIO_ROOT_PATH must be a path such as /chat or a whole URL, and is {value!r}")
    return value.rstrip("/")


def _url(value: str | None) -> str | None:
    if not value:
        return None
    if not value.startswith(("http://", "https://")):
        raise ConfigError(f"VLLM_BASE_URL must start with http:// or https://, and is {value!r}")
    url = value.rstrip("/")
    return url if url.endswith("/v1") else url + "/v1"


_PUBLIC_COUNTS = tuple(field.name for field in fields(PublicSettings) if field.type is int)
_KNOWN = {
    "server": {
        "host",
        "port",
        "title",
        "grace_seconds",
        "drain_seconds",
        "key_seconds",
        "max_upload_bytes",
        "framed_by",
        "hosts",
        "fetch_from",
    },
    "history": {"store", "data_dir", "guest_hours", "keep_days", "housekeeping_minutes"},
    "uploads": {field.name for field in fields(UploadSettings)},
    "agent": {"system_prompt", "tools", "records", "max_steps", "retries", "run_seconds", "tool_seconds"},
    "public": {"on", "public_tools", "models", *_PUBLIC_COUNTS},
    "local": {"cache_dir", "downloads", "wait_seconds", "answers"},
}
_VARIABLES = {
    "host": "GRADIO_SERVER_NAME",
    "port": "GRADIO_SERVER_PORT",
    "hosts": "SWITCHBOARD_HOSTS",
    "data_dir": "SWITCHBOARD_DATA",
    "upload_dir": "GRADIO_TEMP_DIR",
    "store": "SWITCHBOARD_STORE",
}
_NEVER_ZERO = ("housekeeping_minutes", "guest_hours")
_NUMBERS = (*_NEVER_ZERO, "grace_seconds", "drain_seconds", "key_seconds", "run_seconds", "tool_seconds", "keep_days")
_CONVERTERS: Mapping[str, Callable[[str, Any], Any]] = {
    **dict.fromkeys(("port", "max_steps", "retries", "max_upload_bytes"), _count),
    **dict.fromkeys(_NUMBERS, _number),
    "data_dir": _path,
    "upload_dir": _path,
    "records": _path,
    "tools": _words,
    "framed_by": _origins,
    "hosts": _host_names,
    "fetch_from": _hosts,
}
