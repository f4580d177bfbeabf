"""The versions of a question and of its answer, between which a page can choose: pure values."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Versions:
    """The versions of a question or of an answer in their order, and which of them is shown, from 1.

    `ids` are the ids of messages of the visitor: choosing one shows that version.
    """

    ids: tuple[str, ...]
    number: int


@dataclass(frozen=True, slots=True)
class TurnVersions:
    """The versions of a turn's question and of its answer. None if there is only the one that is shown."""

    question: Versions | None = None
    answer: Versions | None = None


ONLY_ONE = TurnVersions()
