"""The shown branch of a conversation as blocks of a document. Markdown and HTML are made of them."""

import asyncio
import json
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Literal

from pydantic_ai.messages import (
    AudioUrl,
    Citation,
    DocumentUrl,
    FilePart,
    ImageUrl,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextContent,
    ToolReturnPart,
    UserPromptPart,
)

from agent.citations import moved
from agent.files.parts import extracted_text_of, text_file_of
from agent.files.references import files_named_in
from agent.files.store import ROUTE, display_name, is_id, type_of_id
from agent.history import Conversation, Entry, HistoryStore, Note
from agent.i18n.text import N_, LocalizedText, _
from agent.i18n.translator import Translator
from agent.messages.repair import count_bytes
from agent.rendering.html import LONGEST_WRITTEN, pretty_json, without_mark_signs
from agent.rendering.sources import Mark, Source, Sources
from agent.rendering.steps import ASK_USER, has_failed, tool_title
from agent.responses import BubbleMarker, Response, pieces_with_texts, steered_text
from agent.system.threads import Threads

DELETED = _("An attachment that was deleted.")
EXTRACTED = {
    "image": N_("Text extracted from {name}; it may contain mistakes"),
    "audio": N_("Speech transcribed from {name}; it may contain mistakes"),
    "document": N_("Text read from {name}"),
}

BlockType = Literal[
    "user",
    "model",
    "text",
    "reasoning",
    "question",
    "call",
    "result",
    "extracted",
    "problem",
    "caption",
    "file",
    "sources",
]
DOCUMENT_THREADS = Threads("document", 2)
"""The threads that write documents. More would only make the event loop wait longer for its turn."""
ENTRY_BYTES = 2048
"""Bytes that an entry counts for besides its text."""
PAGE, PAGE_BYTES = 50, 2_000_000
"""Messages that are read from the store at once, and the bytes after which a page ends."""
LONGEST_TURN = 200
"""Messages of an answer that are in memory at once. A longer answer continues as if it were another one."""
FAILED = ("error", "limit", "interrupted")
"""The endings whose reason is shown as a problem."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A block of the document. `user` and `model` are headings before what they wrote.

    A `question` is one of the model to the user. `title` is the name of a model, tool or file. `file` is the id of a
    stored file. `seconds` is how long the model has reasoned, 0 if that is not known. A text `joins` the block before
    it if it is the next piece of the same text. `is_failed`: it is the result of a tool that failed. `citations` have
    positions in the text, and `sources` are those that the texts of an answer cite.
    """

    type: BlockType
    text: str = ""
    title: str = ""
    file: str = ""
    seconds: float = 0.0
    joins: bool = False
    is_failed: bool = False
    citations: tuple[Citation, ...] = ()
    sources: tuple[Source, ...] = ()


class Branch:
    """The messages that lead to the head of a conversation, which are read page by page. `open` makes one.

    `begins` has the first messages, `files` the ids of all files that the messages name, and `size` their bytes.
    """

    def __init__(self, store: HistoryStore, conversation: Conversation) -> None:
        self._store, self._conversation, self._loop = store, conversation, asyncio.get_running_loop()
        self._pages = list[str | None]()
        self.begins: Sequence[Entry] = ()
        self.files, self.size, self._count = set[str](), 0, 0

    @classmethod
    async def open(cls, store: HistoryStore, conversation: Conversation) -> "Branch":
        """Look at each message once, the newest first. Raises `NotFound`."""
        branch, head = cls(store, conversation), conversation.head_id
        while head is not None or not branch._pages:
            branch.begins = page = await branch._page(head)
            branch._pages.append(head)
            branch._count += len(page)
            files, size = await DOCUMENT_THREADS.run(files_and_size, [entry.message for entry in page])
            branch.files |= files
            branch.size += size
            head = page[0].parent_id if page else None
        return branch

    def __len__(self) -> int:
        """Return the number of messages."""
        return self._count

    def __iter__(self) -> Iterator[Entry]:
        """Yield the messages, the oldest first. Only for threads: the event loop must go on to read them."""
        for head in reversed(self._pages):
            yield from asyncio.run_coroutine_threadsafe(self._page(head), self._loop).result()

    async def _page(self, head: str | None) -> Sequence[Entry]:
        return await self._store.history(replace(self._conversation, head_id=head), limit=PAGE, most_bytes=PAGE_BYTES)


def files_and_size(messages: Sequence[ModelMessage]) -> tuple[set[str], int]:
    """Return the ids of the files that these messages name, and the bytes of the messages."""
    return files_named_in(messages), sum(ENTRY_BYTES + count_bytes(message) for message in messages)


def beginning(text: str, most: int = 60) -> str:
    """Return the text on one line, with at most so many characters. It is cut between words, if one is near."""
    words = " ".join(text.lstrip()[: 100 * most].split())  # a text can have millions of characters
    if len(words) <= most:
        return words
    cut = words[: most - 1]
    whole = cut.rpartition(" ")[0] if words[most - 1] != " " else cut
    return (whole if len(whole) > most // 2 else cut).rstrip() + "…"


def title_of(title: str, entries: Iterable[Entry], translator: Translator) -> str:
    """Return the title of a conversation, or if it is empty the beginning of its first text, or the name of a file.

    Only the first messages are looked at.
    """
    if title.strip():
        return " ".join(title.split())
    first = islice(entries, LONGEST_TURN)
    text = next((block.text for block in blocks_of(first, translator) if block.type == "text"), "")
    file = text_file_of(text)
    return beginning(file[0] if file else text) or translator(_("Conversation"))


def shown_text(text: str, translator: Translator) -> str:
    """Return the text of a message as it is shown. An empty text file has a sentence instead of an empty box."""
    file = text_file_of(text)
    if file is None or file[1].strip():
        return text
    return translator(_("{name}: {plan}", name=file[0], plan=_("sent as text, but it is empty")))


def named_as_stored(model: str) -> str:
    """Return the id of a model, for a reader who has no list of models."""
    return model


def unmarked(_: Mark) -> str:
    """Write nothing where a text cites a source."""
    return ""


def blocks_of(
    entries: Iterable[Entry],
    translator: Translator,
    mark: Callable[[Mark], str] = unmarked,
    name: Callable[[str], str] = named_as_stored,
) -> Iterator[Block]:
    """Yield the blocks of these entries, which are a branch, oldest first. Those of one answer are made at a time.

    `mark` writes the numbers of sources. `name` returns the name of the model with this id.
    """
    for turn in turns_of(entries, LONGEST_TURN):
        for block in _turn(turn, translator, mark):
            yield replace(block, title=translator(name(block.title))) if block.type == "model" else block


def turns_of(entries: Iterable[Entry], longest: int | None = None) -> Iterator[list[Entry]]:
    """Yield each prompt with what follows it. A turn with more than `longest` entries is cut."""
    turn = list[Entry]()
    for entry in entries:
        if turn and (_prompt(entry) is not None or len(turn) == longest):
            yield turn
            turn = []
        turn.append(entry)
    if turn:
        yield turn


def _turn(entries: Sequence[Entry], translator: Translator, mark: Callable[[Mark], str]) -> Iterator[Block]:
    """Yield the blocks of a prompt and its answer. The same rule as on the page decides where a block begins."""
    if (prompt := _prompt(entries[0])) is not None:
        yield Block(type="user", title=translator(_("You")))
        yield from map(_plain, _prompt_blocks(prompt.content, translator))
    sources = Sources()
    for block in map(_plain, _joined(_answer(entries, translator))):
        yield replace(block, text=sources.mark(block.text, block.citations, mark), citations=())
    if sources:
        yield Block(type="sources", sources=tuple(sources))
    yield from _ending(entries[-1].note, translator)


def _answer(entries: Sequence[Entry], translator: Translator) -> Iterator[Block]:
    stamp, model, failed = BubbleMarker(), "", _failed_calls(entries)
    # As on the page, a turn whose run was continued has the times of all its runs.
    ends = {entry.note.run_id: entry.note for entry in entries if entry.note.ended}
    seconds = iter([one for end in ends.values() if end.timings for one in end.timings.reasoning])
    for entry in entries:
        if isinstance(entry.message, ModelResponse) and (name := entry.note.model or entry.message.model_name or ""):
            if name != model:
                yield Block(type="model", title=name)
            model = name
        for piece, part in pieces_with_texts(entry.message):
            citations = (part and part.citations) or ()
            response = stamp(piece)
            if (asked := _asked(response, failed, translator)) is not None:
                yield from asked
                model = model if response.type == "tool_call" else ""  # its name comes again after the user's
                continue
            model = "" if response.type == "user_message" else model
            for block in _response_blocks(response, translator):
                thinks = block.type == "reasoning" and not block.joins
                yield replace(block, citations=tuple(citations), seconds=next(seconds, 0.0) if thinks else 0.0)
        if isinstance(entry.message, ModelResponse):
            ids = (part.content.identifier for part in entry.message.parts if isinstance(part, FilePart))
            yield from (_file(id_) for id_ in ids if is_id(id_))


def _failed_calls(entries: Sequence[Entry]) -> set[str]:
    """Return the ids of the calls with a failed result, such as a question that nobody could be asked."""
    parts = [part for entry in entries for part in entry.message.parts]
    return {part.tool_call_id for part in parts if isinstance(part, ToolReturnPart) and part.outcome != "success"}


def _asked(response: Response, failed: Set[str], translator: Translator) -> list[Block] | None:
    """Return a question to the user, or the user's answer to it, as on the page. None: the response is neither."""
    content: Any = response.content
    if response.type not in ("tool_call", "tool_call_result") or content["name"] != ASK_USER:
        return None
    if content["id"] in failed:
        return None
    if response.type == "tool_call":
        return [Block(type="question", text=str(content["arguments"].get("question") or ""))]
    return [Block(type="user", title=translator(_("You"))), Block(type="text", text=str(content["content"]))]


def _prompt(entry: Entry) -> UserPromptPart | None:
    """Return the message that begins a turn. One that has steered a run is part of the answer."""
    if not isinstance(entry.message, ModelRequest):
        return None
    if steered_text(entry.message) is not None:
        return None
    return next((part for part in entry.message.parts if isinstance(part, UserPromptPart)), None)


def _prompt_blocks(content: Any, translator: Translator) -> Iterator[Block]:
    items: list[Any] = [content] if isinstance(content, str) else list(content)
    for part, after in zip(items, [*items[1:], None], strict=True):
        if isinstance(part, str):
            yield Block(type="text", text=part)
        elif (read := extracted_text_of(part)) is not None:
            sentence = EXTRACTED.get(str(read.get("kind")), EXTRACTED["image"])
            title = translator(LocalizedText(sentence, {"name": str(read.get("name", ""))}))
            yield Block(type="extracted", text=str(read["read"]), title=title)
        elif isinstance(part, TextContent):
            yield Block(type="text", text=part.content)
        else:  # a document's link has no name, but the text read from it does
            read = None if after is None else extracted_text_of(after)
            yield from _linked(part, str((read or {}).get("name", "")))


def _response_blocks(response: Response, translator: Translator) -> Iterator[Block]:
    content: Any = response.content
    match response.type:
        case "output_text":
            yield Block(type="text", text=content, joins=not response.is_type_switched)
        case "reasoning":
            yield Block(type="reasoning", text=content, joins=not response.is_type_switched)
        case "tool_call":
            arguments = pretty_json(content["arguments"])
            if len(arguments) > LONGEST_WRITTEN:  # in lines, it would take many times its memory
                arguments = json.dumps(content["arguments"], ensure_ascii=False, default=str)
            yield Block(type="call", text=arguments, title=translator(tool_title(str(content["name"]))))
        case "tool_call_result":
            title = translator(tool_title(str(content["name"])))
            yield Block(type="result", text=str(content["content"]), title=title, is_failed=has_failed(content))
            for item in content.get("files", ()):
                yield from _linked(item)
        case "user_message":
            yield Block(type="user", title=translator(_("You")))
            yield Block(type="text", text=str(content))
        case "error":
            yield Block(type="problem", text=str(content))


def _linked(part: object, name: str = "") -> Iterator[Block]:
    """Yield a file that a message links to. Links to other places are shown as they are."""
    if isinstance(part, ImageUrl | AudioUrl | DocumentUrl):
        id_ = part.url.removeprefix(ROUTE)
        yield _file(id_, name or part.identifier) if is_id(id_) else Block(type="caption", text=part.url)


def _file(id_: str, name: str = "") -> Block:
    """Return the block of a file. A name without a suffix gets the one of the id, which stands for its type."""
    named = name if "." in name else f"{name}.{id_.rpartition('.')[2]}" if name else id_
    return Block(type="file", file=id_, title=display_name(named, type_of_id(id_)))


def _ending(note: Note, translator: Translator) -> Iterator[Block]:
    if note.ended in FAILED and note.detail:
        yield Block(type="problem", text=translator(note.detail))
    elif note.ended == "length":
        yield Block(type="caption", text=translator(_("Reached the length limit")))
    elif note.ended == "cancelled" and note.detail:
        yield Block(type="caption", text=translator(note.detail))
    if note.omitted:
        yield Block(type="caption", text=translator(note.omitted))


def _plain(block: Block) -> Block:
    """Return the block with a text in which no mark of a source can be. Its length stays."""
    return replace(block, text=without_mark_signs(block.text))


def _joined(blocks: Iterable[Block]) -> Iterator[Block]:
    """Yield the blocks with the pieces of each text joined."""
    texts, citations, length = list[str](), list[Citation](), 0
    last: Block | None = None
    for block in blocks:
        if last is None or not block.joins or block.type != last.type:
            if last is not None:
                yield replace(last, text="".join(texts), citations=tuple(citations))
            texts, citations, length, last = [], [], 0, block
        texts.append(block.text)
        citations += moved(block.citations, length)
        length += len(block.text)
    if last is not None:
        yield replace(last, text="".join(texts), citations=tuple(citations))
