"""Writes the shown branch of a conversation as Markdown."""

from collections.abc import Mapping, Sequence
from urllib.parse import quote

from agent.i18n.translator import Translator
from agent.media.store import type_of_id
from agent.messages.parts import fence
from agent.transfer.document import DELETED, REASONING, RESULT, Block


def to_markdown(
    title: str, subtitle: str, blocks: Sequence[Block], files: Mapping[str, str], translator: Translator
) -> str:
    """Return the document. `files` are the paths of the attachments beside it, by their ids."""
    parts = (_markdown(block, files, translator) for block in blocks)
    return "\n\n".join([f"# {_line(title)}", _line(subtitle), *(part for part in parts if part)]) + "\n"


def _markdown(block: Block, files: Mapping[str, str], translator: Translator) -> str:
    match block.type:
        case "user" | "model":
            return f"## {_line(block.title)}"
        case "text":
            return block.text.strip()
        case "reasoning":
            return _quote(f"**{translator(REASONING)}**\n\n{block.text.strip()}")
        case "call":
            return f"**{_line(block.title)}**\n\n{fence(block.text)}"
        case "result":
            return f"**{translator(RESULT)}: {_line(block.title)}**\n\n{fence(block.text)}"
        case "extracted":
            return _quote(f"{_line(block.title)}\n\n{block.text.strip()}")
        case "problem" | "caption":
            return f"_{_line(block.text)}_"
        case "file" if path := files.get(block.file):
            mark = "!" if type_of_id(block.file).startswith("image/") else ""
            return f"{mark}[{_line(block.title)}]({quote(path)})"
        case "file":
            return f"_{translator(DELETED)}_"


def _line(text: str) -> str:
    """Return the text in one line, with the marks of links, emphasis and HTML escaped."""
    return "".join(f"\\{char}" if char in "\\`*_[]<>#" else char for char in " ".join(text.split()))


def _quote(text: str) -> str:
    return "\n".join(f"> {line}".rstrip() for line in text.split("\n"))
