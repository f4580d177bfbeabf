"""Turns as a page gets them: edits are applied as its script does it, and each block has only what may be in it."""

from collections.abc import Sequence
from html.parser import HTMLParser
from typing import Any, cast
from urllib.parse import urlsplit

from agent.rendering.bubbles import Edit, Turn
from agent.rendering.formulas import ATTRIBUTES, ELEMENTS

HTML = (
    "p br h1 h2 h3 h4 h5 h6 ul ol li blockquote hr pre code span em strong s a img table thead tbody tr th td sup sub "
    "kbd details summary input"
)
ATTRIBUTES_OF_HTML = "href rel src alt class start title data-title type disabled checked display alttext"
PAGE_HTML = "audio button q bdi"
ATTRIBUTES_OF_PAGE = "aria-label role download controls data-source data-passage value open"


def applied(turn: Turn | None, edits: Sequence[Edit]) -> Turn:
    """Return the turn after these edits."""
    bubbles: list[Any] = [{**one, "blocks": [*one["blocks"]]} for one in turn["bubbles"]] if turn else []
    fields: dict[str, Any] = {key: value for key, value in (turn or {}).items() if key != "bubbles"}
    for kind, *given in edits:
        match kind, given:
            case "bubble", [int(number), bubble]:
                assert number <= len(bubbles)
                bubbles[number : number + 1] = [{**bubble, "blocks": [*bubble["blocks"]]}]
            case "blocks", [int(number), int(first), blocks]:
                assert first <= len(bubbles[number]["blocks"])
                bubbles[number]["blocks"][first:] = blocks
            case "tail", [int(number), int(at), int(count), str(html)]:
                units = bubbles[number]["blocks"][at].encode("utf-16-le", "surrogatepass")
                kept = units[: len(units) - 2 * count].decode("utf-16-le", "surrogatepass")
                bubbles[number]["blocks"][at] = kept + html
            case "cut", [int(number)]:
                del bubbles[number:]
            case "column", [int(number), list() as made]:
                columns = [*fields["columns"]]
                columns[number] = applied(columns[number], made)
                fields = {**fields, "columns": columns}
            case "turn", [new]:
                fields = {**({"columns": fields["columns"]} if "columns" in fields else {}), **new}
            case _:
                raise AssertionError(kind)
    return cast(Turn, {**fields, "bubbles": bubbles})


class Checked(HTMLParser):
    """Raises `AssertionError` for an element, attribute or address that no text may yield, or that is not closed."""

    def __init__(self, html: str, *, is_page: bool = False) -> None:
        super().__init__()
        self._open, self._is_page = list[str](), is_page
        self._tags = {*HTML.split(), *ELEMENTS, *(PAGE_HTML.split() if is_page else ())}
        self._names = {*ATTRIBUTES_OF_HTML.split(), *ATTRIBUTES, *(ATTRIBUTES_OF_PAGE.split() if is_page else ())}
        self.feed(html)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in self._tags
        for name, value in attrs:
            assert name in self._names
            if name in ("href", "src") and not (self._is_page and (value or "").startswith("media/")):
                assert urlsplit(value or "").scheme in ("http", "https", "mailto") or (value or "").startswith(
                    "data:image/"
                )
        if tag not in ("br", "hr", "img", "input"):
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert tag == "hr" or self._open.pop() == tag


def check_turn(turn: Turn) -> None:
    """Check the HTML of a turn."""
    for html in (turn.get("caption", ""), *(block for bubble in turn["bubbles"] for block in bubble["blocks"])):
        Checked(html, is_page=True)
