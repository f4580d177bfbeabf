"""The limits of a document, and the refusal of one that exceeds them. Used inside the sandbox."""

from collections.abc import Iterable

from agent.files.remarks import refused

MAX_PAGES = 2_000
"""Pages, slides, sheets or sections of one document."""
MAX_CHARACTERS = 2_000_000
"""Characters of its whole text: a book has about one million."""

_KEPT = "\t\n"


def checked_pages(pages: Iterable[str], *, empty: str = "empty_document") -> list[str]:
    """Return the cleaned texts. Stop and raise `InputError` as soon as they are too many or too long.

    `empty` is the reason for refusing a document without any text.
    """
    out: list[str] = []
    total = 0
    for page in pages:
        out.append(clean(page))
        total += len(out[-1])
        if len(out) > MAX_PAGES:
            raise refused("many_pages", count=len(out), most=MAX_PAGES)
        if total > MAX_CHARACTERS:
            raise refused("long_document", most=MAX_CHARACTERS)
    if not total:
        raise refused(empty, count=len(out))
    return out


def clean(text: str) -> str:
    """Return the text with "\\n" as line break, without control characters and without space at the line ends."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").replace("\f", "\n").split("\n")
    kept = ("".join(one for one in line if one.isprintable() or one in _KEPT) for line in lines)
    return "\n".join(line.rstrip() for line in kept).strip()
