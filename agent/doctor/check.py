"""The result of one check, with a constructor for each state."""

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "warning", "fault"]


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the doctor. A `fault` keeps the page from working, a `warning` does not. Both have a `fix`."""

    name: str
    state: State
    message: str
    fix: str = ""


def ok(name: str, message: str) -> Check:
    """Return a check that needs no fix."""
    return Check(name, "ok", message)


def warning(name: str, message: str, fix: str) -> Check:
    """Return a check for a page that works, but less well than it could."""
    return Check(name, "warning", message, fix)


def fault(name: str, message: str, fix: str) -> Check:
    """Return a check for a page, or a requested feature, that does not work."""
    return Check(name, "fault", message, fix)
