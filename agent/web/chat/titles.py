"""The titles of conversations: the first words of a message, a number, or what the model writes after the first answer.

A title is no part of the conversation: its request has no journal. A failure is logged, and the first words stay."""

import asyncio
import logging
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextvars import Context
from typing import Any

from pydantic_ai.messages import AudioUrl, BinaryContent, DocumentUrl, ImageUrl

from agent.agent import Agent
from agent.errors import AgentError
from agent.files.parts import extracted_text_of, is_file_name, quoted_file_name
from agent.files.store import is_id
from agent.history import Conversation, Entry, HistoryStore
from agent.limits import Limits
from agent.models.catalog import ModelSpec
from agent.runtime.run import Run
from agent.settings import Settings
from agent.transfer.document import beginning
from agent.web.chat.model_menu import ModelMenu
from agent.web.chat.stored_entries import VIEW_BYTES
from agent.web.chat.transcript import content_parts, has_visible, message_text
from agent.web.chat.visitor import Visitor


def first_words(entry: Entry) -> str:
    """Return the title of a conversation that begins with this message, until it gets another one.

    These are the words that were typed, without the texts of files. Without words, they are the names of the files.
    """
    parts = content_parts(entry)
    typed = [part for number, part in enumerate(parts) if isinstance(part, str) and _file_name(part, number) is None]
    return _title(typed) or _title([", ".join(dict.fromkeys(filter(None, _names(parts))))])


def all_first_words(entries: Iterable[Entry]) -> set[str]:
    """Return the first words of each message with which the conversation of all these entries has begun."""
    return {first_words(entry) for entry in entries if entry.parent_id is None}


def words_with_files(entry: Entry) -> str:
    """Return the title that `first_words` once gave to this message: with the texts of its files. "" if it has none.

    Such titles are still stored, and must be in no link that leaves the files out.
    """
    has_file = any(
        isinstance(part, str) and _file_name(part, at) is not None for at, part in enumerate(content_parts(entry))
    )
    return _title([message_text(entry)]) if has_file else ""


def _title(texts: Iterable[str]) -> str:
    words = beginning(" ".join(texts))
    return words if has_visible(words) else ""


def _file_name(text: str, number: int) -> str | None:
    """Return the name of a text file, or None. The first text can also be typed: "Mend this:" with code looks alike."""
    name = quoted_file_name(text)
    return None if name is None or (number == 0 and not is_file_name(name)) else name


def _names(parts: Sequence[Any]) -> Iterator[str]:
    """Yield the names of the files. What was read from a file stands after it, and knows its name."""
    for number, (part, after) in enumerate(zip(parts, [*parts, None][1:], strict=True)):
        if isinstance(part, str):
            yield _file_name(part, number) or ""
        elif (read := extracted_text_of(part)) is not None:
            yield "" if "earlier" in read else read.get("name", "")
        elif isinstance(part, ImageUrl | AudioUrl | DocumentUrl | BinaryContent) and extracted_text_of(after) is None:
            yield part.identifier if is_file_name(part.identifier) and not is_id(part.identifier) else ""


_NUMBERED = re.compile(r"(?P<name>.*\S) \((?P<number>[2-9]|[1-9]\d)\)", re.DOTALL)


def without_number(title: str) -> str:
    """Return the title without the number at its end."""
    found = _NUMBERED.fullmatch(title)
    return found["name"] if found else title


class NumberedTitles:
    """The titles of chats that there were before an import or a copy. Owns the highest number of each name."""

    def __init__(self, titles: Collection[str]) -> None:
        self._taken, self._highest = frozenset(titles), dict[str, int]()
        for title in titles:
            self._count(title)

    def title_for(self, title: str) -> str:
        """Return the title of a new chat: with the next number if there was a chat with this one."""
        if title in self._taken:
            name = without_number(title)
            title = f"{name} ({self._highest[name] + 1})"
        self._count(title)
        return title

    def _count(self, title: str) -> None:
        name = without_number(title)
        self._highest[name] = max(_number_of(title), self._highest.get(name, 1))


def _number_of(title: str) -> int:
    found = _NUMBERED.fullmatch(title)
    return int(found["number"]) if found else 1


# The title of a conversation when another message takes the place of its first one: an edit, an undo, another version.
#
# A title that is only the first words of such a message follows. One that somebody or a model wrote stays.


async def rename(
    store: HistoryStore, conversation: Conversation, first: Entry, begins: Sequence[Entry] | None = None
) -> str:
    """Let the title of the conversation follow `first`, with which it begins now, and return the title.

    `begins` are all messages with which it has begun. They are read if they are needed and not given.
    """
    words, title = first_words(first), conversation.title
    if not title or words in ("", title, without_number(title)):
        return title
    if begins is None:
        begins = await store.find(conversation, after=[None], most_bytes=VIEW_BYTES)
    earlier = all_first_words(begins)
    if not earlier & {title, without_number(title)}:
        return title
    return (await store.label(conversation.id, owner=conversation.owner, title=words, instead_of=title)).title


SECONDS = 20.0
MAX_TOKENS = 32
MAX_CHARACTERS = 60
READ_CHARACTERS = 2_000
"""Characters of the answer that the model reads for a title, beside the first words of the message."""
SYSTEM = (
    "You are shown how a conversation began. Write a title of three to six words for it, in its language. "
    "Answer with the title alone, without quotation marks."
)

log = logging.getLogger(__name__)


class Titles:
    """Writes titles if the settings allow it, never on a public page. Owns the tasks that wait for the model."""

    def __init__(self, settings: Settings, store: HistoryStore, models: ModelMenu) -> None:
        self._is_on = settings.titles and settings.public is None
        self._store, self._models = store, models
        self._tasks, self._expected, self._is_closed = set[asyncio.Task[None]](), set[str](), False

    def is_wanted(self, conversation: Conversation, spec: ModelSpec) -> bool:
        """Return True for a new conversation if the model can write a title.

        A model in this process has few places for requests, and the visitor's next message would wait for one. A model
        that always reasons would reach the limit before the title.
        """
        return self._is_on and not conversation.revision and spec.provider != "llama.cpp" and not spec.always_reasons

    def expect(self, conversation_id: str) -> None:
        """Count the title of this conversation as pending. The end of its first run calls `begin`."""
        self._expected.add(conversation_id)

    def is_pending(self, conversation_id: str) -> bool:
        """Return True until the title of this conversation is written, or cannot be."""
        return conversation_id in self._expected

    def begin(self, visitor: Visitor, conversation: Conversation, model: str, run: Run) -> None:
        """Let the model write the title of this conversation, if its first run has ended with an answer."""
        result = run.result
        if self._is_closed or result is None or result.finish_reason != "stop" or not result.text:
            self._expected.discard(conversation.id)
            return
        # The end of a run must not pass its context on.
        work = self._write(visitor, conversation, model, result.text)
        task = asyncio.create_task(work, context=Context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: self._expected.discard(conversation.id))

    async def aclose(self) -> None:
        """Cancel the requests."""
        self._is_closed = True
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _write(self, visitor: Visitor, conversation: Conversation, model: str, answer: str) -> None:
        try:
            async with asyncio.timeout(SECONDS):
                title = await self._ask(visitor, model, conversation.title, answer)
            if title:
                await self._store.label(
                    conversation.id, owner=conversation.owner, title=title, instead_of=conversation.title
                )
        except (AgentError, OSError) as error:  # TimeoutError is an OSError
            log.warning("a title could not be written: %s", error or "it took too long")
        except Exception:
            log.exception("a title could not be written")

    async def _ask(self, visitor: Visitor, model: str, asked: str, answer: str) -> str:
        connection, owns = await self._models.connect(visitor.owner, model, visitor.login)
        try:
            limits = Limits(steps=1, seconds=SECONDS, retries=0, interactive=False)
            agent = Agent(connection, system_message=SYSTEM, limits=limits)
            reasoning = False if connection.spec.reasoning else None
            prompt = f"{asked}\n\n---\n{answer[:READ_CHARACTERS]}\n---\nTitle:"
            result = await agent.ask(prompt, reasoning=reasoning, max_tokens=MAX_TOKENS)
        finally:
            if owns:
                await self._models.close(connection, visitor.owner)
        if result.finish_reason != "stop":
            log.warning("a title could not be written: the request ended with %s", result.finish_reason)
            return ""
        title = " ".join(result.text.split()).strip("\"'“”„*# ")[:MAX_CHARACTERS]
        return title if has_visible(title) else ""
