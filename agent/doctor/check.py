"""What one look at the set-up finds: a value, and three ways to make it."""

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "warning", "fault"]


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the doctor's. A `fault` keeps the page from working, a `warning` does not; both have a `cure`."""

    name: str
    state: State
    said: str
    cure: str = ""


def fine(name: str, said: str) -> Check:
    """Nothing to do."""
    return Check(name, "ok", said)


def warning(name: str, said: str, cure: str) -> Check:
    """The page works, but less well than it could."""
    return Check(name, "warning", said, cure)


def fault(name: str, said: str, cure: str) -> Check:
    """The page does not work, or what was asked for does not."""
    return Check(name, "fault", said, cure)
