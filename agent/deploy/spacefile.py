"""The Spacefile: the wanted state of a Space, as a small TOML file and as a frozen value. Knows nothing of the hub."""

import re
import tomllib
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

from huggingface_hub import SpaceHardware

from agent.errors import ConfigError

COLORS = ("red", "yellow", "green", "blue", "indigo", "purple", "pink", "gray")
HARDWARE = tuple(one.value for one in SpaceHardware)
FREE = "cpu-basic"

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Names that look like secrets, and values that begin like a vendor's key.
_SECRET_NAME = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD|CREDENTIALS)S?$", re.IGNORECASE)
_NOT_SECRET_NAME = re.compile(r"(?>.*?MAX).*TOKENS$", re.IGNORECASE)
_SECRET_VALUE = re.compile(r"\b(sk-|hf_|xai-|AIza|gsk_|ghp_|github_pat_|AKIA)[A-Za-z0-9_-]{12,}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """The Space that a Spacefile describes.

    `name` can omit the owner, which is then the token's. `target` is the stage of the Dockerfile to run.
    `sleep_seconds` is the time without visitors before the Space sleeps: -1 for never, None for the hub's default.
    `private` applies at creation. `storage` names a bucket mounted at /data. `secrets` has only names.
    """

    name: str
    title: str
    sdk: Literal["docker", "gradio"] = "docker"
    target: str | None = None
    emoji: str = "💬"
    colors: tuple[str, str] = ("indigo", "blue")
    hardware: str = FREE
    sleep_seconds: int | None = None
    private: bool = True
    oauth: bool = False
    storage: str | None = None
    preload: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict[str, str])


class _Wrong(Exception):
    """An invalid value: the fault, the path to it below its key, and the list item."""

    def __init__(self, what: str, *way: str, item: str = "") -> None:
        super().__init__(what)
        self.what, self.way, self.item = what, way, item


def read_spacefile(path: Path) -> Space:
    """Read a Spacefile. Raises `ConfigError`, which names the line and never quotes a possible secret."""
    try:
        text = path.read_text(encoding="utf-8").replace("\r\n", "\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path.name} cannot be read: {getattr(error, 'strerror', None) or error}.") from error
    try:
        return _space(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        what = re.sub(r" \(at [^()]*\)$", "", str(error))
        raise ConfigError(f"{path.name}, line {_line(text)}: not valid TOML: {what}.") from error
    except _Wrong as error:
        raise ConfigError(f"{path.name}, line {_line(text, *error.way, item=error.item)}: {error.what}.") from error


def _space(table: Mapping[str, Any]) -> Space:
    for key, value in table.items():
        if key not in _CHECKS:
            secret = "a secret's name belongs into `secrets`, its value into the environment"
            hint = secret if _is_secret(key, "") else f"known are {', '.join(_CHECKS)}"
            raise _Wrong(f"unknown key {key!r}; {hint}", key)
        try:
            _CHECKS[key](value)
        except _Wrong as error:
            raise _Wrong(f"{key} {error.what}", key, *error.way, item=error.item) from error
    for key in ("name", "title"):
        if key not in table:
            raise _Wrong(f'{key!r} is missing: write {key} = "..."')
    space = Space(
        **{key: cast(Any, tuple(cast(list[Any], it)) if type(it) is list else it) for key, it in table.items()}
    )
    if space.sleep_seconds is not None and space.hardware == FREE:
        raise _Wrong(f"sleep_seconds cannot be chosen on {FREE}, which sleeps after 48 hours", "sleep_seconds")
    if space.target and space.sdk != "docker":
        raise _Wrong('target is a stage of the Dockerfile, so it needs sdk = "docker"', "target")
    for name in sorted(set(space.secrets) & space.variables.keys()):
        raise _Wrong(f"{name} is both a variable and a secret, and everybody can read variables", "variables", name)
    return space


def _line(text: str, *way: str, item: str = "") -> int:
    """Return the line of the statement that defines `way`, or of `item` in it. Without a way: the first bad statement.

    tomllib keeps no positions. But the first lines of a file are valid TOML exactly if the cut splits no statement. So
    the statement that adds a key begins after the last valid cut without it.
    """
    lines = text.split("\n")
    begin = 0
    for end in range(1, len(lines) + 1):
        try:
            found: Any = tomllib.loads("\n".join(lines[:end]))
        except tomllib.TOMLDecodeError:
            continue
        for key in way:
            found = cast(dict[str, Any], found).get(key) if isinstance(found, dict) else None
        if way and found is not None:
            return next((n for n in range(begin, end) if item and item in lines[n]), begin) + 1
        begin = end
    # A valid TOML file lacks something, which could go into its first line.
    return 1 if begin == len(lines) else begin + 1


FieldCheck = Callable[[Any], None]


def _is_secret(name: str, value: str) -> bool:
    by_name = bool(_SECRET_NAME.search(name)) and not _NOT_SECRET_NAME.match(name)
    return by_name or bool(_SECRET_VALUE.search(value))


def _kind(value: object) -> str:
    names = {"str": "a string", "bool": "true or false", "list": "a list", "dict": "a table"}
    return names.get(type(value).__name__, "a number or a date")


def _of(type_: type, what: str, then: FieldCheck = lambda _: None) -> FieldCheck:
    def check(value: Any) -> None:
        if type(value) is not type_:
            raise _Wrong(f"must be {what}, not {_kind(value)}")
        then(value)

    return check


def _one_of(values: tuple[str, ...]) -> FieldCheck:
    def check(value: str) -> None:
        if value not in values:
            raise _Wrong(f"must be one of {', '.join(values)}, not {value!r}")

    return _of(str, "a string", check)


def _repository(value: str) -> None:
    parts = value.split("/")
    if len(parts) > 2 or len(value) > 96 or not all(_NAME.fullmatch(part) for part in parts):
        raise _Wrong(f"must be like 'switchboard' or 'owner/switchboard', not {value!r}")


def _text(value: str) -> None:
    if not value.strip() or not value.isprintable():
        raise _Wrong("must be one line of text")


def _emoji(value: str) -> None:
    if len(value) > 10 or not any(unicodedata.category(c) == "So" for c in value) or any(c.isalnum() for c in value):
        raise _Wrong(f"must be one emoji, not {value!r}")


def _colors(value: list[Any]) -> None:
    if len(value) != 2:
        raise _Wrong('must be two, from and to, as in ["indigo", "blue"]')
    for color in value:
        if color not in COLORS:
            raise _Wrong(f"may be {', '.join(COLORS)}, not {color!r}", item=str(color))


def _sleep(value: int) -> None:
    if value != -1 and value < 60:
        raise _Wrong(f"must be at least 60, or -1 for never, not {value}")


def _stage(value: str) -> None:
    if not re.fullmatch(r"[a-z][a-z0-9._-]*", value):
        raise _Wrong(f"must be the name of a stage of the Dockerfile, not {value!r}")


def _preload(value: list[Any]) -> None:
    for item in value:
        words = item.split(" ") if isinstance(item, str) else []
        # The hub's format: a whole repository, some of its files, or these at one revision.
        if not 1 <= len(words) <= 3 or not all(words) or words[0].count("/") != 1:
            raise _Wrong(
                "must be strings like 'owner/model', 'owner/model file,file' or with a revision", item=str(item)
            )


def _secrets(value: Any) -> None:
    if isinstance(value, dict):
        first = [str(name) for name in cast(dict[str, Any], value)][:1]
        raise _Wrong(
            "is a list of names: the values must not stand in this file, but in the environment of the deploy", *first
        )
    if not isinstance(value, list):
        raise _Wrong(f"must be a list of names, not {_kind(value)}")
    for item in cast(list[Any], value):
        if not isinstance(item, str) or not _VARIABLE.fullmatch(item) or _SECRET_VALUE.search(item):
            raise _Wrong(
                'holds names alone, as in ["OPENAI_API_KEY"], and the environment has their values', item=str(item)
            )


def _variables(value: dict[str, Any]) -> None:
    for name, content in value.items():
        if not _VARIABLE.fullmatch(name):
            raise _Wrong(f"has a name that no environment takes, {name!r}", name)
        if not isinstance(content, str):
            raise _Wrong(f"must be strings, and {name} is {_kind(content)}: put it in quotes", name)
        if _is_secret(name, content):
            raise _Wrong(
                f"can be read by everybody, and {name} looks like a secret: take it out of the file, "
                "put its name into `secrets` and its value into the environment",
                name,
            )


_CHECKS: dict[str, FieldCheck] = {
    "name": _of(str, "a string", _repository),
    "title": _of(str, "a string", _text),
    "sdk": _one_of(("docker", "gradio")),
    "target": _of(str, "a string", _stage),
    "emoji": _of(str, "a string", _emoji),
    "colors": _of(list, "a list", _colors),
    "hardware": _one_of(HARDWARE),
    "sleep_seconds": _of(int, "a whole number", _sleep),
    "private": _of(bool, "true or false"),
    "oauth": _of(bool, "true or false"),
    "storage": _of(str, "a string", _repository),
    "preload": _of(list, "a list", _preload),
    "secrets": _secrets,
    "variables": _of(dict, "a table", _variables),
}
