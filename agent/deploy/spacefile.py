"""The Spacefile: the wanted state of a Space, as a small TOML file and as a frozen value. Knows nothing of the hub."""

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from huggingface_hub import SpaceHardware

from agent.system.toml_file import CLOSED, TomlFile, is_secret, must

COLORS = ("red", "yellow", "green", "blue", "indigo", "purple", "pink", "gray")
HARDWARE = tuple(one.value for one in SpaceHardware)
FREE = "cpu-basic"
ZERO_GPU = "zero-a10g"


def _is_emoji(text: str) -> bool:
    return len(text) <= 10 and any(unicodedata.category(c) == "So" for c in text) and not any(map(str.isalnum, text))


_VARIABLE = "[A-Za-z_][A-Za-z0-9_]*"
_NAME = "[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
Repository = Annotated[
    str, must("be like 'switchboard' or 'owner/switchboard'", rf"(?=.{{1,96}}\Z){_NAME}(?:/{_NAME})?")
]
Color = Annotated[str, must(f"be one of {', '.join(COLORS)}", COLORS.__contains__)]
Hardware = Annotated[str, must(f"be one of {', '.join(HARDWARE)}", HARDWARE.__contains__)]
Variable = Annotated[str, must("be a name that an environment takes", _VARIABLE)]
Secret = Annotated[
    str,
    must(
        'be a name alone, as in ["OPENAI_API_KEY"]: the environment has its value',
        lambda it: re.fullmatch(_VARIABLE, it) and not is_secret("", it),
    ),
]
# The hub's format: a whole repository, some of its files, or these at one revision.
Preload = Annotated[
    str, must("be like 'owner/model', 'owner/model file,file' or with a revision", "[^ /]*/[^ /]*(?: [^ ]+){0,2}")
]
Requirement = Annotated[
    str,
    must(
        "be like 'torch' or 'torch==2.11.0', without options and addresses",
        rf"{_NAME}(?:\[[a-z0-9,_-]+\])?(?:[=<>!~]=?[0-9a-z.,*+=<>!~]+)?",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """The Space that a Spacefile describes.

    `name` can omit the owner, which is then the token's. `target` is the stage of the Dockerfile to run.
    `sleep_seconds` is the time without visitors before the Space sleeps: -1 for never, None for the hub's default.
    `private` applies at creation. `storage` names a bucket mounted at /data. `secrets` has only names. `requirements`
    are packages that a Gradio Space gets beside those of requirements.txt.
    """

    __pydantic_config__ = CLOSED

    name: Repository
    title: Annotated[str, must("be one line of text", lambda it: it.strip() and it.isprintable())]
    sdk: Literal["docker", "gradio"] = "docker"
    target: Annotated[str, must("be the name of a stage of the Dockerfile", "[a-z][a-z0-9._-]*")] | None = None
    emoji: Annotated[str, must("be one emoji", _is_emoji)] = "💬"
    colors: Annotated[
        tuple[Color, ...], must('be two, from and to, as in ["indigo", "blue"]', lambda it: len(it) == 2)
    ] = ("indigo", "blue")
    hardware: Hardware = FREE
    sleep_seconds: Annotated[int, must("be at least 60, or -1 for never", lambda it: it == -1 or it >= 60)] | None = (
        None
    )
    private: bool = True
    oauth: bool = False
    storage: Repository | None = None
    preload: tuple[Preload, ...] = ()
    requirements: tuple[Requirement, ...] = ()
    secrets: tuple[Secret, ...] = ()
    variables: Mapping[Variable, str] = field(default_factory=dict[str, str])


def read_spacefile(path: Path) -> Space:
    """Read a Spacefile. Raises `ConfigError`, which names the lines and never quotes a possible secret."""
    file = TomlFile(path, strict=True, hidden=("secrets", "variables"))
    given: Any = file.table.get("secrets")
    if isinstance(given, dict):
        what = (
            "secrets is a list of names: the values must not stand in this file, but in the environment of the deploy"
        )
        raise file.error(what, "secrets", *list(cast(dict[str, Any], given))[:1])
    for key in file.table:
        if is_secret(key) and key not in {one.name for one in fields(Space)}:
            raise file.error(
                f"unknown key {key!r}; a secret's name belongs into `secrets`, its value into the environment", key
            )
    space = file.check(Space, file.table)
    for name, value in space.variables.items():
        if is_secret(name, value):
            what = f"variables can be read by everybody, and {name} looks like a secret: take it out of the file, "
            raise file.error(f"{what}put its name into `secrets` and its value into the environment", "variables", name)
    if space.sleep_seconds is not None and space.hardware == FREE:
        raise file.error(f"sleep_seconds cannot be chosen on {FREE}, which sleeps after 48 hours", "sleep_seconds")
    if space.target and space.sdk != "docker":
        raise file.error('target is a stage of the Dockerfile, so it needs sdk = "docker"', "target")
    if space.hardware == ZERO_GPU and space.sdk != "gradio":
        raise file.error(f'{ZERO_GPU} lends its GPU to Gradio Spaces only, so it needs sdk = "gradio"', "hardware")
    if space.requirements and space.sdk != "gradio":
        raise file.error('requirements are for sdk = "gradio"; a Dockerfile has its own', "requirements")
    for name in sorted(set(space.secrets) & space.variables.keys()):
        raise file.error(f"{name} is both a variable and a secret, and everybody can read variables", "variables", name)
    return space
