"""What one look at the set-up finds: a value, and three ways to make it."""

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "warning", "fault"]


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the doctor's. A `fault` keeps the page from working, a `warning` does not; both have a `fix`."""

    name: str
    state: State
    message: str
    fix: str = ""


def ok(name: str, message: str) -> Check:
    """Nothing to do."""
    return Check(name, "ok", message)


def warning(name: str, message: str, fix: str) -> Check:
    """The page works, but less well than it could."""
    return Check(name, "warning", message, fix)


def fault(name: str, message: str, fix: str) -> Check:
    """The page does not work, or what was asked for does not."""
    return Check(name, "fault", message, fix)
