"""Redaction of recorded text and values: removes keys and text that looks like one, also across chunks of a stream.

Media are not changed.
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
"""Matches text that is certainly a key, and leaves prose, code and markdown unchanged for the replay.

`redact` also hides long and starred words, which is right only for a vendor's error message.
"""
_SECRET_NAME = re.compile(r"(?i)(?:^|[-_.])(?:authorization|password|passwd|secret|token|api[-_]?key)$")
_OPENS_A_SECRET = re.compile(
    r"""(?ix) (?: bearer | basic | (?: authorization | api[-_]?key ) ["']? (?: \s*[:=]\s* ["']? )? ) \s* \Z"""
)
_LOOK_BACK = 80
"""Characters before a cut that can announce a secret."""


@dataclass(frozen=True, slots=True)
class Redactor:
    """Removes keys from a record: text that looks like a key, and `known` keys of any form."""

    known: tuple[str, ...] = field(default=(), repr=False)

    @classmethod
    def of(cls, connection: Connection, env: Mapping[str, str] = os.environ) -> "Redactor":
        """Return a redactor that knows the connection's key and the keys in the environment."""
        own = getattr(getattr(connection, "endpoint", None), "api_key", None)
        names = {name for provider in load_catalog().providers.values() for name in provider.key_names}
        keys = {own, *(env.get(name, "").strip() for name in names)}
        return cls(tuple(sorted((key for key in keys if key and len(key) > 3), key=len, reverse=True)))

    def text(self, text: str) -> str:
        """Return a text of people, models or tools without keys."""
        for key in self.known:
            text = text.replace(key, HIDDEN)
        return _SECRETS.sub(_hide, text)

    def complaint(self, text: str) -> str:
        """Return a vendor's text without anything that can be a key."""
        return redact(self.text(text))

    def value(self, value: Any) -> Any:
        """Return a JSON value with all strings and names redacted. The bytes of images and audio are not changed.

        A string that contains JSON, such as arguments and results, is redacted as JSON.
        """
        if isinstance(value, str):
            return self._string(value)
        if isinstance(value, list | tuple):
            return [self.value(item) for item in cast(list[Any], value)]
        if isinstance(value, dict):
            table = cast(dict[str, Any], value)
            medium = table.get("kind") == "binary" and table.keys() >= _MEDIUM
            return {
                self.text(str(name)): item if medium and name == "data" else self._field_value(str(name), item)
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

    def _field_value(self, name: str, value: Any) -> Any:
        return HIDDEN if isinstance(value, str) and value and _SECRET_NAME.search(name) else self.value(value)


def _hide(found: re.Match[str]) -> str:
    return f"{found['header'] or found['scheme'] or found['query'] or found['login'] or ''}{HIDDEN}"


@dataclass(slots=True)
class RecordedPiece:
    """A text delta of part number `part` of the stream, received `at` seconds after the run began."""

    at: float
    part: int
    kind: str
    text: str
    clean: bool = False


class RedactedStream:
    """Redacts text deltas. Holds each back until no key can continue in the next one, and keeps their order.

    Deltas without a key are not changed. A delta with a key is changed and joined with its neighbours.
    """

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._held: deque[RecordedPiece] = deque()
        self._open: dict[int, list[RecordedPiece]] = {}
        """The held pieces of each part that are not redacted yet."""

    def feed(self, piece: RecordedPiece) -> Iterator[RecordedPiece]:
        """Add a delta and yield those that can be written now."""
        open_ones = self._open.setdefault(piece.part, [])
        if open_ones and _may_cut(open_ones, piece.text):
            self._settle(open_ones)
            open_ones.clear()
        open_ones.append(piece)
        self._held.append(piece)
        while self._held and self._held[0].clean:
            yield self._held.popleft()

    def flush(self) -> Iterator[RecordedPiece]:
        """Yield the rest, because the parts have ended."""
        for pieces in self._open.values():
            self._settle(pieces)
        self._open.clear()
        while self._held:
            yield self._held.popleft()

    def _settle(self, pieces: list[RecordedPiece]) -> None:
        joined = "".join(piece.text for piece in pieces)
        cleaned = self._redactor.text(joined)
        for piece in pieces:
            piece.clean = True
            if cleaned != joined:
                piece.text = ""
        if cleaned != joined:
            pieces[0].text = cleaned


def _may_cut(pieces: list[RecordedPiece], following: str) -> bool:
    """Return True if no key can cross the cut: it is at white space, or beside a character that no key has."""
    last = pieces[-1].text[-1:]
    if not (last and following) or (_in_a_key(last) and _in_a_key(following[0])):
        return False
    tail = "".join(piece.text for piece in pieces[-_LOOK_BACK:])[-_LOOK_BACK:]
    return not _OPENS_A_SECRET.search(tail + " ")


def _in_a_key(character: str) -> bool:
    return character.isascii() and not character.isspace()
