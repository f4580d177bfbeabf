"""Finds the tags that a server leaves in the text: those around reasoning, and a chat template's end of a message.

Only reasoning at the beginning of an answer is found: an opening tag further on is a word of the answer. pydantic-ai
recognizes a tag only if it is a delta of its own. Therefore the deltas are cut anew here.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing
from typing import Any, cast

from pydantic_ai._parts_manager import ModelResponsePartsManager
from pydantic_ai.messages import ModelResponsePart, ModelResponseStreamEvent, PartStartEvent, TextPart, ThinkingPart
from pydantic_ai.models import StreamedResponse

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
_ENDS = (
    *("<|im_end|>", "<|eot_id|>", "<|endoftext|>", "</s>", "<|end_of_text|>", "<|eom_id|>", "<|end|>", "<|return|>"),
    *("<|eot|>", "<|end_of_turn|>", "<end_of_turn>", "<turn|>", "<eos>", "<|END_OF_TURN_TOKEN|>", "<|endofturn|>"),
    "<\uff5cend\u2581of\u2581sentence\uff5c>",
)
"""Tokens with which chat templates end a message."""
_MOST_HELD = 400
"""Characters of such tokens that are held back until it is known whether text follows."""
_QUOTES = ("`", "'", '"', "\u201c", "\u201e", "\u00ab", "\u2018")
"""Ends of a text before a tag that is quoted."""


def begins_tag(text: str) -> bool:
    """Return True if the text is the beginning of a tag, and more text decides whether it is one."""
    return any(tag.startswith(text) and tag != text for tag in (*_FIRST, *_ENDS))


class ThinkTags:
    """Cuts the text deltas of one answer so that each tag is a delta of its own, and nothing else is one.

    Holds back what can be the beginning of a tag, or the end of the message. `end` returns it if it was neither.

    `begins_inside`: a text without an opening tag begins within reasoning. `is_guess` is True from then on until a
    closing tag confirms it.
    """

    def __init__(self) -> None:
        self.begins_inside = self.is_guess = False
        self._held: str = ""
        self._ending = ""
        """The tokens at the end of the text that end a message if no text follows."""
        self._close = CLOSE
        self._is_beginning, self._is_reasoning, self._skips_lines = True, False, False
        self._said: list[str] = []

    def feed(self, text: str) -> Iterator[str | None]:
        """Yield the deltas to pass on, and None for a closing tag without an opening one: all before it is reasoning.

        Chat templates can put the opening tag into the prompt, so that the answer has only the closing one. The line
        ends after it are dropped.
        """
        text = self._ending + text
        self._ending = ""
        if "<" in text:
            text, self._ending = _without_ending(text)
        if not text:
            return
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
        """Return the text that was held back, because no more text follows directly. Tokens of an end are none."""
        held, self._held, ending, self._ending = self._held, "", self._ending, ""
        rest = ending
        while token := next((one for one in _ENDS if rest.startswith(one)), ""):
            rest = rest.removeprefix(token).lstrip()
        said = "".join(self._said)
        is_closed = ending.startswith("</s>") and said.count("<s>") > said.count("</s>")  # HTML
        return held + (ending if rest or is_closed or (self._said and self._is_word()) else "")


def _without_ending(text: str) -> tuple[str, str]:
    """Return the text without the tokens of an end that it ends with, one of which can be half, and those tokens."""
    begun = max((without_begun(text, token)[1] for token in _ENDS), key=len)
    start = at = len(text) - len(begun)
    while True:
        while at and text[at - 1].isspace():
            at -= 1
        if not (token := next((one for one in _ENDS if text.endswith(one, 0, at)), "")):
            break
        start = at = at - len(token)
    return (text[:start], text[start:]) if len(text) - start <= _MOST_HELD else (text, "")


def without_begun(text: str, tag: str) -> tuple[str, str]:
    """Return the text without the beginning of the tag that it ends with, and that beginning."""
    for length in range(min(len(tag) - 1, len(text)), 0, -1):
        if text.endswith(tag[:length]):
            return text[:-length], tag[:length]
    return text, ""


class TaggedParts(ModelResponsePartsManager):
    """The parts of a response, with the reasoning that its texts have in tags, in any dialect."""

    def __init__(self, stream: StreamedResponse) -> None:
        super().__init__(stream.model_request_parameters)
        self.tags = ThinkTags()
        self._provider = stream.provider_name
        self._text: Any = None
        self._details: dict[str, Any] = {}
        self._thoughts = 0
        """The number of the first parts that a lone closing tag has made reasoning."""

    @property
    def has_thoughts(self) -> bool:
        """True if a lone closing tag has made text reasoning."""
        return self._thoughts > 0

    def handle_text_delta(
        self, *, vendor_part_id: Any, content: str, **more: Any
    ) -> Iterator[ModelResponseStreamEvent]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Yield the events of a text delta, of which a part can be reasoning; see pydantic-ai."""
        if not content:  # only what is known about the text
            yield from self.end_text()
            if isinstance(self.get_part_by_vendor_id(vendor_part_id), TextPart):
                yield from super().handle_text_delta(vendor_part_id=vendor_part_id, content="", **more)
            return
        if vendor_part_id != self._text:
            yield from self.end_text()
        self._text = vendor_part_id
        self._details |= {name: value for name, value in more.items() if value is not None}
        for text in self.tags.feed(content):
            if text is None:
                yield from self._end_thoughts()
            else:
                yield from self._add(text)

    def end_text(self) -> Iterator[ModelResponseStreamEvent]:
        """Yield the events of the text that was held back, because other parts follow, or none."""
        if text := self.tags.end():
            yield from self._add(text)

    def change(self, index: int, part: ModelResponsePart) -> PartStartEvent:
        """Put another part in the place of one, and return the event that says so."""
        self._replace_part(index, part)
        return PartStartEvent(index=index, part=part)

    def _add(self, text: str) -> Iterator[ModelResponseStreamEvent]:
        details: dict[str, Any] = {"provider_name": self._provider, **self._details, "thinking_tags": (OPEN, CLOSE)}
        self._details = {}
        for event in super().handle_text_delta(vendor_part_id=self._text, content=text, **details):
            if isinstance(event, PartStartEvent) and isinstance(event.part, ThinkingPart):
                event.part.id, event.part.provider_name = "content", self._provider
            yield event

    def _end_thoughts(self) -> Iterator[ModelResponseStreamEvent]:
        """Make the text so far reasoning if there was none. The text after it is another part.

        The events replace parts, as pydantic-ai allows.
        """
        parts = self.get_parts()
        if len(parts) > self._thoughts and all(isinstance(part, TextPart) for part in parts[self._thoughts :]):
            self._stop_tracking_vendor_id(self._text)
            for index in range(self._thoughts, len(parts)):
                text = cast(TextPart, parts[index])
                yield self.change(index, ThinkingPart(text.content, id="content", provider_name=self._provider))
            self._thoughts = len(parts)


def find_reasoning(stream: StreamedResponse) -> TaggedParts:
    """Let a stream of a response find reasoning in tags, and drop a leaked end of a message. Call it before any event.

    The library has no place to set what collects the parts.
    """
    parts = TaggedParts(stream)
    setattr(stream, "_parts_manager", parts)  # noqa: B010  # a cached property
    events = stream._get_event_iterator  # pyright: ignore[reportPrivateUsage]

    async def with_rest() -> AsyncIterator[ModelResponseStreamEvent]:
        async with aclosing(cast(AsyncGenerator[ModelResponseStreamEvent], events())) as found:
            async for event in found:
                yield event
        for event in parts.end_text():
            yield event

    setattr(stream, "_get_event_iterator", with_rest)  # noqa: B010
    return parts
