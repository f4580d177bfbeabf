"""A small reader of Dockerfiles: the files that a build needs from its folder, and the stage that it ends with."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

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
