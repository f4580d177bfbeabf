"""Reads the Dockerfile: stages, instructions, and the files that .dockerignore lets into the build. Runs nothing.

It knows only what this project's Dockerfile uses, and refuses everything else, so that it ignores no line.
"""

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path

KNOWN = ("RUN", "COPY", "ENV", "ARG", "WORKDIR", "USER", "VOLUME", "EXPOSE", "HEALTHCHECK", "CMD")


@dataclass(frozen=True)
class Step:
    """An instruction: its name, its flags (`--from=page` is `{"from": "page"}`) and the rest of the line."""

    name: str
    flags: Mapping[str, str]
    rest: str

    @property
    def words(self) -> list[str]:
        """The rest as a command line: in exec form as written, else split as a shell does."""
        return json.loads(self.rest) if self.rest.startswith("[") else shlex.split(self.rest)


@dataclass
class Stage:
    """A build stage, which begins with FROM."""

    name: str
    parent: str
    steps: list[Step] = field(default_factory=list[Step])


def stages(text: str) -> dict[str, Stage]:
    """Return the stages by name, in the order of the file. Raises `ValueError` for unknown syntax."""
    found: dict[str, Stage] = {}
    lines = (line for line in text.splitlines() if not line.lstrip().startswith("#"))
    for line in "\n".join(lines).replace("\\\n", "").splitlines():
        if not line.strip():
            continue
        name, _, rest = line.strip().partition(" ")
        if name == "FROM":
            parent, name = re.fullmatch(r"(\S+) AS (\S+)", rest).groups()
            found[name] = stage = Stage(name, parent)
            continue
        if name not in KNOWN:
            raise ValueError(f"the instruction {name} is not known here: {line!r}")
        flags: dict[str, str] = {}
        while flag := re.match(r"--(\S+?)=(\S+)\s+", rest):
            flags[flag[1]] = flag[2]
            rest = rest[flag.end() :]
        stage.steps.append(Step(name, flags, rest.strip()))
    return found


def needed(all_stages: Mapping[str, Stage], target: str) -> list[Stage]:
    """Return the stages that a build of `target` needs, in the order of the file."""
    wanted, left = set[str](), [target]
    while left:
        name = left.pop()
        if (stage := all_stages.get(name)) and name not in wanted:
            wanted.add(name)
            left += [stage.parent, *(step.flags["from"] for step in stage.steps if "from" in step.flags)]
    return [stage for stage in all_stages.values() if stage.name in wanted]


def settings(step: Step, before: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that an ENV sets. Their values can refer to `before`."""
    pairs = (word.split("=", 1) for word in step.words)
    return {name: re.sub(r"\$\{?(\w+)\}?", lambda found: before.get(found[1], ""), value) for name, value in pairs}


def context(root: Path) -> Iterator[Path]:
    """Yield the files that a build of the folder `root` can read, relative to it."""
    rules = [line for line in (root / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]
    tops = {rule[1:].split("/")[0] for rule in rules if rule.startswith("!")}
    for top in sorted(tops):  # everything else is excluded, so large folders need not be walked
        for path in [root / top] if (root / top).is_file() else sorted((root / top).rglob("*")):
            relative = path.relative_to(root)
            if path.is_file() and not _ignored(relative, rules):
                yield relative


def _ignored(path: Path, rules: list[str]) -> bool:
    names = [str(path), *(str(parent) for parent in path.parents if parent.name)]
    ignored = False
    for rule in rules:
        pattern = rule.removeprefix("!")
        # The last matching rule wins. A rule that matches a folder applies to everything in it.
        if (
            any(fnmatch(Path(name).name, pattern[3:]) for name in names)
            if pattern.startswith("**/")
            else any(fnmatch(name, pattern) and name.count("/") == pattern.count("/") for name in names)
        ):
            ignored = not rule.startswith("!")
    return ignored
