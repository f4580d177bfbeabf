"""Writes the shown branch of a conversation as one HTML page, which prints as a document.

A page that is saved needs nothing else: it has no script, and its policy forbids all requests. Everything that people,
models and tools wrote is either escaped or rendered by markdown-it with HTML switched off.
"""

from base64 import b64encode
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from hashlib import sha256
from html import escape
from itertools import groupby
from pathlib import Path
from urllib.parse import quote

from agent.files.store import type_of_id
from agent.i18n.text import LocalizedText, _
from agent.i18n.translator import Translator
from agent.rendering.html import LEAST_WRITTEN, REST, Room, around_file, as_written, fold, source_item
from agent.rendering.markdown import to_blocks
from agent.rendering.sources import SOURCES
from agent.rendering.steps import LEAST_STEPS, failure_reason, short_reason, steps_name, thought_name, total_seconds
from agent.transfer.document import DELETED, DOCUMENT_THREADS, Block, shown_text

STYLE = Path(__file__).with_name("document.css").read_text(encoding="utf-8")


def policy_of(style: str, media: str = "data:", *more: str, form: str = "'none'") -> str:
    """Return the policy of a page with this style sheet: no script, and files only from `media`."""
    digest = b64encode(sha256(style.encode()).digest()).decode()
    sources = f"img-src {media}", f"media-src {media}", "base-uri 'none'", f"form-action {form}"
    return "; ".join(("default-src 'none'", f"style-src 'sha256-{digest}'", *sources, *more))


POLICY = policy_of(STYLE)
STEPS = ("reasoning", "call", "result")
PAGE_END = "</main>\n</body>\n</html>\n"
_CHUNK = 3 * (1 << 14)
ReadFile = Callable[[str], Awaitable[bytes | None]]
"""Returns the bytes of a stored file, or None if it was deleted."""
FileUrl = Callable[[str], AsyncIterator[str]]
"""Yields the URL of a stored file in pieces, or nothing if it was deleted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """The HTML around a conversation: of the head, before the title, and after it.

    `rest` says how a reader gets the rest of a text of which only the beginning is shown.
    """

    head: str
    before: str = ""
    after: str = ""
    rest: LocalizedText = REST


EXPORTED = Frame(
    head=(
        f'<meta http-equiv="Content-Security-Policy" content="{escape(POLICY)}">\n'
        f'<meta name="referrer" content="no-referrer">\n<style>{STYLE}</style>\n'
    )
)
"""The frame of a page that is saved as a file."""


def data_urls(read: ReadFile) -> FileUrl:
    """Return a function for URLs that have the bytes of the files in them. Only one file is in memory at a time."""

    async def url(id_: str) -> AsyncIterator[str]:
        data = await read(id_)
        if data is None:
            return
        yield f"data:{type_of_id(id_)};base64,"
        for at in range(0, len(data), _CHUNK):
            yield b64encode(data[at : at + _CHUNK]).decode()

    return url


async def to_html(
    title: str,
    subtitle: str,
    blocks: Iterable[Block],
    file_url: FileUrl,
    translator: Translator,
    frame: Frame = EXPORTED,
) -> AsyncGenerator[str]:
    """Yield the page, piece by piece. The blocks are made and written in threads, a few at a time."""
    yield page_head(title, subtitle, translator, frame)
    async with aclosing(DOCUMENT_THREADS.steps(_written(blocks, translator, frame.rest))) as steps:
        async for pieces in steps:
            texts = list[str]()
            for piece in pieces:
                if isinstance(piece, str):
                    texts.append(piece)
                    continue
                yield "".join(texts)
                texts.clear()
                async with aclosing(_file(piece, file_url, translator)) as parts:
                    async for part in parts:
                        yield part
            yield "".join(texts)
    yield PAGE_END


def _written(blocks: Iterable[Block], translator: Translator, rest: LocalizedText) -> Iterator[str | Block]:
    """Yield the blocks as HTML, in pieces whose work is bounded, except for those of files."""
    author, room = "", Room(translator, rest)
    for is_steps, group in groupby(blocks, key=lambda block: block.type in STEPS):
        if is_steps:
            yield from _steps([*group], translator, room)
            continue
        for block in group:
            if block.type in ("user", "model"):
                yield "</section>\n" if author else ""
                yield f'<section class="{block.type}">\n<h2>{escape(block.title)}</h2>\n'
                author, room = block.type, Room(translator, rest)
            elif block.type == "file":
                yield block
            else:
                yield from _block(block, translator, room, is_asked=author == "user")
    yield "</section>\n" if author else ""


def to_index(names: Sequence[str], translator: Translator) -> str:
    """Return a page with links to these pages beside it."""
    items = "\n".join(f'<li><a href="{quote(name)}">{escape(name.removesuffix(".html"))}</a></li>' for name in names)
    head = page_head(translator(_("Conversations")), "", translator)
    return f"{head}<ul>\n{items}\n</ul>\n{PAGE_END}"


def page_head(title: str, subtitle: str, translator: Translator, frame: Frame = EXPORTED) -> str:
    """Return the page up to what is below its title. `PAGE_END` ends it."""
    language = escape(translator.language)
    caption = f'<p class="caption">{escape(subtitle)}</p>' if subtitle else ""
    return (
        f'<!doctype html>\n<html lang="{language}">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(title)}</title>\n{frame.head}</head>\n<body>\n{frame.before}<main>\n"
        f"<header><h1>{escape(title)}</h1>{caption}</header>\n{frame.after}"
    )


def _steps(blocks: Sequence[Block], translator: Translator, room: Room) -> Iterator[str]:
    """Yield steps that follow one another, folded into one. Failures stay visible, with their reason."""
    results = [block for block in blocks if block.type == "result"]
    thoughts = [block.seconds for block in blocks if block.type == "reasoning"]
    tools = max(sum(block.type == "call" for block in blocks), len(results))
    shown, failed = (
        [block for block in blocks if not block.is_failed],
        [block for block in results if block.is_failed],
    )
    inside = (piece for block in shown for piece in _block(block, translator, room))
    if len(thoughts) + tools < LEAST_STEPS:
        yield from inside
    else:
        parts = steps_name(len(thoughts), tools, len(failed), translator, seconds=total_seconds(thoughts))
        yield from fold(" · ".join(parts), inside)
    for block in failed:
        yield from _block(block, translator, room)


def _block(block: Block, translator: Translator, room: Room, *, is_asked: bool = False) -> Iterator[str]:
    match block.type:
        case "text":
            shown = replace(block, text=shown_text(block.text, translator)) if is_asked else block
            yield from _text(shown, room, is_asked=is_asked) if block.text.strip() else ()
        case "reasoning":
            yield from fold(thought_name(block.seconds, translator), _text(block, room))
        case "call":
            yield from fold(block.title, as_written(block.text, room))
        case "result" if block.is_failed:
            why = _(
                "{name} · failed: {why}", name=block.title, why=short_reason(failure_reason(block.text), translator)
            )
            yield from fold(translator(why), as_written(block.text, room), 'details class="problem"')
        case "result":
            yield from fold(translator(_("Result: {name}", name=block.title)), as_written(block.text, room))
        case "extracted":
            yield from fold(block.title, as_written(block.text, room))
        case "problem" | "question":
            yield _paragraph(block.type, block.text)
        case "sources":
            name = escape(translator(SOURCES))
            yield f'<section class="sources"><h3>{name}</h3><ol>'
            yield from (source_item(source, translator) for source in block.sources)
            yield "</ol></section>\n"
        case _:
            yield _paragraph("caption", block.text)


def _text(block: Block, room: Room, *, is_asked: bool = False) -> Iterator[str]:
    """Yield a text. If a visitor wrote it, its Markdown is shown as typed, as on the page.

    Of a text that is too long for its turn, the beginning is shown as written.
    """
    yield '<div class="text" dir="auto">'
    if len(block.text) <= max(room.left, LEAST_WRITTEN):
        room.left -= len(block.text)
        yield from to_blocks(block.text, is_typed=is_asked)
    else:
        yield from as_written(block.text, room)
    yield "</div>\n"


def _paragraph(kind: str, text: str) -> str:
    inside = escape(text.strip("\n"))
    return f'<p class="{kind}">{inside}</p>\n'


async def _file(block: Block, file_url: FileUrl, translator: Translator) -> AsyncGenerator[str]:
    """Yield a picture, a player or a link that saves the file."""
    before, after = around_file(type_of_id(block.file), block.title)
    is_found = False
    async for piece in file_url(block.file):
        if not is_found:
            yield before
        is_found = True
        yield escape(piece)
    yield after if is_found else f'<p class="caption">{escape(translator(DELETED))}</p>\n'
