"""Numbers at the end of titles. They tell the branches of a chat apart in the list: "Rome", "Rome (2)", "Rome (3)"."""

import re
from collections.abc import Iterable

_NUMBERED = re.compile(r"(?P<name>.*\S) \((?P<number>[2-9]|[1-9]\d)\)", re.DOTALL)


def without_number(title: str) -> str:
    """Return the title without the number at its end."""
    found = _NUMBERED.fullmatch(title)
    return found["name"] if found else title


def next_title(title: str, others: Iterable[str]) -> str:
    """Return the title with the number that follows the highest one of `others` with the same name, and 1 for none."""
    name = without_number(title)
    numbers = [_number_of(other) for other in (title, *others) if without_number(other) == name]
    return f"{name} ({max(numbers) + 1})"


def _number_of(title: str) -> int:
    found = _NUMBERED.fullmatch(title)
    return int(found["number"]) if found else 1
