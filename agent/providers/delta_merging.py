"""Merges the text deltas of an event stream before an SDK parses them. Knows the dialects' events, and no network.

An SDK spends far more time on an event than on its text. Therefore consecutive events that differ in nothing but their
text become one event with the joined text. All other bytes stay as they are, in their order, and none are held back.
"""

import json
import re
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, cast

from agent.providers.think_tags import begins_tag

EVENT = re.compile(rb"((?:event:[^\r\n]*\r?\n)?data: ?)(\{[^\r\n]*\})(\r?\n\r?\n)")
"""A whole event that can be merged: at most a name, one line of data, and an empty line."""
_EVENT_END = re.compile(rb"(?:\r\n|\n|\r(?!\n))(?:\r\n|\n|\r)")
_SIMPLE_TEXT = re.compile(rb'(?:[^"\\\x00-\x1f]|\\["\\/bfnrt])+')
"""A text of a delta in JSON, without escaped characters that could be half of one."""
_LONGEST_END = 4
"""Bytes of the longest `_EVENT_END`."""

_CHAT_TEXTS = ("content", "reasoning", "reasoning_content")
_RESPONSES_TEXTS = ("response.output_text.delta", "response.reasoning_summary_text.delta")
_MESSAGES_TEXTS = {"text_delta": "text", "thinking_delta": "thinking"}
_COUNTERS = ("sequence_number", "obfuscation")
"""Fields of an event that differ each time. A merged event has those of its last event."""


@dataclass(slots=True)
class DeltaCount:
    """The number of deltas in the latest event of a stream, for those who count deltas as tokens."""

    pending: int = 1

    def take(self) -> int:
        """Return the number. A second call for the same event returns 1."""
        taken, self.pending = self.pending, 1
        return taken


_count: ContextVar[DeltaCount] = ContextVar("delta_count")


def count_deltas() -> DeltaCount:
    """Return the count of the stream that this task requests next."""
    _count.set(count := DeltaCount())
    return count


def current_count() -> DeltaCount:
    """Return the count for a stream that is requested now."""
    return _count.get(DeltaCount())


_least_pause: ContextVar[float] = ContextVar("least_pause", default=0.0)


@contextmanager
def reading_each(seconds: float) -> Generator[None]:
    """Let the streams of this block, and of the tasks that it starts, pause at least so long between two reads.

    Use it for readers that look no more often: what a read costs hardly depends on how much it finds.
    """
    before = _least_pause.set(seconds)
    try:
        yield
    finally:
        _least_pause.reset(before)


def least_pause() -> float:
    """Return the least seconds between two reads of a stream that is requested now."""
    return _least_pause.get()


@dataclass(frozen=True, slots=True)
class Delta:
    """An event with one text. `rest` is the event without its text, and decides which events can be merged."""

    text: str
    rest: dict[str, Any]
    holder: dict[str, Any]
    """The part of `rest` that the text belongs to, under `name`."""
    name: str
    counters: dict[str, Any]

    def dump(self, text: str) -> bytes:
        """Return the event as JSON, with another text."""
        self.holder[self.name] = text
        data = json.dumps({**self.rest, **self.counters}, separators=(",", ":")).encode()
        del self.holder[self.name]
        return data


def read_delta(data: bytes) -> Delta | None:
    """Parse the data of an event. Return None if the event must stay as it is.

    Half a surrogate pair stays alone, because it is no token.
    """
    try:
        event = json.loads(data.decode())
        if (place := _text_place(event)) is None:
            return None
        holder, name = place
        text = holder.pop(name)
        text.encode()  # refuses half a surrogate pair
    except (ValueError, RecursionError):
        return None
    return Delta(text, event, holder, name, {name: event.pop(name) for name in _COUNTERS if name in event})


@dataclass(frozen=True, slots=True)
class Template:
    """The JSON of a delta, before and after its text. Most deltas of a stream differ in nothing else, byte for byte."""

    before: bytes
    after: bytes
    delta: Delta

    @classmethod
    def of(cls, data: bytes, delta: Delta) -> "Template | None":
        """Return the template of this delta, if it can be told where its text is."""
        text = json.dumps(delta.text, ensure_ascii=False).encode()
        if delta.counters or data.count(text) != 1:
            return None
        before, _, after = data.partition(text)
        other = read_delta(before + b'"other"' + after)
        if other is None or (other.text, other.name, other.rest) != ("other", delta.name, delta.rest):
            return None
        return cls(before + b'"', b'"' + after, other)

    def read(self, data: bytes) -> Delta | None:
        """Return what `read_delta` returns, or None if the data differs in more than a simple text."""
        if not (data.startswith(self.before) and data.endswith(self.after)):
            return None
        text = data[len(self.before) : len(data) - len(self.after)]
        if not _SIMPLE_TEXT.fullmatch(text):
            return None
        try:
            return Delta(json.loads(f'"{text.decode()}"'), self.delta.rest, self.delta.holder, self.delta.name, {})
        except ValueError:
            return None


def _text_place(event: Any) -> tuple[dict[str, Any], str] | None:
    """Return the object and the name that hold the event's text, if there is one and nothing else of substance."""
    match event:
        case {"choices": [{"delta": {**delta}} as choice]}:
            names = [name for name, value in delta.items() if value and name != "role"]
            if len(names) != 1 or names[0] not in _CHAT_TEXTS or choice.get("finish_reason"):
                return None
            place, parts = (choice["delta"], names[0]), ((event, "choices"), (choice, "delta"))
        case {"type": kind, "delta": str()} if kind in _RESPONSES_TEXTS:
            place, parts = (event, "delta"), ((event, "delta"),)
        case {"type": "content_block_delta", "delta": {"type": str(kind), **more} as delta} if kind in _MESSAGES_TEXTS:
            if [*more] != [_MESSAGES_TEXTS[kind]]:
                return None
            place, parts = (delta, _MESSAGES_TEXTS[kind]), ((event, "delta"),)
        case _:
            return None
    holder, name = cast(dict[str, Any], place[0]), place[1]
    is_text = isinstance(holder[name], str) and holder[name]
    return (holder, name) if is_text and all(_is_flat(*part) for part in parts) else None


def _is_flat(part: dict[str, Any], inner: str) -> bool:
    """Return True if only `inner` has contents. Lists and objects (usage, log probabilities) add up when repeated."""
    return not any(value and isinstance(value, dict | list) for name, value in part.items() if name != inner)


class DeltaMerger:
    """Merges the events of one stream, batch by batch. Remembers whether a batch has ended within an event.

    `has_text` is True when a text has come.
    """

    def __init__(self) -> None:
        self.has_text = False
        self._template: Template | None = None
        self._tail = b""
        """The last bytes of an event that has not ended; empty between events."""
        self._tag = ""
        """The beginning of a tag that the last text has ended with."""

    def feed(self, batch: bytes) -> Iterator[tuple[bytes, int]]:
        """Yield the batch in pieces, each with the number of deltas that its last event stands for."""
        start, at = 0, self._rest_of_event(batch)
        run: list[Delta] = []
        frame, run_start = (b"", b""), at
        while at < len(batch):
            found = EVENT.match(batch, at)
            delta = self._read(found[2]) if found else None
            self.has_text = self.has_text or delta is not None
            if delta and self._has_tag(delta.text):
                delta = None
            if found and delta and run and (found[1], found[3]) == frame and _joins(run[-1], delta):
                run.append(delta)
                if self._template is None or delta.rest is not self._template.delta.rest:
                    self._template = Template.of(found[2], delta)
            else:
                if len(run) > 1:
                    yield from _pieces(batch[start:run_start], run, frame)
                    start = at
                # White space before text is held back and not counted, so an event of white space begins no run.
                run = [delta] if delta and not delta.text.isspace() else []
                frame, run_start = (found[1], found[3]) if found else frame, at
            at = found.end() if found else self._event_end(batch, at)
        if len(run) > 1:
            yield from _pieces(batch[start:run_start], run, frame)
        elif start < len(batch):
            yield batch[start:], 1

    def _has_tag(self, text: str) -> bool:
        """Return True if a tag around reasoning can begin or end in the text.

        Such a text stays alone: it is held back, or becomes several texts, so its tokens could not be counted.
        """
        if not self._tag and "<" not in text:
            return False
        tail = (self._tag + text).rpartition("<")[2]
        self._tag = f"<{tail}" if begins_tag(f"<{tail}") else ""
        return True

    def _read(self, data: bytes) -> Delta | None:
        return (self._template.read(data) if self._template else None) or read_delta(data)

    def _rest_of_event(self, batch: bytes) -> int:
        """Return where the event ends that an earlier batch has begun."""
        if not self._tail:
            return 0
        tail, self._tail = self._tail, b""
        return max(0, self._event_end(tail + batch, 0) - len(tail))

    def _event_end(self, batch: bytes, at: int) -> int:
        if found := _EVENT_END.search(batch, at):
            return found.end()
        self._tail = batch[at:][1 - _LONGEST_END :]
        return len(batch)


def _joins(before: Delta, after: Delta) -> bool:
    if before.rest is after.rest:  # of the same template
        return True
    return before.name == after.name and before.counters.keys() == after.counters.keys() and before.rest == after.rest


def _pieces(before: bytes, run: list[Delta], frame: tuple[bytes, bytes]) -> Iterator[tuple[bytes, int]]:
    if before:
        yield before, 1
    data = run[-1].dump("".join(delta.text for delta in run))
    yield frame[0] + data + frame[1], len(run)
