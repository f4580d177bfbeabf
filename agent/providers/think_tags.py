"""Finds the tags around reasoning that a server without a reasoning parser leaves in the text.

Only reasoning at the beginning of an answer is found: a tag further on is a word of the answer. pydantic-ai recognizes
a tag only if it is a delta of its own. Therefore the deltas are cut anew here.
"""

from collections.abc import Iterator

OPEN, CLOSE = "<think>", "</think>"


def begins_tag(text: str) -> bool:
    """Return True if the text is the beginning of a tag, and more text decides whether it is one."""
    return any(tag.startswith(text) and tag != text for tag in (OPEN, CLOSE))


class ThinkTags:
    """Cuts the text deltas of one answer so that each tag is a delta of its own, and nothing else is one.

    Holds back what can be the beginning of a tag. `end` returns it if it was none.
    """

    def __init__(self) -> None:
        self._held = ""
        self._is_beginning, self._is_reasoning = True, False

    def feed(self, text: str) -> Iterator[str]:
        """Yield the deltas to pass on."""
        text, self._held = self._held + text, ""
        while text:
            if self._is_reasoning:
                inside, tag, text = text.partition(CLOSE)
                if tag:
                    self._is_reasoning = False
                else:
                    inside, self._held = _without_begun(inside, CLOSE)
                yield from filter(None, (inside, tag))
            elif self._is_beginning:
                rest = text.lstrip()
                if rest.startswith(OPEN):
                    self._is_reasoning = True
                    yield from filter(None, (text[: len(text) - len(rest)], OPEN))
                    text = rest.removeprefix(OPEN)
                elif OPEN.startswith(rest):
                    yield from filter(None, (text[: len(text) - len(rest)],))
                    text, self._held = "", rest
                else:
                    self._is_beginning = False
            else:
                yield from (OPEN[:1], OPEN[1:]) if text == OPEN else (text,)
                text = ""

    def end(self) -> str:
        """Return the text that was held back, because no more text follows directly."""
        held, self._held = self._held, ""
        return held


def _without_begun(text: str, tag: str) -> tuple[str, str]:
    """Return the text without the beginning of the tag that it ends with, and that beginning."""
    for length in range(min(len(tag) - 1, len(text)), 0, -1):
        if text.endswith(tag[:length]):
            return text[:-length], tag[:length]
    return text, ""
