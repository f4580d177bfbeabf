"""Renders the sources that an answer cites: their numbers in the text, and the list below the answer.

The page's script shows the source of a number from the list. So both must be ours: a text of a model cannot use their
class names. Everything in the list is escaped.
"""

import html
import re

from agent.i18n import ngettext
from agent.i18n.translator import Translator
from agent.rendering.sources import DOCUMENT, Mark, Source, Sources

CHIP = "citationchip"
LIST = "citationlist"
MOST_OPEN = 6
"""The most sources of a list that is unfolded."""
_OURS = re.compile("citation(?:chip|list)")


def without_our_names(text: str) -> str:
    """Return the text of a model so that no HTML in it looks like a number or list of ours. Its length stays.

    Class names are case-sensitive. Only a text that is meant to deceive writes them as character references.
    """
    if "citation" not in text and "&#" not in text:
        return text
    if "&#" in text and _OURS.search(html.unescape(text)):
        text = text.replace("&#", "&\uff03")
    return _OURS.sub(lambda found: found[0].capitalize(), text)


def chip(mark: Mark) -> str:
    """Return the number of a source in the text: a link to the page, or a button for a document."""
    shown = f'class="{CHIP} of-{mark.number}-{mark.passage}"'
    if mark.url:
        return f'<a {shown} href="{html.escape(mark.url)}">{mark.number}</a>'
    return f"<button {shown}>{mark.number}</button>"


def source_list(sources: Sources, translator: Translator) -> str:
    """Return the list, folded if it is long. It has no line break, which would end the HTML block in Markdown."""
    items = [_item(source, translator) for source in sources]
    name = html.escape(translator(ngettext("{count} source", "{count} sources", len(items))))
    state = " open" if len(items) <= MOST_OPEN else ""
    return f'<div class="{LIST}"><details{state}><summary>{name}</summary><ol>{"".join(items)}</ol></details></div>'


def _item(source: Source, translator: Translator) -> str:
    title = f"<bdi>{html.escape(source.title or translator(DOCUMENT))}</bdi>"
    page = ""
    if source.url:
        title = f'<a href="{html.escape(source.url)}">{title}</a>'
    elif source.title:  # the page's script opens the document of this name
        title = f"<button>{title}</button>"
        page = "" if source.page is None else f' class="page-{source.page}"'
    place = html.escape(translator(source.place))
    passages = "".join(f"<q><bdi>{html.escape(passage)}</bdi></q>" for passage in source.passages)
    return f'<li value="{source.number}"{page}>{title} <span>{place}</span>{passages}</li>'
