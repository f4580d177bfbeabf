"""The content of a deploy as values: the Spacefile, files, front matter and secrets. Uses no network."""

import json
import re
import subprocess
import tomllib
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from huggingface_hub import SpaceHardware

from agent.errors import ConfigError
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
class PlannedSpace:
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


def read_spacefile(path: Path) -> PlannedSpace:
    """Read a Spacefile. Raises `ConfigError`, which names the lines and never quotes a possible secret."""
    file = TomlFile(path, strict=True, hidden=("secrets", "variables"))
    given: Any = file.table.get("secrets")
    if isinstance(given, dict):
        what = (
            "secrets is a list of names: the values must not stand in this file, but in the environment of the deploy"
        )
        raise file.error(what, "secrets", *list(cast(dict[str, Any], given))[:1])
    for key in file.table:
        if is_secret(key) and key not in {one.name for one in fields(PlannedSpace)}:
            raise file.error(
                f"unknown key {key!r}; a secret's name belongs into `secrets`, its value into the environment", key
            )
    space = file.check(PlannedSpace, file.table)
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


@dataclass(slots=True)
class _Stage:
    needs: set[str] = field(default_factory=set[str])
    copies: dict[str, bool] = field(default_factory=dict[str, bool])


def copied(dockerfile: str, target: str | None) -> dict[str, bool]:
    """Map each path copied for `target` (default: the last stage) to True if the copy also sets the file mode.

    Raises `ConfigError` if there is no such stage.
    """
    stages: dict[str, _Stage] = {}
    stage = _Stage()
    for words in _instructions(dockerfile):
        options = [word for word in words[1:] if word.startswith("--")]
        plain = [word for word in words[1:] if not word.startswith("--")]
        match words[0].upper():
            case "FROM":
                stage = _Stage({plain[0]})
                stages[plain[2] if len(plain) == 3 else str(len(stages))] = stage
            case "COPY" | "ADD":
                sources = {option.removeprefix("--from=") for option in options if option.startswith("--from=")}
                stage.needs |= sources
                if not sources:
                    chmod = any(option.startswith("--chmod=") for option in options)
                    stage.copies |= {source.removeprefix("./"): chmod for source in plain[:-1] if "://" not in source}
            case _:
                pass
    if target is not None and target not in stages:
        raise ConfigError(f"The Spacefile wants the target {target!r}, and the Dockerfile has no such stage.")
    found: dict[str, bool] = {}
    pending = [target or next(reversed(stages), "")]
    while pending:
        if (one := stages.pop(pending.pop(), None)) is not None:
            found |= one.copies
            pending += one.needs
    return found


def ending_with(dockerfile: bytes, target: str) -> bytes:
    """Append a stage that equals `target`, because a Space always builds the last stage."""
    return dockerfile.rstrip() + f"\n\nFROM {target}\n".encode()


def _instructions(dockerfile: str) -> Iterator[list[str]]:
    """Yield each instruction as words: continued lines joined, comments removed, ["a", "b"] parsed as JSON."""
    text = re.sub(r"(?m)^[ \t]*#.*\n?", "", dockerfile)
    for line in re.sub(r"\\[ \t]*\n", " ", text).splitlines():
        if words := line.split():
            listed = re.fullmatch(r"\s*(COPY|ADD)((?:\s+--\S+)*)\s+(\[.*\])\s*", line, re.IGNORECASE)
            yield [listed[1], *listed[2].split(), *json.loads(listed[3])] if listed else words


PORT = 7860
PROGRAM, LINK = "100755", "120000"
"""File modes in git's notation."""
MOUNT = "/data"
LIST = ".deployed"
"""A file in the Space that lists the sent paths, one per line. The next deploy removes listed paths that are gone."""

NEEDED = ("app.py", "agent/", "configs/", "requirements-models.txt", "requirements-ocr.txt")
DOCKER = ("Dockerfile", ".dockerignore")
GRADIO = ("requirements.txt",)
NOT_NEEDED = ("agent/deploy/", "tests/", "data/")
# These folders contain no such files. If one gets there by mistake, it is not sent.
NEVER = re.compile(r"(^|/)(\.|__pycache__/|node_modules/)|\.(pem|key|p12|sqlite\w*|log)$")
SHORTEST_SECRET = 8
"""In characters. A shorter value is easy to guess, and hiding it would black out half of the output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeployPlan:
    """A Space and its files: bytes by path. `notes` are sentences about files that are left out."""

    space: PlannedSpace
    files: Mapping[str, bytes]
    notes: tuple[str, ...] = ()


def make_plan(space: PlannedSpace, root: Path) -> DeployPlan:
    """Make the plan for `space` from the git checkout at `root`. Raises `ConfigError`."""
    modes: Mapping[str, bool] = {}
    wanted = NEEDED + GRADIO
    if space.sdk == "docker":
        modes = copied(_text(root, "Dockerfile"), space.target)
        wanted = tuple(dict.fromkeys((*NEEDED, *DOCKER, *modes)))
    tracked = {path: mode for mode, path in _tracked_files(root, wanted) if not path.startswith(NOT_NEEDED)}
    notes: list[str] = []
    files: dict[str, bytes] = {}
    for path, mode in tracked.items():
        # Following a link could send a file from anywhere.
        if (NEVER.search(path) and path not in wanted) or mode == LINK:
            notes.append(f"{path} is left out: no Space needs such a file.")
        elif (root / path).is_file():
            files[path] = (root / path).read_bytes()
        if mode == PROGRAM and not modes.get(path, True):
            raise ConfigError(
                f"The hub forgets that {path} is a program: the Dockerfile must copy it with --chmod=755."
            )
    notes += [f"{path} is left out: git does not know it (git add)." for path in _untracked_files(root, wanted)]
    for path in ("app.py", "Dockerfile" if space.sdk == "docker" else "requirements.txt", *modes):
        if not any(one == path or one.startswith(f"{path.rstrip('/')}/") for one in files):
            raise ConfigError(f'A Space with sdk = "{space.sdk}" needs {path}, which git does not know here (git add).')
    if space.target:
        files["Dockerfile"] = ending_with(files["Dockerfile"], space.target)
    if space.requirements:
        files["requirements.txt"] = _with_requirements(files["requirements.txt"], space)
    if space.hardware == ZERO_GPU:
        notes += _zero_gpu_notes(space)
    files["README.md"] = readme(space, root)
    files[LIST] = "".join(f"{path}\n" for path in sorted(files)).encode()
    return DeployPlan(space=space, files=dict(sorted(files.items())), notes=tuple(notes))


def _with_requirements(locked: bytes, space: PlannedSpace) -> bytes:
    """Return requirements.txt with the packages of the Spacefile. Raises `ConfigError` for one that it pins already."""
    pinned = set(re.findall(r"(?m)^([a-z0-9-]+)==", locked.decode()))
    for wanted in space.requirements:
        if _package(wanted) in pinned:
            raise ConfigError(f"The Spacefile's requirements name {wanted}, and requirements.txt pins that package.")
    return locked + "".join(f"{one}\n" for one in space.requirements).encode()


def _package(requirement: str) -> str:
    return re.split(r"[^A-Za-z0-9._-]", requirement)[0].replace("_", "-").replace(".", "-").lower()


def _zero_gpu_notes(space: PlannedSpace) -> Iterator[str]:
    """Yield what a Space with ZeroGPU lacks for its own model and for its visitors' models."""
    if missing := sorted({"torch", "transformers"} - {_package(one) for one in space.requirements}):
        yield f"No model uses the GPU: that needs {' and '.join(missing)} in requirements. Hosted models answer."
    elif not space.preload:
        yield "Each start downloads the model of the GPU: name it in preload, and another one also in MODEL."
    if not space.oauth:
        yield "Without oauth = true, no visitor can log in to use models of Hugging Face with their own token."


def front_matter(space: PlannedSpace, *, gradio: str, python: str) -> str:
    """Return the front matter of README.md for the hub. `gradio` and `python` are versions.

    Strings, lists and booleans of JSON are valid YAML, so no YAML writer is needed.
    """
    fields: dict[str, object] = {
        "title": space.title,
        "emoji": space.emoji,
        "colorFrom": space.colors[0],
        "colorTo": space.colors[1],
        "sdk": space.sdk,
    }
    if space.sdk == "docker":
        fields["app_port"] = PORT
    else:
        fields |= {"sdk_version": gradio, "python_version": python, "app_file": "app.py"}
    if space.oauth:
        # This lets a visitor that has logged in use the hub's router with their own token.
        fields |= {"hf_oauth": True, "hf_oauth_scopes": ["inference-api"]}
    if space.preload:
        fields["preload_from_hub"] = list(space.preload)
    lines = (f"{name}: {json.dumps(value, ensure_ascii=False)}\n" for name, value in fields.items())
    return f"---\n{''.join(lines)}---\n"


def find_secrets(space: PlannedSpace, env: Mapping[str, str]) -> dict[str, str]:
    """Return the secrets in the environment by name. For a secret X, SPACE_X takes precedence over X.

    HF_TOKEN without the prefix is the token of the deploy. It can change the Space, so the Space never receives it.
    """
    found: dict[str, str] = {}
    for name in space.secrets:
        if value := env.get(f"SPACE_{name}") or ("" if name == "HF_TOKEN" else env.get(name, "")):
            found[name] = value
    return found


def check_secrets(plan: DeployPlan, secrets: Mapping[str, str], token: str) -> None:
    """Check that all secrets are set, and that no file or variable contains one. Raises `ConfigError`."""
    if missing := [_variable(name) for name in plan.space.secrets if name not in secrets]:
        raise ConfigError(f"The Spacefile names secrets that the environment does not have: set {', '.join(missing)}.")
    for name, value in secrets.items():
        if len(value) < SHORTEST_SECRET:
            raise ConfigError(f"{_variable(name)} is shorter than {SHORTEST_SECRET} characters, which is no secret.")
        if value == token:
            raise ConfigError(
                f"{_variable(name)} is the token that deploys. It can change everything in your account: "
                "make one with fewer rights for the Space."
            )
    for name, value in {**secrets, "token": token}.items():
        if place := next((path for path, data in plan.files.items() if value.encode() in data), None):
            raise ConfigError(f"{place} holds the value of {name}: take it out, nothing was sent.")
        if place := next((key for key, text in plan.space.variables.items() if value in text), None):
            raise ConfigError(f"The variable {place} holds the value of {name}: take it out, nothing was sent.")


def redact_secrets(say: Callable[[str], None], *values: str) -> Callable[[str], None]:
    """Wrap `say` to black out all `values` and each line of them, both plain and as JSON strings."""
    parts = {part for value in values for part in (value, *value.splitlines()) if len(part.strip()) >= SHORTEST_SECRET}
    forms = {
        form for part in parts for form in (part, json.dumps(part)[1:-1], json.dumps(part, ensure_ascii=False)[1:-1])
    }
    hidden = re.compile("|".join(re.escape(form) for form in sorted(forms, key=len, reverse=True)) or r"(?!)")
    return lambda line: say(hidden.sub("[hidden]", line))


def describe(plan: DeployPlan, secrets: Mapping[str, str]) -> Iterator[str]:
    """Yield the plan as lines for people. For a secret, tell only its name and whether it is set."""
    space = plan.space
    owner = "" if "/" in space.name else " (of whoever the token belongs to)"
    yield f"Space {space.name}{owner}: created if it is not there, then {'private' if space.private else 'public'}"
    sleep = {None: "when the hub chooses", -1: "never"}.get(space.sleep_seconds, f"after {space.sleep_seconds} s")
    yield f"Hardware: {space.hardware}, sleeping {sleep}"
    storage = f"bucket {space.storage} at {MOUNT}" if space.storage else "none, the disk is lost at each restart"
    yield f"Storage: {storage}"
    yield f"Variables: {', '.join(f'{name}={value}' for name, value in space.variables.items()) or 'none'}"
    for name in space.secrets:
        place = _variable(name)
        yield f"Secret {name}: {f'from {place} in the environment' if name in secrets else f'NOT SET: set {place}'}"
    yield "README.md begins with:"
    yield from (f"  {line}" for line in plan.files["README.md"].decode().split("\n---\n")[0].splitlines()[1:])
    yield f"{len(plan.files)} files, {sum(map(len, plan.files.values()))} bytes:"
    yield from (f"  {len(data):>9}  {path}" for path, data in plan.files.items())
    yield from (f"Note: {note}" for note in plan.notes)


def _variable(name: str) -> str:
    return "SPACE_HF_TOKEN" if name == "HF_TOKEN" else name


def _tracked_files(root: Path, paths: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield the mode and path of each tracked file, in git's order."""
    for line in _git(root, "ls-files", "-z", "--stage", "--", *paths):
        about, path = line.split("\t", 1)
        yield about.split(" ")[0], path


def _untracked_files(root: Path, paths: Iterable[str]) -> list[str]:
    found = _git(root, "ls-files", "-z", "--others", "--exclude-standard", "--", *paths)
    return [path for path in found if not path.startswith(NOT_NEEDED) and not NEVER.search(path)]


def _git(root: Path, *arguments: str) -> list[str]:
    try:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, check=True, timeout=60)
    except OSError as error:
        raise ConfigError("git is missing: it says which files belong to the project.") from error
    except subprocess.CalledProcessError as error:
        reason = error.stderr.decode(errors="replace").strip()
        raise ConfigError(f"git cannot say which files belong to the project: {reason}") from error
    return [path for path in done.stdout.decode().split("\0") if path]


def _text(root: Path, name: str) -> str:
    try:
        return (root / name).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{name} is needed and cannot be read: {error.strerror}.") from error


def readme(space: PlannedSpace, root: Path) -> bytes:
    """Return the README.md of the Space: its front matter, and the opening of the project's README."""
    pinned = re.search(r"(?m)^gradio==([\w.]+)", _text(root, "requirements.txt"))
    project = tomllib.loads(_text(root, "pyproject.toml"))["project"]
    python = re.search(r"(?<!\d)\d+\.\d+", project["requires-python"])
    if not pinned or not python:
        raise ConfigError("requirements.txt must pin gradio, and pyproject.toml say which Python is required.")
    # Only the heading and the first paragraph: the rest is about the checkout, and each edit would rebuild the Space.
    text = re.sub(r"\A---\n.*?\n---\n+", "", _text(root, "README.md"), flags=re.DOTALL)
    opening = "\n\n".join((*text.split("\n\n")[:2], ""))
    return (front_matter(space, gradio=pinned[1], python=python[0]) + opening).encode()
