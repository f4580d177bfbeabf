"""What may be said of text that a vendor sent: everything but keys, what looks like one, and the queries of URLs."""

import re

HIDDEN = "…"

_SECRETS = re.compile(
    r"""(?ix)
    (?: bearer | basic ) \s+ [^\s"',]+
    | (?P<header> (?: authorization | (?:x-)? (?:goog-)? api[-_]key ) ["']? \s* [:=] \s* ["']? ) [^\s"',&}]+
    | (?P<url> https?://[^\s?"'<>]+ ) \? [^\s"'<>]+
    | (?P<query> [?&] [\w-]* (?: key | token | secret ) = ) [^\s&"']+
    | (?<![a-z0-9]) (?: sk | pk | rk | hf | gsk | xai | ghp ) [-_] [\w*.-]{3,}
    | (?<![a-z0-9]) (?: api | key | token ) [-_] (?= [\w*.-]* \d ) [\w*.-]{8,}
    | (?<![a-z0-9]) (?: AIza | ya29\. | AQ\. | eyJ ) [\w.-]{6,}
    | \S* \*{3,} \S*                                  # a key that the vendor has starred out itself, but for its ends
    | (?= [\w+/=-]* \d ) (?= [\w+/=-]* [a-z] ) [\w+/=-]{40,}      # nothing that people write is as long as this
    """
)


def redact(text: str, key: str | None = None) -> str:
    """The text without `key`, and without anything that looks like a key. Idempotent."""
    return _SECRETS.sub(_kept, text.replace(key, HIDDEN) if key else text)


def _kept(found: re.Match[str]) -> str:
    return f"{found['header'] or found['url'] or found['query'] or ''}{HIDDEN}"
