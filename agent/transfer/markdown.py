"""Writes the shown branch of a conversation as Markdown."""

from collections.abc import Iterable, Iterator, Mapping
from urllib.parse import quote

from agent.i18n import _
from agent.i18n.translator import Translator
from agent.media.store import type_of_id
from agent.messages.parts import fence
from agent.rendering.sources import DOCUMENT, SOURCES, Mark, Source
from agent.rendering.steps import thought_name
from agent.transfer.document import DELETED, Block


def to_markdown(
    title: str, subtitle: str, blocks: Iterable[Block], files: Mapping[str, str], translator: Translator
) -> Iterator[str]:
    """Yield the document, block by block. `files` are the paths of the attachments beside it, by their ids."""
    yield f"# {_line(title)}\n\n{_line(subtitle)}"
    for block in blocks:
        if part := _markdown(block, files, translator):
            yield f"\n\n{part}"
    yield "\n"


def markdown_mark(mark: Mark) -> str:
    """Return the number of a source in the text: a link, if its address is known."""
    return f"[\\[{mark.number}\\]]({mark.url})" if mark.url else f"\\[{mark.number}\\]"


def _markdown(block: Block, files: Mapping[str, str], translator: Translator) -> str:
    match block.type:
        case "user" | "model":
            return f"## {_line(block.title)}"
        case "text":
            return block.text.strip()
        case "reasoning":
            return _quote(f"**{thought_name(block.seconds, translator)}**\n\n{block.text.strip()}")
        case "call":
            return f"**{_line(block.title)}**\n\n{fence(block.text)}"
        case "result":
            title = translator(_("Result: {name}", name=_line(block.title)))
            return f"**{title}**\n\n{fence(block.text)}"
        case "extracted":
            return _quote(f"{_line(block.title)}\n\n{block.text.strip()}")
        case "question":
            return _quote(_line(block.text))
        case "problem" | "caption":
            return f"_{_line(block.text)}_"
        case "file" if path := files.get(block.file):
            mark = "!" if type_of_id(block.file).startswith("image/") else ""
            return f"{mark}[{_line(block.title)}]({quote(path)})"
        case "file":
            return f"_{translator(DELETED)}_"
        case "sources":
            items = "\n\n".join(_source(source, translator) for source in block.sources)
            return f"**{translator(SOURCES)}**\n\n{items}"


def _source(source: Source, translator: Translator) -> str:
    title = _line(source.title or translator(DOCUMENT))
    place = _line(translator(source.place))
    name = f"[{title}]({source.url})" if source.url else title
    passages = "".join(f"\n   > {_line(passage)}\n" for passage in source.passages)
    return f"{source.number}. {name}{f' ({place})' if place else ''}\n{passages}".rstrip()


def _line(text: str) -> str:
    """Return the text in one line, with the marks of links, emphasis and HTML escaped."""
    return "".join(f"\\{char}" if char in "\\`*_[]<>#" else char for char in " ".join(text.split()))


def _quote(text: str) -> str:
    return "\n".join(f"> {line}".rstrip() for line in text.split("\n"))
