"""Finds the tags around reasoning that a server without a reasoning parser leaves in the text.

Only reasoning at the beginning of an answer is found: an opening tag further on is a word of the answer. pydantic-ai
recognizes a tag only if it is a delta of its own. Therefore the deltas are cut anew here.
"""

from collections.abc import Iterator

OPEN, CLOSE = "<think>", "</think>"
_FINAL = "<|channel|>final<|message|>"
PAIRS = {
    OPEN: CLOSE,
    "<thinking>": "</thinking>",
    "<thought>": "</thought>",
    "<seed:think>": "</seed:think>",
    "[THINK]": "[/THINK]",
    "\u25c1think\u25b7": "\u25c1/think\u25b7",
    "<|channel|>analysis<|message|>": f"<|end|><|start|>assistant{_FINAL}",
}
"""The tags of models, each with its end. The deltas have `OPEN` and `CLOSE` in their place."""
_FIRST = (*PAIRS, CLOSE, _FINAL)
"""The tags that can stand at the beginning of an answer."""
_QUOTES = ("`", "'", '"', "\u201c", "\u201e", "\u00ab", "\u2018")
"""Ends of a text before a tag that is quoted."""


def begins_tag(text: str) -> bool:
    """Return True if the text is the beginning of a tag, and more text decides whether it is one."""
    return any(tag.startswith(text) and tag != text for tag in _FIRST)


class ThinkTags:
    """Cuts the text deltas of one answer so that each tag is a delta of its own, and nothing else is one.

    Holds back what can be the beginning of a tag. `end` returns it if it was none.

    `begins_inside`: a text without an opening tag begins within reasoning. `is_guess` is True from then on until a
    closing tag confirms it.
    """

    def __init__(self) -> None:
        self.begins_inside = self.is_guess = False
        self._held: str = ""
        self._close = CLOSE
        self._is_beginning, self._is_reasoning, self._skips_lines = True, False, False
        self._said: list[str] = []

    def feed(self, text: str) -> Iterator[str | None]:
        """Yield the deltas to pass on, and None for a closing tag without an opening one: all before it is reasoning.

        Chat templates can put the opening tag into the prompt, so that the answer has only the closing one. The line
        ends after it are dropped.
        """
        text, self._held = self._held + text, ""
        while text := text.lstrip("\r\n") if self._skips_lines else text:
            self._skips_lines = False
            if self._is_reasoning:
                inside, tag, text = text.partition(self._close)
                if tag:
                    self._is_reasoning = self.is_guess = False
                else:
                    inside, self._held = without_begun(inside, self._close)
                yield from filter(None, (inside, tag and CLOSE))
            elif self._is_beginning:
                rest = text.lstrip()
                space = text[: len(text) - len(rest)]
                if tag := next((one for one in _FIRST if rest.startswith(one)), ""):
                    self._is_reasoning, self._close = tag in PAIRS, PAIRS.get(tag, CLOSE)
                    self._skips_lines, self.begins_inside = not self._is_reasoning, False
                    yield from filter(None, (space,))
                    yield OPEN if self._is_reasoning else None
                    text = rest.removeprefix(tag)
                elif not rest or begins_tag(rest):
                    yield from filter(None, (space,))
                    text, self._held = "", rest
                elif self.begins_inside:
                    self.begins_inside, self._is_reasoning, self.is_guess = False, True, True
                    yield from (*filter(None, (space,)), OPEN)
                    text = rest
                else:
                    self._is_beginning = False
            else:
                said, text, is_end = self._next_text(text)
                yield from (said[:1], said[1:]) if said in (OPEN, CLOSE) else filter(None, (said,))
                if is_end:
                    self._skips_lines = True
                    yield None

    def _next_text(self, text: str) -> tuple[str, str, bool]:
        """Return the text to pass on, the rest, and True if a closing tag that ends reasoning was between them."""
        said, tag, rest = text.partition(CLOSE) if "<" in text else (text, "", "")
        if not tag and "<" in text:
            said, self._held = without_begun(said, CLOSE)
        self._said.append(said)
        if tag and not self._is_word():
            self._is_beginning = True
            return said, rest, True
        self._said.append(tag)
        return said + tag, rest, False

    def _is_word(self) -> bool:
        """Return True if a closing tag here is a word of the text: quoted, in code, or after a named opening tag."""
        said = "".join(self._said)
        return said.endswith(_QUOTES) or said.count("```") % 2 == 1 or said.count(OPEN) > said.count(CLOSE)

    def end(self) -> str:
        """Return the text that was held back, because no more text follows directly."""
        held, self._held = self._held, ""
        return held


def without_begun(text: str, tag: str) -> tuple[str, str]:
    """Return the text without the beginning of the tag that it ends with, and that beginning."""
    for length in range(min(len(tag) - 1, len(text)), 0, -1):
        if text.endswith(tag[:length]):
            return text[:-length], tag[:length]
    return text, ""
