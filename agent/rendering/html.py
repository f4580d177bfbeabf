"""The HTML that is no Markdown: texts as they are, files, and the sources of an answer. Everything in it is escaped."""

from collections.abc import Iterator
from html import escape

from agent.i18n.text import ngettext
from agent.i18n.translator import Translator
from agent.rendering.code_colors import colored
from agent.rendering.markdown import BEGIN, END, MOST, PICTURES, link
from agent.rendering.sources import DOCUMENT, Mark, Source, Sources

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


def as_written(text: str) -> Iterator[str]:
    """Yield a text as it is, piece by piece."""
    text = text.strip("\n")
    yield "<pre>"
    yield from (escape(text[at : at + MOST]) for at in range(0, len(text), MOST))
    yield "</pre>"


def json_code(code: str) -> str:
    """Return JSON with its colours."""
    return f'<pre><code class="language-json">{colored(code, "json") or escape(code)}</code></pre>'


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
