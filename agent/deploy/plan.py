"""The content of a deploy as values: files, front matter and secrets. Uses no network."""

import json
import re
import subprocess
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from agent.deploy.spacefile import ZERO_GPU, Space
from agent.errors import ConfigError


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

    space: Space
    files: Mapping[str, bytes]
    notes: tuple[str, ...] = ()


def make_plan(space: Space, root: Path) -> DeployPlan:
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


def _with_requirements(locked: bytes, space: Space) -> bytes:
    """Return requirements.txt with the packages of the Spacefile. Raises `ConfigError` for one that it pins already."""
    pinned = set(re.findall(r"(?m)^([a-z0-9-]+)==", locked.decode()))
    for wanted in space.requirements:
        if _package(wanted) in pinned:
            raise ConfigError(f"The Spacefile's requirements name {wanted}, and requirements.txt pins that package.")
    return locked + "".join(f"{one}\n" for one in space.requirements).encode()


def _package(requirement: str) -> str:
    return re.split(r"[^A-Za-z0-9._-]", requirement)[0].replace("_", "-").replace(".", "-").lower()


def _zero_gpu_notes(space: Space) -> Iterator[str]:
    """Yield what a Space with ZeroGPU lacks for its own model and for its visitors' models."""
    if missing := sorted({"torch", "transformers"} - {_package(one) for one in space.requirements}):
        yield f"No model uses the GPU: that needs {' and '.join(missing)} in requirements. Hosted models answer."
    elif not space.preload:
        yield "Each start downloads the model of the GPU: name it in preload, and another one also in MODEL."
    if not space.oauth:
        yield "Without oauth = true, no visitor can log in to use models of Hugging Face with their own token."


def front_matter(space: Space, *, gradio: str, python: str) -> str:
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


def find_secrets(space: Space, env: Mapping[str, str]) -> dict[str, str]:
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


def readme(space: Space, root: Path) -> bytes:
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
