"""One chat turn and what people do to turns: send, watch, stop, retry, edit, undo. Knows no widgets.

The store is the truth; a run writes to it through a journal, and a page watches the run. Every call names the owner
and is refused for what another owner has.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic_ai.messages import ModelMessage, ModelRequest, UserContent, UserPromptPart

from agent.agent import Agent
from agent.catalog import ModelSpec
from agent.context import Context
from agent.errors import Conflict, InputError, LocalModelError, NotFound
from agent.guardrails import Limits
from agent.history import Entry, HistoryStore, Record
from agent.media import MediaStore
from agent.messages import newest_that_fit
from agent.providers import Connection, Models, Served, connect
from agent.result import Options
from agent.settings import Settings
from agent.tools import Tool
from agent.ui.inputs import parts_of
from agent.ui.journal import StoreJournal
from agent.ui.live import Live
from agent.ui.render import Bubble, Turn, fold, said, turns, wire
from agent.ui.view import View, shown

PACE = 0.1
"""Seconds between two updates of a page; the last one is not held back."""
IDLE = 1.0
"""Seconds after which a silent run updates the page all the same, so that a page that is gone is noticed."""
WINDOW = 30
"""Bubbles shown at first; the cost of an update grows with them, and only with them."""


@dataclass(frozen=True, kw_only=True)
class Choices:
    """What a visitor has set on the page; `picked` where the model was their own choice, not the first there was."""

    model: str = ""
    picked: bool = False
    system_message: str = ""
    reasoning: bool = True
    temperature: float | None = None
    max_tokens: int | None = None
    tools: bool = False


class Conversations:
    """All that a page can do with conversations. Owner of the runs going on."""

    def __init__(
        self, settings: Settings, store: HistoryStore, media: MediaStore, models: Models, tools: Sequence[Tool]
    ) -> None:
        self.settings, self.media, self.models = settings, media, models
        self.tools = tuple(tools)
        self.live = Live(settings.grace_seconds)
        self._store = store
        self._connections: dict[Served, Connection] = {}
        self._choices: OrderedDict[str, Choices] = OrderedDict()

    # What there is

    async def last(self, owner: str) -> str | None:
        """The id of the conversation that this owner used last."""
        found = await self._store.list(owner, limit=1)
        return found[0].id if found else None

    def choices(self, owner: str) -> Choices:
        """What this owner has set, else the defaults."""
        return self._choices.get(owner) or Choices(system_message=self.settings.system_prompt)

    def choose(self, owner: str, choices: Choices) -> None:
        """Remember what this owner has set, as long as the server runs."""
        self._choices[owner] = choices
        self._choices.move_to_end(owner)
        while len(self._choices) > 1000:
            self._choices.popitem(last=False)

    @property
    def settled(self) -> bool:
        """Whether there is a model and none is on its way."""
        status = self.models.status
        return status.phase == "ready" and (status.done is None or status.done >= 1)

    def spec(self, model: str) -> ModelSpec | None:
        """The model of that id if it answers now, else the first that does."""
        served = self._served(model)
        return served.spec if served else None

    def better(self, owner: str, model: str) -> ModelSpec | None:
        """The first model, where the visitor has another that they did not pick themselves."""
        served = self.models.served
        if not served or not model or self.choices(owner).picked or served[0].spec.id == model:
            return None
        return served[0].spec

    async def view(self, owner: str, conversation: str | None, window: int = WINDOW) -> View:
        """The newest turns of a stored conversation. An empty view where this owner has none of that id."""
        if conversation is None:
            return View(messages=[], ids=[])
        try:
            record = await self._store.get(conversation, owner=owner)
            entries = await self._store.history(record, limit=window * 2)
        except NotFound:
            return View(messages=[], ids=[])
        live = self.live.get(conversation, owner)
        running = live.run.id if live else None
        return shown(turns(entries, running=running), window, cut=len(entries) == window * 2, busy=live is not None)

    async def watch(self, owner: str, conversation: str | None, window: int = WINDOW) -> AsyncIterator[View]:
        """The view, again and again while an answer is being written, and once more when it is there."""
        live = self.live.get(conversation, owner) if conversation else None
        if live is None or conversation is None:
            yield await self.view(owner, conversation, window)
            return
        run = live.run
        with live.watched():
            record = await self._store.get(conversation, owner=owner)
            entries = await self._store.history(record, limit=window * 2)
            before = turns([entry for entry in entries if entry.note.run_id != run.id])
            user = next((entry for entry in entries if entry.note.run_id == run.id), None)
            base = shown(before, window, cut=len(entries) == window * 2)
            bubbles: list[Bubble] = []
            seen = 0
            while True:
                new = run.responses[seen:]
                seen += len(new)
                fold(bubbles, new)
                note = replace(run.result.note, left_out=live.left_out) if run.result else None
                now = wire(Turn(user=user, bubbles=bubbles, note=note), run.reasoning)
                ids = [*base.ids, user.id if user else None, *([None] * (len(now) - 1))]
                yield View(messages=base.messages + now, ids=ids, earlier=base.earlier, busy=not run.done)
                if note is not None:
                    return
                if not await run.over(PACE) or seen == len(run.responses):
                    await run.news(seen, timeout=IDLE)

    async def answers(self, owner: str, conversation: str | None) -> AsyncIterator[dict[str, Any]]:
        """The answer being written, for programs: its text, its bubbles, and how it ended, once it has.

        Who stops listening ends the run: a program, unlike a page, does not come back to look.
        """
        live = self.live.get(conversation, owner) if conversation else None
        if live is None:
            return
        run, bubbles, seen = live.run, list[Bubble](), 0
        with live.watched():
            try:
                while True:
                    new = run.responses[seen:]
                    seen += len(new)
                    fold(bubbles, new)
                    yield {
                        "text": "\n\n".join(one.text for one in bubbles if one.first.type == "output_text"),
                        "bubbles": [{"type": one.first.type, "content": one.content} for one in bubbles],
                        "finish_reason": run.result.finish_reason if run.result else None,
                    }
                    if run.done and seen == len(run.responses):
                        return
                    if not await run.over(PACE) or seen == len(run.responses):
                        await run.news(seen, timeout=IDLE)
            finally:
                run.cancel("client_disconnect")

    # What people do

    async def send(self, owner: str, conversation: str | None, value: dict[str, Any] | None, choices: Choices) -> str:
        """Take a message and begin the answer; return the conversation's id when the message is kept.

        Raises an `AgentError` with a sentence; then nothing has been kept.
        """
        if conversation is not None and self.live.busy(conversation):
            raise Conflict("An answer is still being written. Stop it, or wait for it to end.")
        served = await self._ready(choices.model)
        parts = await parts_of(
            value, spec=served.spec, media=self.media, owner=owner, max_bytes=self.settings.max_upload_bytes
        )
        record = Record(owner=owner)
        if conversation is not None:
            try:
                record = await self._store.get(conversation, owner=owner)
            except NotFound:
                conversation = None
        await self._begin(record, parts, choices, served)
        return record.id

    async def retry(self, owner: str, conversation: str, choices: Choices) -> None:
        """Answer the last message again, on a branch of its own."""
        entries, record = await self._entries(owner, conversation)
        await self._again(record, _last_user(entries), None, choices)

    async def edit(self, owner: str, conversation: str, entry_id: str, text: str, choices: Choices) -> None:
        """Replace a message by another text, on a branch of its own, and answer that."""
        entries, record = await self._entries(owner, conversation)
        entry = next((entry for entry in entries if entry.id == entry_id), None)
        if entry is None:
            raise Conflict("That message is no longer part of this conversation; the page shows what is.")
        if not text.strip():
            raise InputError("Write something first.")
        await self._again(record, entry, text, choices)

    async def undo(self, owner: str, conversation: str) -> str:
        """Take back the last message with its answer; return its text."""
        entries, record = await self._entries(owner, conversation)
        entry = _last_user(entries)
        await self._store.save(_branch(record, entry.parent_id))
        return said(entry)

    def stop(self, owner: str, conversation: str | None) -> None:
        """End the answer that is being written; nothing where there is none."""
        live = self.live.get(conversation, owner) if conversation else None
        if live is not None:
            live.run.cancel("user_request")

    async def aclose(self) -> None:
        """End the runs, keep what they had, close the connections."""
        await self.live.close()
        for connection in self._connections.values():
            await connection.aclose()

    # How

    def _served(self, model: str) -> Served | None:
        served = self.models.served
        return next((one for one in served if one.spec.id == model), served[0] if served else None)

    async def _ready(self, model: str) -> Served:
        served = await self.models.ready()
        found = next((one for one in served if model in (one.spec.id, one.spec.name)), None)
        if model and found is None:
            known = ", ".join(one.spec.id for one in served)
            raise LocalModelError(f"No model named {model!r} answers. Those that do: {known}.")
        return found or served[0]

    async def _entries(self, owner: str, conversation: str) -> tuple[list[Entry], Record]:
        if self.live.busy(conversation):
            raise Conflict("An answer is still being written. Stop it, or wait for it to end.")
        record = await self._store.get(conversation, owner=owner)
        return await self._store.history(record), record

    async def _again(self, record: Record, entry: Entry, text: str | None, choices: Choices) -> None:
        served = await self._ready(choices.model)
        message = (await self.media.loaded(record.owner, [entry.message]))[0]
        parts = _content(message)
        if text is not None:
            parts = [text, *(part for part in parts if not isinstance(part, str))]
        await self._begin(_branch(record, entry.parent_id), parts, choices, served)

    async def _begin(self, record: Record, parts: list[UserContent], choices: Choices, served: Served) -> None:
        """Start the run and return when the user's message is kept."""
        spec = served.spec
        with_tools = choices.tools and spec.tools != "none"
        stored = await self._store.history(record) if record.revision else []
        messages = [entry.message for entry in stored]
        most = min(choices.max_tokens or spec.max_output_tokens, spec.max_output_tokens)
        room = spec.context_tokens - most - 256
        kept = newest_that_fit(messages, room)
        context = Context(session_id=record.id, messages=tuple(await self.media.loaded(record.owner, kept)))
        left_out = len(messages) - len(kept)
        journal = StoreJournal(self._store, self.media, record, left_out)
        settings = self.settings
        agent = Agent(
            self._connection(served),
            system_message=choices.system_message,
            tools=self.tools if with_tools else (),
            limits=Limits(steps=settings.max_steps, seconds=settings.run_seconds, tool_seconds=settings.tool_seconds),
        )
        options = Options(
            reasoning=choices.reasoning if spec.reasoning else None,
            temperature=choices.temperature,
            max_tokens=most,
        )
        prompt = parts[0] if len(parts) == 1 and isinstance(parts[0], str) else parts
        run = agent.run(prompt, context=context, options=options, journal=journal)
        self.live.begin(record.id, record.owner, run, left_out)
        await asyncio.shield(journal.begun)

    def _connection(self, served: Served) -> Connection:
        if served not in self._connections:
            self._connections[served] = connect(served.spec, served.endpoint)
        return self._connections[served]


def _branch(record: Record, head_id: str | None) -> Record:
    left = (record.head_id,) if record.head_id else ()
    return replace(record, head_id=head_id, branches=tuple(dict.fromkeys((*record.branches, *left))))


def _content(message: ModelMessage) -> list[UserContent]:
    assert isinstance(message, ModelRequest)
    part = next(part for part in message.parts if isinstance(part, UserPromptPart))
    return [part.content] if isinstance(part.content, str) else list(part.content)


def _last_user(entries: Sequence[Entry]) -> Entry:
    for entry in reversed(entries):
        if isinstance(entry.message, ModelRequest) and any(isinstance(p, UserPromptPart) for p in entry.message.parts):
            return entry
    raise InputError("There is no message yet.")
