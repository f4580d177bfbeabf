"""Exports one conversation or all of an owner's as a download in one of the formats, piece by piece."""

import io
import re
import zipfile
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args
from urllib.parse import quote

from agent.errors import NotFound
from agent.files.parts import fence
from agent.files.store import MediaStore, type_of_id
from agent.history import Conversation, HistoryStore
from agent.i18n.text import _, ngettext
from agent.i18n.translator import Translator
from agent.rendering.html import html_mark
from agent.rendering.sources import DOCUMENT, SOURCES, Mark, Source
from agent.rendering.steps import thought_name
from agent.transfer.document import DELETED, DOCUMENT_THREADS, Block, Branch, blocks_of, named_as_stored, title_of
from agent.transfer.html import data_urls, to_html, to_index
from agent.transfer.portable import all_ids, export_json


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


if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

Format = Literal["json", "markdown", "html"]
FORMATS: Sequence[Format] = get_args(Format)
SUFFIXES = {"json": "json", "markdown": "md", "html": "html"}
TYPES = {"json": "application/json", "md": "text/markdown", "html": "text/html", "zip": "application/zip"}
MAX_CONVERSATIONS = 1_000_000
LONGEST_NAME = 80
_UNSAFE = re.compile(r"[^\w.() -]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Download:
    """A file to save: its name, its media type, and its bytes in pieces."""

    name: str
    media_type: str
    pieces: AsyncGenerator[bytes]


class Exporter:
    """Exports conversations of one owner, with headings in the language of `translator`.

    `name_model` returns the name of the model with an id.
    """

    def __init__(
        self,
        store: HistoryStore,
        media: MediaStore,
        owner: str,
        translator: Translator,
        name_model: Callable[[str], str] = named_as_stored,
    ) -> None:
        self._store, self._media, self._owner, self._translator = store, media, owner, translator
        self._name_model = name_model

    async def one(self, conversation_id: str, form: Format) -> Download:
        """Return the download of a conversation. Raises `NotFound`.

        Markdown with attachments is a ZIP file, which has them beside the text.
        """
        conversation = await self._store.get(conversation_id, owner=self._owner)
        branch = await Branch.open(self._store, conversation)
        name = safe_name(await self._title(conversation, branch))
        if form == "json":
            return _download(name, "json", export_json(self._store, self._media, [conversation]))
        if form == "html":
            return _download(name, "html", self._page(conversation, branch))
        if branch.files:
            return _download(name, "zip", self._archive([conversation], form))
        return _download(name, "md", self._text(conversation, branch, {}))

    async def all(self, form: Format) -> Download:
        """Return the download of all conversations: a JSON file, or a ZIP file with one document for each."""
        conversations = await self._store.list(self._owner, limit=MAX_CONVERSATIONS)
        if form == "json":
            return _download("conversations", "json", export_json(self._store, self._media, conversations))
        return _download("conversations", "zip", self._archive(conversations, form))

    async def _title(self, conversation: Conversation, branch: Branch) -> str:
        return await DOCUMENT_THREADS.run(title_of, conversation.title, branch, self._translator)

    async def _page(self, conversation: Conversation, branch: Branch) -> AsyncGenerator[bytes]:
        blocks = blocks_of(branch, self._translator, html_mark, self._name_model)
        title, subtitle = await self._title(conversation, branch), await self._subtitle(conversation, branch)
        page = to_html(title, subtitle, blocks, data_urls(self._read), self._translator)
        async with aclosing(page) as pieces:
            async for piece in pieces:
                yield piece.encode(errors="replace")

    async def _subtitle(self, conversation: Conversation, branch: Branch) -> str:
        """Return the date as the reader writes it, and how many messages are on other branches, and so not shown."""
        hidden = len(await all_ids(self._store, conversation)) - len(branch)
        note = ngettext(
            "{count} message of another version is only in the JSON export",
            "{count} messages of other versions are only in the JSON export",
            hidden,
        )
        date = self._translator.date(conversation.created_at.date())
        return f"{date} · {self._translator(note)}" if hidden > 0 else date

    async def _text(self, conversation: Conversation, branch: Branch, files: dict[str, str]) -> AsyncGenerator[bytes]:
        title, subtitle = await self._title(conversation, branch), await self._subtitle(conversation, branch)
        blocks = blocks_of(branch, self._translator, markdown_mark, self._name_model)
        async with aclosing(
            DOCUMENT_THREADS.steps(to_markdown(title, subtitle, blocks, files, self._translator))
        ) as steps:
            async for pieces in steps:
                yield "".join(pieces).encode(errors="replace")

    async def _archive(self, conversations: Sequence[Conversation], form: Format) -> AsyncGenerator[bytes]:
        """Yield a ZIP file. Only some messages of one conversation, or one attachment, are in memory at a time.

        Of several conversations, one that is deleted meanwhile is not in the list of the ZIP file.
        """
        sink, names = _Sink(), list[str]()
        with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as archive:
            members = archive.infolist()
            for number, known in enumerate(conversations, 1):
                before = len(members)
                try:
                    async with aclosing(
                        self._members(archive, known, form, "" if len(conversations) == 1 else f"{number:03d} ")
                    ) as steps:
                        async for _ in steps:
                            if written := sink.take():
                                yield written
                except NotFound:
                    if len(conversations) == 1:
                        raise
                    del members[before:]
                    continue
                names.append(members[-1].filename)
            if form == "html" and len(conversations) > 1:
                archive.writestr("index.html", to_index(names, self._translator))
        yield sink.take()

    async def _members(
        self, archive: zipfile.ZipFile, known: Conversation, form: Format, number: str
    ) -> AsyncGenerator[None]:
        """Write a conversation to a ZIP file, its document last. Yields after each piece. Raises `NotFound`."""
        conversation = await self._store.get(known.id, owner=self._owner)
        branch = await Branch.open(self._store, conversation)
        name = f"{number}{safe_name(await self._title(conversation, branch))}.{SUFFIXES[form]}"
        files = dict[str, str]()
        for id_ in sorted(branch.files) if form != "html" else ():
            if (data := await self._read(id_)) is not None:
                files[id_] = f"files/{id_}"
                await DOCUMENT_THREADS.run(archive.writestr, files[id_], data, zipfile.ZIP_STORED)
                yield
        document = self._page(conversation, branch) if form == "html" else self._text(conversation, branch, files)
        with archive.open(name, "w") as member:
            async with aclosing(document) as pieces:
                async for piece in pieces:
                    await DOCUMENT_THREADS.run(member.write, piece)
                    yield
        yield

    async def _read(self, id_: str) -> bytes | None:
        try:
            return (await self._media.read(self._owner, id_)).data
        except NotFound:
            return None


class _Sink(io.RawIOBase):
    """A file that cannot seek, whose written bytes are taken away."""

    def __init__(self) -> None:
        super().__init__()
        self._written = bytearray()

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, data: "ReadableBuffer", /) -> int:
        """Keep the bytes until they are taken."""
        added = bytes(data)
        self._written += added
        return len(added)

    def take(self) -> bytes:
        """Return the bytes since the last call."""
        taken, self._written = bytes(self._written), bytearray()
        return taken


def safe_name(title: str) -> str:
    """Return a name for files, made of a title."""
    return _UNSAFE.sub("_", title).strip(". _")[:LONGEST_NAME].strip() or "conversation"


def _download(name: str, suffix: str, pieces: AsyncGenerator[bytes]) -> Download:
    return Download(name=f"{name}.{suffix}", media_type=TYPES[suffix], pieces=pieces)
