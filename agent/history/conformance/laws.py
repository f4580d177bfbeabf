"""The laws of a history store: how one is written, and how a store that breaks one is described."""

import reprlib
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, get_args

from agent.errors import AgentError, Conflict, HistoryError, NotFound
from agent.history.conformance.trial import Subject, Trial

Capability = Literal[
    "base",
    "branches",
    "labels",
    "search",
    "retention",
    "events",
    "links",
    "replicas",
    "raw",
    "queries",
    "processes",
    "ledger",
]
CAPABILITIES: tuple[Capability, ...] = get_args(Capability)

_SHOWN_CHARACTERS = 1500


class Broken(AssertionError):
    """A store breaks a law. The text says what was found and what was expected."""


@dataclass(frozen=True, slots=True)
class Law:
    """A promise of every store that offers the needed capabilities.

    `check` raises `Broken`, or any other exception.
    """

    needs: tuple[Capability, ...]
    check: Callable[[Trial], Awaitable[None]]

    @property
    def capability(self) -> Capability:
        """The capability that the law is about, the first of those that it needs."""
        return self.needs[0]

    @property
    def name(self) -> str:
        """The name, which is a sentence."""
        return self.check.__name__

    @property
    def sentence(self) -> str:
        """The promise."""
        return " ".join((self.check.__doc__ or "").partition("\n\n")[0].split())


LAWS: list[Law] = []
"""All laws, in the order of their modules."""


def law(*needs: Capability) -> Callable[[Callable[[Trial], Awaitable[None]]], Callable[[Trial], Awaitable[None]]]:
    """Return the decorator that adds a function to `LAWS`. The first sentence of its docstring is the promise."""

    def add(check: Callable[[Trial], Awaitable[None]]) -> Callable[[Trial], Awaitable[None]]:
        LAWS.append(Law(needs, check))
        return check

    return add


def laws_for(subject: Subject) -> list[Law]:
    """Return the laws whose capabilities the store offers."""
    return [law for law in LAWS if all(map(subject.offers, law.needs))]


def same(found: object, expected: object, what: str) -> None:
    """Raise `Broken` if the two differ. `what` says what was looked at."""
    if found != expected:
        raise Broken(f"{what}: found {_short(found)}, expected {_short(expected)}.")


def holds(condition: object, what: str) -> None:
    """Raise `Broken` with this sentence if the condition is false."""
    if not condition:
        raise Broken(what)


@contextmanager
def refused(kind: type[AgentError], what: str) -> Generator[list[AgentError], None, None]:
    """Raise `Broken` unless the block raises `kind`, which the list then has. A plain `HistoryError` is no subclass."""
    caught: list[AgentError] = []
    try:
        yield caught
    except kind as error:
        if kind is HistoryError and isinstance(error, NotFound | Conflict):
            raise Broken(f"{what}: raised {type(error).__name__} instead of a plain HistoryError.") from error
        caught.append(error)
    except Exception as error:
        raise Broken(f"{what}: raised {error!r} instead of {kind.__name__}.") from error
    else:
        raise Broken(f"{what}: raised nothing instead of {kind.__name__}.")


@contextmanager
def allowed(what: str) -> Generator[None, None, None]:
    """Raise `Broken` if the block raises a `HistoryError`."""
    try:
        yield
    except HistoryError as error:
        raise Broken(f"{what}: raised {error!r}.") from error


def _short(value: object) -> str:
    shown = reprlib.Repr()
    shown.maxstring = shown.maxother = _SHOWN_CHARACTERS
    shown.maxlist = shown.maxtuple = 20
    return shown.repr(value)
