"""The settings of the app: `configs/app.toml` under the environment, read once into a frozen value."""

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
    """Which model to serve on this machine, and where weights are kept.

    `vllm_base_url` names a server that runs already (then nothing is fetched or started); `vllm_model` asks for a
    `vllm serve` of our own; `local_model` is a GGUF file of the user's. `downloads` False keeps to what is on disk.
    llama.cpp writes so many `answers` at once, and the next ones wait in line.
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
    """What a page open to everybody gives to strangers.

    `messages` are counted a minute: from each visitor, from each network address, and `messages_in_all`. `answers` are
    counted at once: for each visitor, for each address, and `answers` for all together. Visitors without a cookie
    count as one visitor. As many pictures are fetched from links, counted apart. `tools` are those that may be used,
    and `keys` says whether visitors may type API keys of their own. `models` are the hosted models that are asked with
    the owner's keys; a model that answers on this machine, or at the server that is named, needs no entry. A
    conversation is deleted `keep_days` after its last message, 0 for never.

    `stored_mb_...` limit the text and files that are stored: of one visitor with a cookie, of all guests together, and
    of all, which may also not take more than `stored_disk_percent` of the free disk.
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
    """How much visitors may attach before they send it. A MB is a million bytes.

    `mb_of_guests` is for all visitors without a cookie together, because nothing tells them apart; `mb_in_all` and
    `disk_percent` of the free disk, whichever is less, for everybody. What is not sent is removed after `minutes`.
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
    """Everything the app is told from outside. Times are in seconds, sizes in bytes.

    `hosts` are the names that the page is served under; where there are some, or where `host` is this machine alone, no
    other name is answered but this machine's own. `framed_by` are the origins, as in "https://example.org", whose pages
    may show this one in a frame; `records` is a folder of flight records that the page plays. `fetch_from` are hosts,
    as in "wiki.intranet:8080", from which pictures may be fetched although they are not on the public internet; none
    where `public` holds. `upload_dir` is where files lie until they are sent, None for a folder in `data_dir`.

    `system_prompt` may have the fields `{model}` and `{date}`; None: a default that names both; "": none.

    A conversation is deleted `guest_hours` after the last message where its visitor has no cookie, else `keep_days`
    after it, 0 for never; where `public` holds, its `keep_days` count.

    An answer that nobody watches for `grace_seconds` is ended where `public` holds, and finished elsewhere.
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
        """How many days conversations are kept after their last message, 0 for ever; guests' are not."""
        return self.public.keep_days if self.public else self.keep_days

    @property
    def fleeting(self) -> bool:
        """Whether this is a Space that loses at its restart what people said."""
        if self.space is None:
            return False
        storage = self.space.storage
        return self.store == "memory" or storage is None or not self.data_dir.is_relative_to(storage)


def load_settings(path: Path | None = None, env: Mapping[str, str] = os.environ) -> Settings:
    """Read `path`, else what `SWITCHBOARD_CONFIG` names, else `configs/app.toml`, and let the environment win.

    Raises `ConfigError` naming the setting that is wrong.
    """
    table = _read(path or Path(env.get("SWITCHBOARD_CONFIG") or ROOT / "configs" / "app.toml"))
    space = find_space(env)
    share = env.get("SHARE", "") not in ("", "0")
    values = {**table["server"], **table["history"], **table["agent"]}
    if space:  # its proxy comes from outside, and only its storage is kept
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
    """The settings of each known section, an empty one where the file has none."""
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
        raise ConfigError("local.answers must be 1 or more: so many answers are written at once")
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
    """The limits, where a share link, a Space or the configuration turns them on."""
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
    # Each becomes a word of a header, in which a space or a semicolon would begin another.
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
    for one in value:  # a setting that could never match would be taken for one that does
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
