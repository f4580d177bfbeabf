"""Renders stored files, and the text extracted from them, as the page's Markdown."""

import html
from collections.abc import Mapping
from urllib.parse import urlencode

from agent.i18n.translator import Translator
from agent.media.mime import SUFFIXES

SHOWN_AS = {suffix: kind.partition("/")[0] for kind, suffix in SUFFIXES.items()}
"""The way a file is shown, by its suffix."""
READ_AS = {"image": "read_image", "audio": "read_audio"}


def shown_reading(read: Mapping[str, str], words: Translator) -> str:
    """Return the text that was extracted from a file, marked as such."""
    title = html.escape(words(READ_AS[read["kind"]], name=read["name"]))
    text = html.escape(read["read"]).replace("\n", "&#10;")  # an empty line would end the HTML block in Markdown
    return f'<details class="read" open><summary>{title}</summary><pre>{text}</pre></details>'


def shown_file(url: str, words: Translator, name: str = "") -> str:
    """Return the file at this URL as an image, a player or a download link with its name."""
    url = url.removeprefix("/")  # relative, because a proxy may serve the page below a path
    match SHOWN_AS.get(url.rpartition(".")[2]):
        case "image":
            return f"![{words('picture')}]({url})"
        case "audio":
            return f'<audio controls preload="metadata" src="{html.escape(url)}"></audio>'
        case _ if name:
            return f"[{words('save_named', name=name)}]({url}?{urlencode({'name': name})})"
        case _:
            return f"[{words('save')}]({url})"
