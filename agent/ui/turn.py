"""One chat turn and what people do to turns: send, watch, stop, retry, edit, undo. Knows no widgets.

The store is the truth; a run writes to it through a journal, and a page watches the run. Every call names the owner
and is refused for what another owner has.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import asdict, replace
from typing import Any, cast

from pydantic_ai.messages import UserContent

from agent.catalog import ModelSpec
from agent.errors import Conflict, InputError, NotFound
from agent.history import Entry, HistoryStore, Record
from agent.media import MediaStore
from agent.prompt import Prompt
from agent.providers import Models
from agent.reading import Reading, Report
from agent.run import Run
from agent.settings import Settings
from agent.suspension import Resumption, Suspension
from agent.tools import Tool, Toolset
from agent.ui.asking import Asked, meant
from agent.ui.gate import Gate
from agent.ui.grants import Grant, granted
from agent.ui.inputs import check_length, ids_of, parts_of
from agent.ui.journal import branch
from agent.ui.live import Live, LiveRun
from agent.ui.offers import Offers
from agent.ui.remembered import Remembered
from agent.ui.replies import Replies
from agent.ui.start import Choices, Start, start
from agent.ui.storage_quota import StorageQuota, size_of
from agent.ui.transcript import is_prompt, prompt_of, said, turns, unanswered
from agent.ui.view import View, shown
from agent.ui.visitor import Visitor
from agent.ui.watching import watching
from agent.ui.words import ENGLISH, Words, ours

WINDOW = 30
"""Bubbles shown at first; the cost of an update grows with them, and only with them."""


class Conversations:
    """All that a page can do with conversations. Owner of the runs going on."""

    def __init__(
        self,
        settings: Settings,
        store: HistoryStore,
        media: MediaStore,
        models: Models,
        tools: Sequence[Tool | Toolset],
        quota: StorageQuota | None = None,
    ) -> None:
        self.settings, self.media = settings, media
        self.offers = Offers.of(settings, models)
        self.tools = tuple(tools)
        self.reading = Reading(settings.local.cache_dir, downloads=settings.local.downloads)
        # On a page of one's own an answer that was asked for is finished; `run_seconds` bounds it.
        self.live = Live(settings.grace_seconds if settings.public else None, media)
        self._store = store
        self._quota = quota or StorageQuota(None, store, media, settings.data_dir)
        self.gate = Gate(settings.public)
        self.remembered = Remembered()
        self.replies = Replies()

    # What there is

    async def last(self, owner: str) -> str | None:
        """The id of the conversation that this owner used last."""
        found = await self._store.list(owner, limit=1)
        return found[0].id if found else None

    def choices(self, owner: str) -> Choices:
        """What this owner has set, else the defaults."""
        return self.remembered.get(owner) or Choices()

    @property
    def settled(self) -> bool:
        """Whether there is a model and none is on its way."""
        status = self.offers.local.status
        return status.phase == "ready" and (status.done is None or status.done >= 1)

    def spec(self, owner: str, model: str | None) -> ModelSpec | None:
        """The model of that name, else the one that this owner chose before, else the first that answers here."""
        return self.offers.named(model) or self.offers.named(self.choices(owner).model) or self.offers.find("")

    def better(self, owner: str, model: str) -> ModelSpec | None:
        """The first model, where the visitor has another that they did not pick themselves."""
        first = self.offers.find("")
        if first is None or not model or self.choices(owner).picked or first.id == model:
            return None
        return first

    async def view(self, owner: str, conversation: str | None, window: int = WINDOW, words: Words = ENGLISH) -> View:
        """The newest turns of a stored conversation. An empty view where this owner has none of that id."""
        try:
            entries, cut = await self._newest(owner, conversation, window)
        except NotFound:
            return View(messages=[])
        live = self.live.get(conversation, owner)
        stored = turns(entries, running=live.run.id if live else None, replies=self.replies.get(conversation))
        return shown(stored, window, cut=cut, busy=live is not None, words=words)

    async def watch(
        self, owner: str, conversation: str | None, window: int = WINDOW, words: Words = ENGLISH
    ) -> AsyncIterator[View]:
        """The view, again and again while an answer is being written, and once more when it is there."""
        live = self.live.get(conversation, owner)
        if live is None:
            yield await self.view(owner, conversation, window, words)
            return
        entries, cut = await self._newest(owner, conversation, window)
        async with aclosing(watching(live, entries, window, cut=cut, words=words)) as views:
            async for view in views:
                yield view

    async def answers(self, live: LiveRun) -> AsyncIterator[dict[str, Any]]:
        """An answer as it is written, for programs: its text, its bubbles, and how it ended, once it has.

        Of an answer that has ended already, only that. Who stops listening ends the run: a program, unlike a page, does
        not come back to look.
        """
        try:
            async with aclosing(live.bubbles()) as stream:
                async for bubbles in stream:
                    yield {
                        "text": "\n\n".join(one.text for one in bubbles if one.first.type == "output_text"),
                        "bubbles": [{"type": one.first.type, "content": one.content} for one in bubbles],
                        "finish_reason": live.run.result.finish_reason if live.run.result else None,
                    }
        finally:
            live.run.cancel("client_disconnect")

    # What people do

    async def send(
        self,
        visitor: Visitor,
        conversation: str | None,
        value: dict[str, Any] | None,
        choices: Choices,
        report: Report | None = None,
    ) -> LiveRun | None:
        """Take a message and begin the answer; return that when the message is kept.

        While its files are read, `report` is told. Where an answer waits for people, a text is taken for what it asks;
        None: it asks for more. Raises an `AgentError` with a sentence; then nothing has been kept.
        """
        self._free(conversation)
        owner = visitor.owner
        if conversation is not None and not (value or {}).get("files") and await self._asks(owner, conversation):
            return await self.answer(visitor, conversation, str((value or {}).get("text") or ""), choices)
        async with self._granted(visitor, choices) as grant:
            if (value or {}).get("files"):
                grant.place.count_for_all()
            parts = await parts_of(
                value,
                spec=grant.connection.spec,
                media=self.media,
                owner=owner,
                max_bytes=self.settings.max_upload_bytes,
                reading=self.reading if choices.read_here else None,
                report=report,
                reserve=grant.reserve,
            )
            record = Record(owner=owner)
            if conversation is not None:
                try:
                    record = await self._store.get(conversation, owner=owner)
                except NotFound:
                    conversation = None
            try:
                return await self._begin(record, parts, choices, grant)
            except Exception:
                await self.media.remove(owner, ids_of(parts))  # no message will ever name them
                raise

    async def answer(
        self, visitor: Visitor, conversation: str | None, text: str, choices: Choices, asked: Asked | None = None
    ) -> LiveRun | None:
        """Answer a question of a suspended run, which then goes on. None: it has more questions.

        `asked` names the question of the pressed button. Raises `Conflict` if nothing, or something else, is asked now,
        and `InputError` for words that are no answer.
        """
        check_length(text)
        entries, record = await self._entries(visitor.owner, conversation)
        conversation = record.id
        turn = turns(entries, replies=self.replies.get(conversation))[-1] if entries else None
        if turn is None or turn.asks is None:
            raise ours(Conflict, "nothing_asked")
        if asked is not None and asked != Asked(turn.run, turn.asks["id"]):
            raise ours(Conflict, "other_question")
        meant(turn.asks, text)
        replies = {**(turn.replies or {}), turn.asks["id"]: text.strip()}
        if replace(turn, replies=replies).asks is not None:
            with self.gate.enter(visitor):
                self.replies.put(record, replies)
            return None
        async with self._granted(visitor, choices) as grant:
            # The pending calls need the tools, even if they were switched off since.
            choices, texts = replace(choices, tools=True), list(replies.values())
            await grant.reserve(size_of(texts))
            start = await self._started(record, choices, grant, texts, resumed=True)
            answers = {call["id"]: meant(call, replies[call["id"]]) for call in unanswered(turn.bubbles)}
            suspension = replace(Suspension.of(start.context), options=asdict(start.options))
            Resumption(suspension=suspension, answers=answers, sealed=False, changed_ok=True).check(start.agent.tools)
            run = start.agent.resume(suspension, answers, journal=start.journal)
            live = self._launch(record, run, start, grant, resumed=True)
        self.replies.forget(conversation)
        return live

    async def retry(self, visitor: Visitor, conversation: str | None, entry_id: str, choices: Choices) -> None:
        """Answer the last message again, on a branch of its own. Raises `Conflict` where another is the last by now."""
        self._free(conversation)
        async with self._granted(visitor, choices) as grant:
            entry, record, _ = await self._last(visitor.owner, conversation, entry_id)
            await self._again(record, entry, None, choices, grant)

    async def go_on(
        self, visitor: Visitor, conversation: str | None, entry_id: str, text: str, choices: Choices
    ) -> None:
        """Ask for the rest of an answer that the length limit ended, once.

        `text` asks for it, as a message like any other, because every vendor takes one. Raises `Conflict`.
        """
        self._free(conversation)
        async with self._granted(visitor, choices) as grant:
            _, record, ended = await self._last(visitor.owner, conversation, entry_id)
            if ended != "length":
                raise ours(Conflict, "gone_on")
            await grant.reserve(size_of([text]))
            await self._begin(record, [text], choices, grant)

    async def edit(
        self, visitor: Visitor, conversation: str | None, entry_id: str, text: str, choices: Choices
    ) -> None:
        """Replace a message by another text, on a branch of its own, and answer that."""
        if not text.strip():
            raise ours(InputError, "write_first")
        check_length(text)
        self._free(conversation)
        async with self._granted(visitor, choices) as grant:
            entries, record = await self._entries(visitor.owner, conversation)
            entry = next((entry for entry in entries if entry.id == entry_id and is_prompt(entry)), None)
            if entry is None:
                raise ours(Conflict, "message_gone")
            await self._again(record, entry, text, choices, grant)

    async def undo(self, owner: str, conversation: str | None, entry_id: str) -> str:
        """Take back the last message with its answer; return its text. Raises `Conflict` as `retry` does."""
        entry, record, _ = await self._last(owner, conversation, entry_id)
        await self._store.save(branch(record, entry.parent_id))
        return said(entry)

    def stop(self, owner: str, conversation: str | None) -> None:
        """End the answer that is being written; nothing where there is none."""
        if live := self.live.get(conversation, owner):
            live.run.cancel("user_request")

    async def aclose(self) -> None:
        """End the runs, keep what they had, close the connections."""
        await self.live.close()
        await self.offers.aclose()

    # How

    async def _newest(self, owner: str, conversation: str | None, window: int) -> tuple[list[Entry], bool]:
        """Entries enough for `window` bubbles, and whether there may be more. Raises `NotFound`."""
        if conversation is None:
            raise NotFound("there is no conversation")
        most = window * 2  # a question and its answer show at least one bubble each
        entries = await self._store.history(await self._store.get(conversation, owner=owner), limit=most)
        return entries, len(entries) == most

    async def _last(self, owner: str, conversation: str | None, entry_id: str) -> tuple[Entry, Record, str | None]:
        """The last message of the visitor, and how its answer ended. Raises `Conflict` where its id is another."""
        entries, record = await self._entries(owner, conversation)
        last = next((entry for entry in reversed(entries) if is_prompt(entry)), None)
        if last is None or last.id != entry_id:
            raise ours(Conflict, "gone_on")
        return last, record, entries[-1].note.ended

    async def _entries(self, owner: str, conversation: str | None) -> tuple[list[Entry], Record]:
        if conversation is None:
            raise ours(Conflict, "message_gone")
        self._free(conversation)
        record = await self._store.get(conversation, owner=owner)
        return await self._store.history(record), record

    def _granted(self, visitor: Visitor, choices: Choices) -> AbstractAsyncContextManager[Grant]:
        """Leave for one answer. Every verb that begins one asks for it before it reads anything large."""
        return granted(self.gate, self.offers, self._quota, self.live.busy, visitor, choices)

    def _free(self, conversation: str | None) -> None:
        """Raise `Conflict` while an answer is being written in this conversation."""
        if conversation is not None and self.live.busy(conversation):
            raise ours(Conflict, "still_writing")

    async def _again(self, record: Record, entry: Entry, text: str | None, choices: Choices, grant: Grant) -> None:
        grant.place.count_for_all()  # files are read
        [message] = await self.media.loaded(record.owner, [entry.message])
        content = prompt_of(replace(entry, message=message))
        parts: list[UserContent] = [content] if isinstance(content, str) else list(content)
        if text is not None:
            parts = [text, *(parts[1:] if isinstance(parts[0], str) else parts)]  # what was typed stands before files
        await grant.reserve(size_of(parts))
        await self._begin(branch(record, entry.parent_id), parts, choices, grant)

    async def _asks(self, owner: str, conversation: str) -> bool:
        """Whether the last answer is suspended and waits for people: the note of its last message says so."""
        try:
            entries = await self._store.history(await self._store.get(conversation, owner=owner), limit=1)
        except NotFound:
            return False
        return bool(entries) and entries[-1].note.ended == "suspended"

    async def _begin(self, record: Record, parts: list[UserContent], choices: Choices, grant: Grant) -> LiveRun:
        """Start the run and return it when the user's message is kept."""
        start = await self._started(record, choices, grant, parts)
        prompt = cast(Prompt, parts[0] if len(parts) == 1 and isinstance(parts[0], str) else parts)
        run = start.agent.run(prompt, context=start.context, options=start.options, journal=start.journal)
        live = self._launch(record, run, start, grant)
        await start.journal.started(run)
        self.replies.forget(record.id)
        return live

    async def _started(
        self, record: Record, choices: Choices, grant: Grant, adds: Sequence[UserContent], *, resumed: bool = False
    ) -> Start:
        return await start(
            record,
            choices,
            grant.connection,
            settings=self.settings,
            store=self._store,
            media=self.media,
            tools=self.tools,
            adds=adds,
            resumed=resumed,
        )

    def _launch(self, record: Record, run: Run, start: Start, grant: Grant, resumed: bool = False) -> LiveRun:
        live = self.live.begin(record.id, record.owner, run, start.journal.unsent, grant.aclose, resumed=resumed)
        grant.take()
        return live
