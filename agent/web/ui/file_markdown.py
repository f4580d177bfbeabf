"""Files in a bubble: pictures, sounds and others that are kept, and what was read of them, as the page's Markdown."""

import html
from collections.abc import Mapping
from urllib.parse import urlencode

from agent.i18n.translator import Translator
from agent.media.mime import SUFFIXES

SHOWN_AS = {suffix: kind.partition("/")[0] for kind, suffix in SUFFIXES.items()}
"""By how the name of a file ends."""
READ_AS = {"image": "read_image", "audio": "read_audio"}


def shown_reading(read: Mapping[str, str], words: Translator) -> str:
    """What was read here of a file, marked as that."""
    title = html.escape(words(READ_AS[read["kind"]], name=read["name"]))
    text = html.escape(read["read"]).replace("\n", "&#10;")  # an empty line would end what Markdown leaves alone
    return f'<details class="read" open><summary>{title}</summary><pre>{text}</pre></details>'


def shown_file(url: str, words: Translator, name: str = "") -> str:
    """What is kept under that URL, to be seen, heard or saved under its name."""
    url = url.removeprefix("/")  # relative, because behind a proxy the page may be at a path of its host
    match SHOWN_AS.get(url.rpartition(".")[2]):
        case "image":
            return f"![{words('picture')}]({url})"
        case "audio":
            return f'<audio controls preload="metadata" src="{html.escape(url)}"></audio>'
        case _ if name:
            return f"[{words('save_named', name=name)}]({url}?{urlencode({'name': name})})"
        case _:
            return f"[{words('save')}]({url})"
