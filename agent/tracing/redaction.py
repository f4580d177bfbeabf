"""What may be recorded of a run: text and values without keys or what looks like one, also where a stream cut it.

Media stay as they are.
"""

import json
import os
import re
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from agent.models.catalog import load_catalog
from agent.providers import Connection
from agent.providers.redact import HIDDEN, redact

_MEDIUM = {"data", "media_type", "kind", "identifier"}
_SECRETS = re.compile(
    r"""(?ix)
    (?P<header> (?: authorization | (?:x-)? (?:goog-)? api[-_]?key ) ["']? \s* [:=] \s* ["']? )
        (?: (?: bearer | basic ) \s+ )? [^\s"',&}]+
    | (?P<scheme> (?<![a-z]) (?: bearer | basic ) \s+ ) (?= [\w.~+/-]* [\d=] ) [\w.~+/=-]{6,}
    | (?P<query> [?&] [\w-]* (?: key | token | secret | signature ) = ) [^\s&"']+
    | (?P<login> (?<![a-z]) [a-z]{2,12} :// ) [^\s/@:]+ : [^\s/@]+ (?= @ )
    | (?<![a-z0-9]) (?: sk | pk | rk | hf | gsk | xai | ghp | xoxb ) [-_] [\w.-]{8,}
    | (?<![a-z0-9]) (?: AIza [\w-]{20,} | AKIA [A-Z0-9]{12,} | ya29\. [\w-]{8,} | eyJ [\w-]{8,600}+ \. [\w.-]{8,} )
    """
)
"""What is a key beyond doubt. `redact` hides more, as is right for a vendor's complaint; of prose, code and markdown,
which must be played again as they were, it would take whatever is long or starred."""
_SECRET_NAME = re.compile(r"(?i)(?:^|[-_.])(?:authorization|password|passwd|secret|token|api[-_]?key)$")
_OPENS_A_SECRET = re.compile(
    r"""(?ix) (?: bearer | basic | (?: authorization | api[-_]?key ) ["']? (?: \s*[:=]\s* ["']? )? ) \s* \Z"""
)
_LOOK_BACK = 80
"""Characters before a cut in which a secret can have been announced."""


@dataclass(frozen=True, slots=True)
class Redactor:
    """Takes keys out of what is recorded: what looks like one, and `known` ones, whatever they look like."""

    known: tuple[str, ...] = field(default=(), repr=False)

    @classmethod
    def of(cls, connection: Connection, env: Mapping[str, str] = os.environ) -> "Redactor":
        """The one that knows the connection's key and those of the environment."""
        own = getattr(getattr(connection, "endpoint", None), "api_key", None)
        names = {name for provider in load_catalog().providers.values() for name in provider.key_names}
        keys = {own, *(env.get(name, "").strip() for name in names)}
        return cls(tuple(sorted((key for key in keys if key and len(key) > 3), key=len, reverse=True)))

    def text(self, text: str) -> str:
        """What people, models and tools wrote, without keys."""
        for key in self.known:
            text = text.replace(key, HIDDEN)
        return _SECRETS.sub(_kept, text)

    def complaint(self, text: str) -> str:
        """What a vendor wrote: without anything that may be a key."""
        return redact(self.text(text))

    def value(self, value: Any) -> Any:
        """A value of JSON, all its strings cleaned, also the names in it; the bytes of a picture or a sound stay.

        A string that is JSON itself, as arguments and results are, is cleaned as such.
        """
        if isinstance(value, str):
            return self._string(value)
        if isinstance(value, list | tuple):
            return [self.value(item) for item in cast(list[Any], value)]
        if isinstance(value, dict):
            table = cast(dict[str, Any], value)
            medium = table.get("kind") == "binary" and table.keys() >= _MEDIUM
            return {
                self.text(str(name)): item if medium and name == "data" else self._named(str(name), item)
                for name, item in table.items()
            }
        return value

    def _string(self, text: str) -> str:
        if text.lstrip()[:1] in ("{", "["):
            try:
                inner = json.loads(text)
                if (cleaned := self.value(inner)) != inner:
                    return json.dumps(cleaned, ensure_ascii=False)
            except (ValueError, RecursionError):
                return self.text(text)
            return text
        return self.text(text)

    def _named(self, name: str, value: Any) -> Any:
        return HIDDEN if isinstance(value, str) and value and _SECRET_NAME.search(name) else self.value(value)


def _kept(found: re.Match[str]) -> str:
    return f"{found['header'] or found['scheme'] or found['query'] or found['login'] or ''}{HIDDEN}"


@dataclass(slots=True)
class RecordedPiece:
    """A delta of the text of the stream's part `part`, which came `at` so many seconds."""

    at: float
    part: int
    kind: str
    text: str
    clean: bool = False


class RedactedStream:
    """Cleans deltas of text, each held back until no key can go on in the next; their order stays.

    Deltas without a key come out just as they went in. One with a key comes out changed, joined with its neighbours.
    """

    def __init__(self, cleaner: Redactor) -> None:
        self._cleaner = cleaner
        self._held: deque[RecordedPiece] = deque()
        self._open: dict[int, list[RecordedPiece]] = {}
        """The held pieces of each part that aren't clean yet."""

    def feed(self, piece: RecordedPiece) -> Iterator[RecordedPiece]:
        """What may be written now."""
        open_ones = self._open.setdefault(piece.part, [])
        if open_ones and _may_cut(open_ones, piece.text):
            self._settle(open_ones)
            open_ones.clear()
        open_ones.append(piece)
        self._held.append(piece)
        while self._held and self._held[0].clean:
            yield self._held.popleft()

    def flush(self) -> Iterator[RecordedPiece]:
        """All that is left: the parts have ended."""
        for pieces in self._open.values():
            self._settle(pieces)
        self._open.clear()
        while self._held:
            yield self._held.popleft()

    def _settle(self, pieces: list[RecordedPiece]) -> None:
        joined = "".join(piece.text for piece in pieces)
        cleaned = self._cleaner.text(joined)
        for piece in pieces:
            piece.clean = True
            if cleaned != joined:
                piece.text = ""
        if cleaned != joined:
            pieces[0].text = cleaned


def _may_cut(pieces: list[RecordedPiece], following: str) -> bool:
    """Whether no key reaches over the cut: it is at white space, or beside a letter that no key has."""
    last = pieces[-1].text[-1:]
    if not (last and following) or (_in_a_key(last) and _in_a_key(following[0])):
        return False
    tail = "".join(piece.text for piece in pieces[-_LOOK_BACK:])[-_LOOK_BACK:]
    return not _OPENS_A_SECRET.search(tail + " ")


def _in_a_key(character: str) -> bool:
    return character.isascii() and not character.isspace()
