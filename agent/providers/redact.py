"""Removes keys, anything that looks like a key, and the queries of URLs from text that a vendor sent.

Each step takes time linear in the text: no pattern looks ahead further than a bound, or begins twice in one word.
"""

import re

HIDDEN = "…"

_STARRED = re.compile(r"\S+")
"""Words. A word with three stars is a key that the vendor has masked itself, except for its ends."""
_URL = re.compile(r"""(?i)(https?://[^\s?"'<>]*)(\?[^\s"'<>]+)?""")
_SECRETS = re.compile(
    r"""(?ix)
    (?: bearer | basic ) \s+ [^\s"',]+
    | (?P<header> (?: authorization | (?:x-)? (?:goog-)? api[-_]key ) ["']? \s* [:=] \s* ["']? ) [^\s"',&}]+
    | (?P<query> [?&] [\w-]* (?: key | token | secret ) = ) [^\s&"']+
    | (?<![a-z0-9]) (?: sk | pk | rk | hf | gsk | xai | ghp ) [-_] [\w*.-]{3,}
    | (?<![a-z0-9]) (?: api | key | token ) [-_] (?= [\w*.-]{0,200} \d ) [\w*.-]{8,}
    | (?<![a-z0-9]) (?: AIza | ya29\. | AQ\. | eyJ ) [\w.-]{6,}
    """
)
_RUN = re.compile(r"[\w+/=-]{40,}")
"""Words longer than any that people write. A word with both letters and digits is taken for a key."""
_ENDS = " \t\n\"',"
"""Characters that end a key."""
_DIGIT, _LETTER = re.compile(r"\d"), re.compile(r"(?i)[a-z]")


def redact(text: str, key: str | None = None) -> str:
    """Return the text without `key` and without anything that looks like a key. Idempotent; takes linear time."""
    text = text.replace(key, HIDDEN) if key else text
    text = _STARRED.sub(lambda found: HIDDEN if "***" in found[0] else found[0], text)
    text = _URL.sub(lambda found: f"{found[1]}{HIDDEN}" if found[2] else found[0], text)
    text = _SECRETS.sub(lambda found: f"{found['header'] or found['query'] or ''}{HIDDEN}", text)
    return _RUN.sub(lambda found: HIDDEN if _DIGIT.search(found[0]) and _LETTER.search(found[0]) else found[0], text)


def cut(text: str, most: int) -> str:
    """Return at most `most` characters, without a word cut at the end: half a key does not look like a key."""
    if len(text) <= most:
        return text
    return text[: max(text.rfind(end, 0, most) for end in _ENDS) + 1]
