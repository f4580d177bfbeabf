"""Text that PostgreSQL cannot hold, written so that it can.

A text value of PostgreSQL has no NUL character, and UTF-8 has no halves of surrogate pairs. Ids, owners and titles can
have them. `escape` keeps the order of prefixes: one text begins with another one if their escaped forms do.
"""

import re

_UNSUPPORTED = re.compile("[\\\\\0\ud800-\udfff]")
_ESCAPED = re.compile(r"\\(\\|0|u[0-9a-f]{4})")


def escape(text: str) -> str:
    """Return the text as PostgreSQL keeps it."""
    return _UNSUPPORTED.sub(lambda found: _escaped(found[0]), text)


def unescape(text: str) -> str:
    """Return the text that `escape` was given."""
    return _ESCAPED.sub(lambda found: _unescaped(found[1]), text) if "\\" in text else text


def as_jsonb(text: str) -> tuple[str, str | None]:
    """Return JSON text that JSONB takes, and the whole text if that has lost a NUL character, else None."""
    if "\\u0000" not in text:
        return text, None
    return text.replace("\\u0000", "\\ufffd"), text


def like(word: str) -> str:
    """Return the pattern of `LIKE` for texts that contain this word."""
    return "%" + re.sub(r"([%_\\])", r"\\\1", word) + "%"


def _escaped(character: str) -> str:
    return {"\\": "\\\\", "\0": "\\0"}.get(character, f"\\u{ord(character):04x}")


def _unescaped(name: str) -> str:
    return {"\\": "\\", "0": "\0"}.get(name) or chr(int(name[1:], 16))
