"""Titles that the model writes, after the first answer of a conversation. Until then the first words are the title.

A title is no part of the conversation: its request has no journal. A failure is logged, and the first words stay.
"""

import asyncio
import logging
from contextvars import Context

from agent.agent import Agent
from agent.errors import AgentError
from agent.history import HistoryStore, Record
from agent.limits import Limits
from agent.models.catalog import ModelSpec
from agent.run import Run
from agent.settings import Settings
from agent.web.chat.model_menu import ModelMenu
from agent.web.chat.transcript import has_visible
from agent.web.chat.visitor import Visitor

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

    def is_wanted(self, record: Record, spec: ModelSpec) -> bool:
        """Return True for a new conversation if the model can write a title.

        A model in this process has few places for requests, and the visitor's next message would wait for one. A model
        that always reasons would reach the limit before the title.
        """
        return self._is_on and not record.revision and spec.provider != "llama.cpp" and not spec.always_reasons

    def expect(self, conversation: str) -> None:
        """Count the title of this conversation as pending. The end of its first run calls `begin`."""
        self._expected.add(conversation)

    def is_pending(self, conversation: str) -> bool:
        """Return True until the title of this conversation is written, or cannot be."""
        return conversation in self._expected

    def begin(self, visitor: Visitor, record: Record, model: str, run: Run) -> None:
        """Let the model write the title of this conversation, if its first run has ended with an answer."""
        result = run.result
        if self._is_closed or result is None or result.finish_reason != "stop" or not result.text:
            self._expected.discard(record.id)
            return
        # The end of a run must not pass its context on.
        work = self._write(visitor, record, model, result.text)
        task = asyncio.create_task(work, context=Context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: self._expected.discard(record.id))

    async def aclose(self) -> None:
        """Cancel the requests."""
        self._is_closed = True
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _write(self, visitor: Visitor, record: Record, model: str, answer: str) -> None:
        try:
            async with asyncio.timeout(SECONDS):
                title = await self._ask(visitor, model, record.title, answer)
            if title:
                await self._store.label(record.id, owner=record.owner, title=title, instead_of=record.title)
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
