"""Numbers at the end of titles. They tell the copies of a chat apart in the list: "Rome", "Rome (2)", "Rome (3)"."""

import re
from collections.abc import Collection, Iterable

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


class NumberedTitles:
    """The titles of chats that there were before an import. Owns the highest number of each name."""

    def __init__(self, titles: Collection[str]) -> None:
        self._taken, self._highest = frozenset(titles), dict[str, int]()
        for title in titles:
            self._count(title)

    def title_for(self, title: str) -> str:
        """Return the title of an imported chat: with the next number if there was a chat with this one."""
        if title in self._taken:
            name = without_number(title)
            title = f"{name} ({self._highest[name] + 1})"
        self._count(title)
        return title

    def _count(self, title: str) -> None:
        name = without_number(title)
        self._highest[name] = max(_number_of(title), self._highest.get(name, 1))


def _number_of(title: str) -> int:
    found = _NUMBERED.fullmatch(title)
    return int(found["number"]) if found else 1
