"""The HTML that is no Markdown: texts as they are, files, and the sources of an answer. Everything in it is escaped."""

import json
from collections.abc import Iterator
from html import escape
from typing import Any

from agent.i18n.text import LocalizedText, _, ngettext
from agent.i18n.translator import Translator
from agent.rendering.code_colors import colored
from agent.rendering.markdown import BEGIN, END, MOST, PICTURES, link
from agent.rendering.sources import DOCUMENT, Mark, Source, Sources

LONGEST_WRITTEN = 500_000
"""Characters of the texts of a turn that are shown as they are: arguments and results of tools, and text files."""
LEAST_WRITTEN = 1_000
"""Characters of such a text that are always shown."""
REST = _("The rest is not shown here. Export the chat as JSON to get all of it.")
REST_OF_LINK = _("The rest is not shown here. Continue this chat and export the copy as JSON to get all of it.")
MOST_OPEN = 6
"""The most sources of a list that is unfolded."""


def html_mark(mark: Mark) -> str:
    """Return the number of a source in a text that is saved. Only `Blocks` reads it."""
    return f"{{{BEGIN}{mark.number} {mark.url}{END}"


def page_mark(mark: Mark) -> str:
    """Return the same for the page, where a number names the cited passage, and that of a document is a button."""
    return f"{{{BEGIN}{mark.number}.{mark.passage} {mark.url}{END}"


def without_mark_signs(text: str) -> str:
    """Return the text so that no number of a source can be in it. Its length stays."""
    return text.replace(BEGIN, "\ufffd").replace(END, "\ufffd")


class Room:
    """The room of a turn for texts that are shown as they are. `rest` says how a reader gets what is not shown."""

    def __init__(self, translator: Translator, rest: LocalizedText = REST, left: int = LONGEST_WRITTEN) -> None:
        self._rest, self.left = f'<p class="caption">{escape(translator(rest))}</p>\n', left

    def take(self, text: str) -> tuple[str, str]:
        """Return the beginning of a text that is shown, and the HTML after it, which says if that is not all."""
        shown = text[: max(self.left, LEAST_WRITTEN)]
        self.left -= len(shown)
        return (shown, "") if len(shown) == len(text) else (f"{shown} …", self._rest)


def as_written(text: str, room: Room) -> Iterator[str]:
    """Yield a text as it is, piece by piece."""
    shown, after = room.take(text.strip("\n"))
    yield "<pre>"
    yield from (escape(shown[at : at + MOST]) for at in range(0, len(shown), MOST))
    yield f"</pre>{after}"


def pretty_json(value: Any) -> str:
    """Return JSON in lines, or a beginning of it that is longer than a turn shows."""
    pieces, size = list[str](), 0
    for piece in json.JSONEncoder(ensure_ascii=False, indent=2, default=str).iterencode(value):
        pieces.append(piece)
        size += len(piece)
        if size > LONGEST_WRITTEN:
            break
    return "".join(pieces)


def json_code(value: Any, room: Room) -> str:
    """Return a value as JSON with its colours."""
    code, after = room.take(pretty_json(value))
    html = ("" if after else colored(code, "json")) or escape(code)
    return f'<pre><code class="language-json">{html}</code></pre>{after}'


def fold(title: str, inside: Iterator[str], tag: str = "details") -> Iterator[str]:
    """Yield what is shown below its title when the title is pressed. `tag` is the element with its attributes."""
    yield f"<{tag}><summary>{escape(title)}</summary>"
    yield from inside
    yield "</details>\n"


def around_file(kind: str, name: str) -> tuple[str, str]:
    """Return the HTML before and after the URL of a file: a picture, a player, or a link that saves it."""
    name = escape(name)
    if kind in PICTURES:
        return '<p class="file"><img src="', f'" alt="{name}"></p>\n'
    if kind.startswith("audio/"):
        return '<p class="file"><audio controls src="', f'"></audio><span class="caption">{name}</span></p>\n'
    if kind.startswith("video/"):
        return (
            '<p class="file"><video controls preload="metadata" src="',
            f'"></video><span class="caption">{name}</span></p>\n',
        )
    return f'<p class="file"><a download="{name}" href="', f'">{name}</a></p>\n'


def source_item(source: Source, translator: Translator, *, opens: bool = False) -> str:
    """Return a source as an item of a list. `opens`: the title of a document is a button."""
    title = f"<bdi>{escape(source.title or translator(DOCUMENT))}</bdi>"
    if opens and not source.url and source.title:
        title = f'<button type="button" data-source="{source.number}">{title}</button>'
    passages = "".join(f"<q><bdi>{escape(passage)}</bdi></q>" for passage in source.passages)
    place = f" <span>{escape(translator(source.place))}</span>"
    return f'<li value="{source.number}">{link(title, source.url)}{place}{passages}</li>'


def source_list(sources: Sources, translator: Translator) -> str:
    """Return the sources of an answer on the page, folded if they are many."""
    items = "".join(source_item(source, translator, opens=True) for source in sources)
    count = len([*sources])
    name = escape(translator(ngettext("{count} source", "{count} sources", count)))
    state = " open" if count <= MOST_OPEN else ""
    return f"<details{state}><summary>{name}</summary><ol>{items}</ol></details>"
