"""Renders stored files, and the text extracted from them, as the page's Markdown."""

import html
import re
from collections.abc import Mapping
from urllib.parse import urlencode

from agent.i18n import N_, LocalizedText, _
from agent.i18n.translator import Translator
from agent.media.mime import SUFFIXES
from agent.transfer.formulas import with_references
from agent.web.chat.attached_documents import pages_read

SHOWN_AS = {suffix: kind.partition("/")[0] for kind, suffix in SUFFIXES.items()}
"""The way a file is shown, by its suffix."""
SHOWN_CHARACTERS = 3_000
"""Characters of a document that the page shows. The whole text would make each page of the chat heavy."""
_PUNCTUATION = re.compile(r"[!-,/:-@\[-`{-~]")
"""Signs that can be Markdown in the name of a file."""
EXTRACTED_TEXT_TITLES = {
    "image": N_("Text extracted from {name}; it may contain mistakes"),
    "audio": N_("Speech transcribed from {name}; it may contain mistakes"),
}


def shown_extracted_text(read: Mapping[str, str], translator: Translator) -> str:
    """Return the text that was extracted from a file, marked as such. Only the beginning of a document is shown."""
    if read["kind"] == "document":
        return _shown_document(read, translator)
    title = html.escape(translator(LocalizedText(EXTRACTED_TEXT_TITLES[read["kind"]], {"name": read["name"]})))
    text = html.escape(read["read"]).replace("\n", "&#10;")  # an empty line would end the HTML block in Markdown
    return f'<details class="extracted" open><summary>{title}</summary><pre>{text}</pre></details>'


def _shown_document(read: Mapping[str, str], translator: Translator) -> str:
    title = html.escape(translator(_("Text read from {name}: {pages}", name=read["name"], pages=pages_read(read))))
    text = read["read"] if len(read["read"]) <= SHOWN_CHARACTERS else read["read"][:SHOWN_CHARACTERS] + " …"
    text = html.escape(text).replace("\n", "&#10;")
    return f'<details class="extracted"><summary>{title}</summary><pre>{text}</pre></details>'


def shown_file(url: str, translator: Translator, name: str = "") -> str:
    """Return the file at this URL as an image, a player or a download link with its name."""
    url = url.removeprefix("/")  # relative, because a proxy may serve the page below a path
    match SHOWN_AS.get(url.rpartition(".")[2]):
        case "image":
            label = translator(_("attached picture"))
            return f"![{label}]({url}{_query(name)})"
        case "audio":
            return f'<audio controls preload="metadata" src="{html.escape(url)}"></audio>'
        case _ if name:
            label = translator(_("Save {name}", name=with_references(name, _PUNCTUATION)))
            return f"[{label}]({url}{_query(name)})"
        case _:
            label = translator(_("Save the file"))
            return f"[{label}]({url})"


def _query(name: str) -> str:
    """Return the part of a file's URL that says under which name it is saved."""
    return f"?{urlencode({'name': name})}" if name else ""
