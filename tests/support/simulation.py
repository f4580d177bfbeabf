"""Visitors, processes of the page and a model that fail by a seed, in one event loop on a virtual clock.

Everything but the network is the product's: the chat service, the journal, leases, recovery, and a store in memory. A
seed decides what is said, what fails and when, so a seed that breaks a law breaks it again.
"""

import argparse
import asyncio
import gc
import json
import logging
import sys
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from inspect import iscoroutinefunction
from itertools import count
from multiprocessing import get_context
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from time import monotonic, process_time
from traceback import format_exception
from typing import Any, TypeVar
from unittest.mock import patch
from weakref import WeakKeyDictionary

from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart, ToolCallPart, ToolReturnPart, UserPromptPart

from agent.errors import AgentError, Conflict, NotFound, StoreUnavailable
from agent.files.store import MediaStore
from agent.history import Conversation, Entry, Note, digest_of, new_id, values
from agent.history.key_value import KeyValueStore
from agent.history.memory import MemoryStorage
from agent.messages.openai import to_openai
from agent.messages.repair import prepare_messages
from agent.providers.connection import Endpoint, ServedModel
from agent.settings import LocalSettings, Settings
from agent.system.threads import Threads
from agent.tools.function_tools import ask_user, tool
from agent.transfer.imported import FileLinks
from agent.web.app import build_conversations
from agent.web.chat.answers import LiveRun, StoredRun
from agent.web.chat.choices import Choices
from agent.web.chat.conversations import Conversations, OtherModels
from agent.web.chat.expiry import ExpiredConversations
from agent.web.chat.importer import IMPORT_TIME, Importer
from agent.web.chat.links import ChatLinks, LinkChoices
from agent.web.chat.questions import QuestionId
from agent.web.chat.sent_message import MessageId
from agent.web.chat.visitor import Visitor
from tests.support.fakes import Act, Call, FakeConnection, PartsModel, Pause, Step, Words
from tests.support.message_rules import assert_accepted, hello
from tests.support.models import QWEN3, FakeLocalModels

ANN = Visitor(owner="ann")
SPEC = replace(QWEN3, prefill=True)
OTHER = replace(SPEC, id="other")
BEGIN = datetime(2030, 1, 1, tzinfo=UTC)
QUIET_S = 30.0
"""Virtual seconds without faults after which nothing may be in flight."""
GONE = "the process is gone"
REFUSED = (AgentError, ConnectionError)
T = TypeVar("T")
TRIES, MOST_LOOKS = 6, 2_000
OBEY_S = 10.0
"""Virtual seconds after which a process knows what others have done with its answer, and a stop has ended it."""
MOST_QUESTIONS = 60
"""The most questions that a page answers until its chat has none."""
SEEDS_AT_ONCE = 250
"""The seeds that a process plays before it takes others."""


class Network:
    """The way from one process to the store. A call can be late, or fail before or after the store has done it."""

    def __init__(self, rng: Random) -> None:
        self._rng, self.is_cut, self.is_calm, self.held_until = rng, False, False, 0.0
        self._unanswered, self._is_over = list[asyncio.Future[None]](), False

    async def call(self, work: Callable[[], Awaitable[Any]]) -> Any:
        """Do one call. A process that was killed never gets an answer."""
        await self._wait_if_cut()
        fate = 1.0 if self.is_calm else self._rng.random()
        if fate < 0.02:
            raise StoreUnavailable("the store did not hear the call")
        if fate < 0.25:
            await asyncio.sleep(self._rng.choice((0.001, 0.05, 0.5, 3.0)))
            await self._wait_if_cut()
        answer = await work()
        if self.is_cut or self.held_until:
            await self._wait_if_cut()
        if fate < 0.04:
            raise StoreUnavailable("the answer of the store was lost")
        return answer

    def release(self) -> None:
        """Let the tasks end that wait for an answer, because the simulation is over."""
        self._is_over = True
        for future in self._unanswered:
            if not future.done():
                future.set_exception(StoreUnavailable(GONE))

    async def _wait_if_cut(self) -> None:
        if self._is_over:
            raise StoreUnavailable(GONE)
        if (seconds := self.held_until - asyncio.get_running_loop().time()) > 0:
            await asyncio.sleep(seconds)
        if self.is_cut:
            self._unanswered.append(future := asyncio.get_running_loop().create_future())
            await future


class RemoteStore:
    """The calls of a store over a network, which several processes share."""

    is_shared = True

    def __init__(self, store: Any, network: Network) -> None:
        self._store, self._network = store, network

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._store, name)
        if name in ("runs", "links", "retention"):
            setattr(self, name, part := RemoteStore(value, self._network))
            return part
        if not iscoroutinefunction(value):
            return value

        def call(*args: Any, **kwargs: Any) -> Any:
            return self._network.call(lambda: value(*args, **kwargs))

        setattr(self, name, call)  # so that the next call needs no look
        return call


class Process:
    """One process of the page."""

    def __init__(self, world: "World") -> None:
        self.network = Network(world.rng)
        self.network.is_calm = world.is_calm
        store: Any = RemoteStore(world.store, self.network)
        settings = Settings(local=LocalSettings(cache_dir=world.folder), titles=world.has_titles)
        served = FakeLocalModels(served=(ServedModel(SPEC, Endpoint("http://127.0.0.1:1/v1")),))
        media = MediaStore(world.folder)
        self.page = build_conversations(settings, store, media, served, [note, pay, ask_user])
        self.links, in_use = ChatLinks(store, settings), self.page.list.is_in_use
        self.importer = Importer(settings, store, media, self.page.quota, in_use, lambda _: None)
        self.expired = ExpiredConversations(store, media, in_use, self.importer.is_storing, is_only=lambda: False)
        self.page.models.connect = world.connect  # type: ignore[method-assign]
        self._leases = asyncio.create_task(self.page.live_runs.keep_leases(store))
        self._asked = set[asyncio.Future[None]]()
        """For each page that waits for an answer, the future that ends its wait."""

    async def answer(self, work: Awaitable[T]) -> T:
        """Answer a request of a page. Raises `ConnectionError` if the process is killed meanwhile."""
        task, waiting = asyncio.ensure_future(work), asyncio.get_running_loop().create_future()
        task.add_done_callback(lambda _: waiting.done() or waiting.set_result(None))
        self._asked.add(waiting)
        if self.network.is_cut:
            waiting.set_result(None)
        await waiting
        self._asked.discard(waiting)
        if not task.done():
            task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # nobody waits for it
            raise ConnectionError
        return task.result()

    async def kill(self) -> None:
        """Let nothing of it reach the store any more, as after kill -9, then clean up what is left of it here."""
        self.network.is_cut = True
        for waiting in self._asked:
            if not waiting.done():
                waiting.set_result(None)
        self._leases.cancel()
        for live in [*self.page.live_runs._runs.values()]:
            live.run.cancel("shutdown")
        for task in [*self.page.live_runs._end_tasks]:
            task.cancel()

    async def restart(self) -> None:
        """End in order."""
        with suppress(AgentError):
            await self.page.aclose()
        self._leases.cancel()


_WORLDS = WeakKeyDictionary[asyncio.AbstractEventLoop, "World"]()
"""The world of each loop."""


@tool
async def note(text: str) -> str:
    """Note a text."""
    return await _noted(text)


async def _noted(text: str) -> str:
    world = _WORLDS[asyncio.get_running_loop()]
    world.called[text] += 1
    await asyncio.sleep(world.rng.choice((0, 0.2, 5)))
    return f"noted {text}"


@tool(needs_approval=True)
async def pay(text: str) -> str:
    """Pay, if the visitor allows it."""
    return await _noted(text)


class World:
    """The store, the processes, the model and the clock of one seed."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.rng, self.folder, self.is_calm = Random(seed), folder, False
        self._words, self._calls = count(), count()
        self._loop, self._now = asyncio.get_running_loop(), (0.0, BEGIN)
        self._storage = MemoryStorage(self.now)
        self.store = KeyValueStore(self._storage)
        self.called = Counter[str]()
        self.has_titles = self.rng.random() < 0.3
        self.imports = dict[str, int]()
        """By title: the messages that the chat of an import has."""
        self.models = list[PartsModel]()
        _WORLDS[asyncio.get_running_loop()] = self
        self.processes = [Process(self) for _ in range(2)]
        self.gone = list[Process]()

    def now(self) -> datetime:
        """Return the virtual time, which stands still while the loop works."""
        if self._now[0] != (at := self._loop.time()):
            self._now = at, BEGIN + timedelta(seconds=at)
        return self._now[1]

    async def connect(self, _owner: str, model: str | None, *_: Any) -> tuple[Any, bool]:
        """Return a connection to a model that says words which nobody said before."""
        spec = OTHER if model == OTHER.id else SPEC
        connection = FakeConnection([self._step() for _ in range(self.rng.randint(1, 3))], spec=spec)
        self.models.append(connection.played)
        return connection, False

    def text(self) -> str:
        return f"w{next(self._words)}; "

    def _step(self) -> Step:
        rng, items = self.rng, list[Any]()
        for _ in range(rng.randint(1, 3)):
            kind = rng.choice(("output_text", "output_text", "reasoning"))
            items.append(Words(kind, [self.text() for _ in range(rng.randint(1, 5))]))
            if rng.random() < 0.7:
                items.append(Pause(rng.choice((0.1, 0.1, 1.0, 1.0, 12.0, 12.0, 60.0))))
        fate = rng.random()
        if fate < 0.1:
            items.append(Act("fail"))
        elif fate < 0.4:
            calls = [f"c{next(self._calls)}" for _ in range(rng.randint(1, 2))]
            tools = [rng.choice(("note", "note", "pay", "ask_user")) for _ in calls]
            names = ["question" if tool == "ask_user" else "text" for tool in tools]
            made = [
                Call(tool, json.dumps({name: id_}), id_) for tool, name, id_ in zip(tools, names, calls, strict=True)
            ]
            waits = [Pause(2.0)] if rng.random() < 0.5 else []  # in which the calls are stored as events
            return Step([*items, *made, *waits], "tool_call")
        return Step(items, rng.choice(("stop", "stop", "stop", "length", None)))

    def process(self) -> Process:
        return self.rng.choice(self.processes)

    async def disturb_process(self) -> None:
        """Pause a process, so that it goes on with what others have ended, or kill it, or end it in order."""
        old = self.process()
        if self.rng.random() < 0.5:
            old.network.held_until = asyncio.get_running_loop().time() + self.rng.choice((3, 12, 20, 30))
            return
        self.processes[self.processes.index(old)] = Process(self)
        self.gone.append(old)
        await (old.kill() if self.rng.random() < 0.6 else old.restart())

    def check_runs(self) -> None:
        """Check that no process goes on for long with an answer that others have ended."""
        now = self.now().timestamp()
        for process in self.processes:
            if process.network.held_until + OBEY_S > asyncio.get_running_loop().time():
                continue
            for live in process.page.live_runs._runs.values():
                item = self._storage._items[ANN.owner].get(live.conversation_id)
                run = item.runs.get(live.run_id) if item is not None else None
                is_over = run is not None and run.ended_at is not None and run.ended_at + OBEY_S < now
                assert live.run.done or not is_over, "a process writes an answer that others have ended"

    def check_events(self) -> None:
        """Check the events of each run, and that no model was asked again for what it had begun to say."""
        for events in self._storage._events.values():
            values = [json.loads(event) for event in events]
            ends = [place for place, value in enumerate(values, 1) if value["type"] == "ended"]
            assert ends == [len(values)], "the end of an answer is not stored once, as its last event"
            texts = (str(value["content"]) for value in values if value["type"] == "output_text")
            words = Counter(word for text in texts for word in text.split())
            assert not words or max(words.values()) == 1, "the events of an answer have a text twice"
        for model in self.models:
            for step, before, after in zip(model.steps, model.sent, model.sent[1:], strict=False):
                assert not step.items or len(before) < len(after), "a model was asked again after its text"

    def check_chats(self, page: "Page") -> None:
        """Check that no deleted chat is back, that no revoked link opens, and that imported chats are whole."""
        now, items = self.now(), self._storage._items.get(ANN.owner, {})
        for id_, chat in page.chats.items():
            item = items.get(id_)
            assert not chat.is_deleted or item is None or not item.is_live(now), "a deleted chat is back"
            revoked = {digest_of(token) for token, is_open in chat.links.items() if is_open is False}
            assert not revoked & self._storage._links.keys(), "a revoked link opens"
        for item in items.values():
            title = item.conversation.title if item.conversation is not None else ""
            if title in self.imports and item.is_live(now):
                assert len(self._storage._entries[item.id]) == self.imports[title], "an imported chat is not whole"

    def check_erased(self, page: "Page") -> None:
        """Check that nothing is left of the chats that were deleted, and of imports that have not ended."""
        items = self._storage._items.get(ANN.owner, {})
        left = [id_ for id_, chat in page.chats.items() if chat.is_deleted and id_ in items]
        assert not left, "a deleted chat is not erased"
        assert all(item.is_live(self.now()) for item in items.values()), "a hidden chat is not erased"
        assert self._storage._entries.keys() == self._storage._owners.keys(), "messages of an erased chat are left"

    def has_later_run(self, conversation: str, run: str) -> bool:
        """Return True if an answer has begun in the conversation after the end of this run."""
        item = self._storage._items[ANN.owner].get(conversation)
        runs = item.runs if item is not None else {}
        ended_at = (runs[run].ended_at or 0.0) if run in runs else 0.0
        return any(one.begun_at >= ended_at for id_, one in runs.items() if id_ != run)

    def stored_words(self, conversation: str) -> set[str]:
        """Return the words that models have written in the conversation, as the events of its runs have them."""
        runs = self._storage._items[ANN.owner][conversation].runs
        events = (json.loads(text) for run in runs for text in self._storage._events[run] if '"output_text"' in text)
        return {word for one in events if one["type"] == "output_text" for word in _words(one["content"])}

    def calm(self) -> None:
        """Let nothing fail any more."""
        self.is_calm = True
        for process in self.processes:
            process.network.is_calm = True


@dataclass
class Chat:
    """A chat as its visitor knows it.

    `texts` and `replies`, by call, were acknowledged. `titles` are those that it can have, empty if the visitor has
    given none. `links` has True for an open link and False for a revoked one by its token, and None for one of which
    nobody knows, as `is_deleted` is None then.
    """

    texts: set[str] = field(default_factory=set[str])
    replies: dict[str, str] = field(default_factory=dict[str, str])
    titles: set[str] = field(default_factory=set[str])
    links: dict[str, bool | None] = field(default_factory=dict[str, bool | None])
    is_deleted: bool | None = False
    is_renaming: bool = False


class Page:
    """A page of a visitor on one conversation, which does what the real page does after failures."""

    def __init__(self, world: World) -> None:
        self._world, self._ids = world, count()
        self.conversation: str | None = None
        self.chats = defaultdict[str, Chat](Chat)
        self.imported = dict[str, str]()
        """The ids of the chats of imports that were acknowledged, by their titles."""
        self._stopped = set[str]()
        """The runs of other processes whose stop the store has acknowledged."""

    async def visit(self) -> None:
        """Send messages, stop, retry, edit and continue, while processes go."""
        for _ in range(self._world.rng.randint(1, 4)):
            is_shown_twice = self.conversation is not None and self._world.rng.random() < 0.15
            await asyncio.gather(*(self.act() for _ in range(1 + is_shown_twice)))
            if self._world.rng.random() < 0.6:
                await asyncio.sleep(self._world.rng.uniform(0, 6))
                await self._world.disturb_process()
            await self.finish()
            if self._world.rng.random() < 0.8:
                await self.answer_question()

    async def act(self) -> None:
        """Do one thing, and stop it perhaps."""
        world, rng = self._world, self._world.rng
        kind = rng.choice(("send", "send", "send", "retry", "edit", "continue", "undo"))
        with suppress(*REFUSED):
            if kind == "send" or self.conversation is None:
                await self._send()
            else:
                await self._again(kind)
        if self.conversation is not None and rng.random() < 0.25:
            await asyncio.sleep(rng.uniform(0, 3))
            await self._steer()
        if rng.random() < 0.3:
            await asyncio.sleep(rng.uniform(0, 5))
            with suppress(*REFUSED):
                await self._stop(world.process())
        if self.conversation is not None and rng.random() < 0.4:
            await asyncio.sleep(rng.uniform(0, 3))
            more = rng.choice((self._delete, self._link, self._link, self._rename, self._import))
            if (id_ := self.conversation) is not None:  # another act can have deleted it
                with suppress(*REFUSED):
                    await more(id_, world.process())

    async def _delete(self, conversation: str, process: Process) -> None:
        """Delete the chat, perhaps while an answer is being written, and undo it perhaps, there or elsewhere."""
        chat, rng = self.chats[conversation], self._world.rng
        if chat.is_deleted is not False:
            return
        chat.is_deleted = None
        await process.answer(process.page.list.delete(ANN.owner, conversation))
        chat.is_deleted = True
        if self.conversation == conversation:
            self.conversation = None
        if rng.random() < 0.5:
            await asyncio.sleep(rng.choice((0, 5, 50)))
            process, chat.is_deleted = self._world.process(), None
            await process.answer(process.page.list.restore(ANN.owner, conversation))
            chat.is_deleted = False
            self.conversation = self.conversation or conversation

    async def _link(self, conversation: str, process: Process) -> None:
        """Make a link, or revoke one."""
        links, rng = self.chats[conversation].links, self._world.rng
        opened = [token for token, is_open in links.items() if is_open]
        if not opened or rng.random() < 0.4:
            choices = LinkChoices(days=None, later=rng.random() < 0.5)
            token, _ = await process.answer(process.links.create(ANN.owner, conversation, choices))
            links[token] = True
        else:
            links[token := rng.choice(opened)] = None
            await process.answer(process.links.revoke(ANN.owner, conversation, digest_of(token)))
            links[token] = False

    async def _rename(self, conversation: str, process: Process) -> None:
        chat, title = self.chats[conversation], f"title {self._new_id()}"
        if chat.is_renaming:
            return
        chat.is_renaming = True
        if chat.titles:
            chat.titles.add(title)
        try:
            await process.answer(process.page.list.change(ANN.owner, conversation, title=title))
            chat.titles = {title}
        finally:
            chat.is_renaming = False

    async def _import(self, _: str, process: Process) -> None:
        """Store another chat, page by page, as an import does."""
        title, rng, last = f"import {self._new_id()}", self._world.rng, None
        pages = list[list[Entry]]()
        for _number in range(rng.randint(1, 3)):
            asked = Entry(id=new_id(), parent_id=last, message=ModelRequest([UserPromptPart(self._world.text())]))
            said = ModelResponse([TextPart(self._world.text())])
            answered = Entry(id=new_id(), parent_id=asked.id, message=said, note=Note(ended="stop"))
            pages.append([asked, answered])
            last = answered.id
        self._world.imports[title] = 2 * len(pages)

        async def come() -> AsyncIterator[Sequence[Entry]]:
            for page in pages:
                await asyncio.sleep(rng.choice((0, 0.2, 4)))
                yield page

        async def run() -> str:
            async with process.importer.place(ANN):
                return await process.importer.add(ANN, title, 1_000, come(), FileLinks(lambda _: None))

        self.imported[title] = await process.answer(run())

    async def _stop(self, process: Process) -> None:
        running = await process.answer(process.page.running.get(self.conversation, ANN.owner))
        if running is not None:
            await process.answer(running.stop())
            if isinstance(running, LiveRun) and not process.network.is_cut:
                await asyncio.sleep(OBEY_S)
                is_held = process.network.held_until + OBEY_S > asyncio.get_running_loop().time()
                assert running.run.done or process.network.is_cut or is_held, "a stopped answer goes on"
            self._stopped.update([running.run_id] if isinstance(running, StoredRun) and not running.is_ended else [])

    async def _steer(self) -> None:
        """Send the running answer a message, and send it as the next one if that answer does not take it."""
        text, id_, process = self._world.text(), self._new_id(), self._world.process()
        with suppress(*REFUSED):
            conversation = self.conversation or ""
            if await process.answer(process.page.steer(ANN, conversation, text, MessageId(id_))):
                self.chats[conversation].texts.add(text)
                if self._world.rng.random() < 0.7:
                    return  # else the page has not heard it
        with suppress(*REFUSED):
            await self._send(text, id_)

    async def _open_questions(self, id_: str) -> tuple[Conversation, str, dict[str, str]] | None:
        """Return the conversation, the run that waits, and the tools of the calls for which it waits, by their ids."""
        with suppress(NotFound):  # deleted meanwhile
            conversation = await self._world.store.get(id_, owner=ANN.owner)
            entries = await self._world.store.history(conversation)
            if not conversation.pending or entries[-1].note.ended != "suspended":
                return None
            calls = [part for part in entries[-1].message.parts if isinstance(part, ToolCallPart)]
            tools = {one.tool_call_id: one.tool_name for one in calls if one.tool_call_id in conversation.pending}
            return conversation, entries[-1].note.run_id, tools
        return None

    async def _reply(self, process: Process, conversation: str, question: QuestionId, tool: str) -> None:
        """Answer a question. A reply to the last one is stored before it is acknowledged."""
        reply = self._world.rng.choice(("Allow", "Allow", "Refuse")) if tool == "pay" else f"reply {self._new_id()}"
        asked = process.page.answer(ANN, conversation, reply, Choices(tools=True), question)
        if await process.answer(asked) is not None and tool == "ask_user":
            assert question.call not in self.chats[conversation].replies, "a question was answered twice"
            self.chats[conversation].replies[question.call] = reply

    async def answer_question(self, tries: int = TRIES) -> None:
        """Allow or refuse what a suspended answer asks, perhaps on two pages at once, until it is answered."""
        world = self._world
        for _ in range(tries):
            if self.conversation is None or (found := await self._open_questions(self.conversation)) is None:
                return
            conversation, asked, tools = found
            pages = [world.process() for _ in range(world.rng.choice((1, 2)))]
            for call, name in tools.items():
                given = [self._reply(one, conversation.id, QuestionId(asked, call), name) for one in pages]
                for one in await asyncio.gather(*given, return_exceptions=True):
                    if isinstance(one, BaseException) and not isinstance(one, REFUSED):
                        raise one
            if world.rng.random() < 0.3:
                await world.disturb_process()
            await self.finish()

    def _new_id(self) -> str:
        return f"{self._world.rng.getrandbits(128):032x}"

    async def _send(self, text: str = "", id_: str = "") -> None:
        """Send one message until it is acknowledged, perhaps twice at once, always with the same id."""
        world, others, is_new = self._world, None, not id_
        text, id_ = text or world.text(), id_ or self._new_id()
        if is_new and world.rng.random() < 0.3:
            others = OtherModels([Choices(model="other", tools=True)], each_from_own=world.rng.random() < 0.5)
        for number in range(TRIES):
            at_once = 2 if world.rng.random() < 0.1 else 1
            ids = [MessageId(id_, again=not is_new or number > 0 or place > 0) for place in range(at_once)]
            sent = [
                process.answer(self._sent(process.page, text, one, others))
                for one in ids
                for process in [world.process()]
            ]
            answers = await asyncio.gather(*sent, return_exceptions=True)
            for answer in answers:
                if isinstance(answer, BaseException) and not isinstance(answer, REFUSED):
                    raise answer
            if any(isinstance(answer, str) for answer in answers):
                conversation = next(answer for answer in answers if isinstance(answer, str))
                self.chats[conversation].texts.add(text)
                self.conversation = self.conversation or conversation
                return
            await self.finish()

    async def _sent(self, page: Conversations, text: str, message: MessageId, others: OtherModels | None) -> str:
        if found := await page.find_sent(ANN.owner, self.conversation, message):
            return found
        live = await page.send(ANN, self.conversation, {"text": text}, Choices(tools=True), None, message, others)
        if live is None or live.resumed:  # the text is a reply to a question, which is not stored before its result
            raise Conflict("a reply")
        return live.conversation_id

    async def _again(self, kind: str) -> None:
        world, process = self._world, self._world.process()
        page = process.page
        conversation = await world.store.get(self.conversation or "", owner=ANN.owner)
        asked = [entry for entry in await world.store.history(conversation) if _prompt_of(entry)]
        if not asked:
            return
        choices = Choices(tools=True)
        text = world.text()
        match kind:
            case "retry":
                await process.answer(page.retry(ANN, conversation.id, asked[-1].id, choices))
            case "undo":
                await process.answer(page.undo(ANN.owner, conversation.id, asked[-1].id))
            case "edit":
                await process.answer(page.edit(ANN, conversation.id, world.rng.choice(asked).id, text, choices))
                self.chats[conversation.id].texts.add(text)
            case _:
                await process.answer(page.continue_answer(ANN, conversation.id, asked[-1].id, text, choices))

    async def finish(self) -> None:
        """Wait for the end of the answer, and ask for the rest of one whose process was lost, as a page does."""
        for _ in range(4):
            if (id_ := self.conversation) is None or not (run := await self._ended_run(id_)):
                return
            assert run not in self._stopped, "a stopped answer goes on"
            found = await self._ask_for_rest(id_, run)
            for _ in range(TRIES):
                if any(isinstance(one, LiveRun) for one in found) or self._world.has_later_run(id_, run):
                    break
                await asyncio.sleep(1)  # the lost process can be one that does not know it yet
                found = await self._ask_for_rest(id_, run)
            else:
                assert not self._world.is_calm, f"nobody writes the rest of an answer: {found}"

    async def _ask_for_rest(self, conversation: str, run: str) -> Sequence[object]:
        """Ask one or two processes at once for the rest of an answer. Return the answers and refusals."""
        asked = [self._world.process() for _ in range(self._world.rng.choice((1, 1, 2)))]
        rest = [one.answer(one.page.finish_lost(ANN, conversation, run)) for one in asked]
        found = await asyncio.gather(*rest, return_exceptions=True)
        for one in found:
            if isinstance(one, BaseException) and not isinstance(one, REFUSED):
                raise one
        return found

    async def _ended_run(self, conversation: str) -> str:
        """Return the id of the run whose rest a page may ask for, or ""."""
        world, last = self._world, ""
        for number in range(MOST_LOOKS):
            process = world.process()
            world.check_runs()
            world.check_chats(self)
            with suppress(*REFUSED):
                running = await process.answer(process.page.running.get(conversation, ANN.owner))
                if running is None:
                    break
                last = running.run_id
            await asyncio.sleep(min(0.7 + number / 10, 3.0))
        else:
            raise AssertionError("an answer never ended")
        if not last:
            return ""
        with suppress(AgentError):
            events = await world.store.runs.events(last, owner=ANN.owner)
            return last if events and events[-1].value.get("goes_on") else ""
        return ""


def _prompt_of(entry: Entry) -> str:
    parts = entry.message.parts if isinstance(entry.message, ModelRequest) else ()
    return "".join(str(part.content) for part in parts if isinstance(part, UserPromptPart))


class _Loop(asyncio.BaseEventLoop):
    """An event loop without files, sockets and threads, whose timers end at once, in their order."""

    def __init__(self) -> None:
        super().__init__()
        self._now, self._selector = 0.0, self

    def time(self) -> float:
        return self._now

    def select(self, timeout: float | None) -> tuple[()]:
        """Let the time until the next timer pass."""
        if timeout is None:
            raise RuntimeError("nothing can happen any more, and the simulation is not over")
        self._now += timeout
        return ()

    def _process_events(self, event_list: object) -> None:
        """Do nothing, because no file is watched."""

    def _write_to_self(self) -> None:
        """Do nothing, because nothing waits."""


@contextmanager
def virtual_time() -> Iterator[Callable[[int, Path], int]]:
    """Give a function that plays the conversations of a seed, checks the laws, and returns how many there were."""
    clocks = [
        module for name, module in [*sys.modules.items()] if name.startswith("agent.") and "monotonic" in vars(module)
    ]
    wall_clocks = [
        (module, name)
        for known, module in [*sys.modules.items()]
        for name in ("now", "steady_now", "latest_now")
        if known.startswith("agent.") and vars(module).get(name) is getattr(values, name)
    ]
    with ExitStack() as stack:
        logging.disable(logging.ERROR)  # what fails on purpose
        stack.callback(logging.disable, logging.NOTSET)
        stack.enter_context(patch.object(Threads, "run", _in_the_loop))
        for module in clocks:
            stack.enter_context(patch.object(module, "monotonic", lambda: asyncio.get_running_loop().time()))
        for module, name in wall_clocks:
            stack.enter_context(patch.object(module, name, _now))
        yield _simulate


def _simulate(seed: int, folder: Path) -> int:
    with asyncio.Runner(loop_factory=_Loop) as runner:
        return runner.run(_played(seed, folder))


def _now() -> datetime:
    return _WORLDS[asyncio.get_running_loop()].now()


async def _in_the_loop(_: Threads, work: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Do the work of threads in their place, because the order in which threads end differs from run to run."""
    await asyncio.sleep(0)
    return work(*args, **kwargs)


async def _played(seed: int, folder: Path) -> int:
    world = World(seed, folder)
    pages = [Page(world) for _ in range(world.rng.randint(1, 3))]
    await asyncio.gather(*(page.visit() for page in pages))
    world.calm()
    await asyncio.gather(*(page.finish() for page in pages))
    await asyncio.gather(*(page.answer_question(MOST_QUESTIONS) for page in pages))
    for seconds in (QUIET_S, QUIET_S, 2 * IMPORT_TIME.total_seconds()):
        await asyncio.sleep(seconds)
        await world.processes[0].page.running.lost.end_all()
    assert not await world.store.runs.unfinished(), "an answer never ended"
    await world.processes[0].expired.delete(at=world.now())
    for page in pages:
        world.check_chats(page)
        world.check_erased(page)
        for id_, chat in page.chats.items():
            await _check(world, id_, chat)
        for title, id_ in page.imported.items():
            assert (await world.store.get(id_, owner=ANN.owner)).title == title
    world.check_events()
    assert not {call: times for call, times in world.called.items() if times > 1}, "a tool was called twice"
    for process in world.gone:
        process.network.release()
    for process in [*world.gone, *world.processes]:
        await process.restart()
    return sum(len(page.chats) for page in pages)


async def _check(world: World, id_: str, chat: Chat) -> None:
    """Check the laws of one conversation."""
    await _check_links(world, chat)
    try:
        conversation = await world.store.get(id_, owner=ANN.owner)
    except NotFound:
        assert chat.is_deleted is not False, "a chat is lost"
        return
    assert chat.is_deleted is not True, "a deleted chat is back"
    entries = await world.store.entries(conversation)
    assert not chat.titles or conversation.title in chat.titles, "the title of a visitor was replaced"
    replies = {
        part.tool_call_id: part.content
        for entry in entries
        for part in entry.message.parts
        if isinstance(part, ToolReturnPart) and part.tool_name == "ask_user"
    }
    unheard = {call: reply for call, reply in chat.replies.items() if replies.get(call) != reply}
    assert not unheard, f"an acknowledged reply was lost: {unheard}, {replies}"
    given = {str(getattr(part, "content", "")) for entry in entries for part in entry.message.parts}
    unsaid = {text for text in chat.texts if not any(text.strip() in one for one in given)}
    assert not unsaid, f"an acknowledged message was lost: {unsaid}"
    lost = world.stored_words(conversation.id) - {word for entry in entries for word in _said(entry)}
    assert not lost, f"text that the store had was lost: {lost}"
    _check_calls(world, conversation, entries)
    parents = {entry.parent_id for entry in entries}
    for leaf in [entry for entry in entries if entry.id not in parents]:
        path = await world.store.history(replace(conversation, head_id=leaf.id))
        words = Counter(word for entry in path for word in _said(entry))
        assert not {word: times for word, times in words.items() if times > 1}, "a text is stored twice"
        assert_accepted(to_openai(prepare_messages([*(entry.message for entry in path), hello()])))


def _check_calls(world: World, conversation: Conversation, entries: Sequence[Entry]) -> None:
    """Check that a visitor can find each call that a tool has got: a step with calls is never replaced."""
    by_id, shown = {entry.id: entry for entry in entries}, set[str]()
    for end in (conversation.head_id, *conversation.branches):
        while end is not None and end not in shown:
            shown.add(end)
            end = by_id[end].parent_id
    hidden = [part for id_, entry in by_id.items() if id_ not in shown for part in entry.message.parts]
    made = {part.tool_call_id for part in hidden if isinstance(part, ToolCallPart)} & world.called.keys()
    assert not made, f"calls of tools are on no branch: {made}"


async def _check_links(world: World, chat: Chat) -> None:
    """Check that a link opens until it is revoked or its chat is deleted."""
    for token, is_open in chat.links.items():
        try:
            opened = bool((await world.processes[0].links.open(token)).stored.begins)
        except NotFound:
            opened = False
        is_wanted = None if None in (is_open, chat.is_deleted) else is_open and not chat.is_deleted
        if is_wanted and not opened:  # the visitor can have undone all messages of a link to later ones
            link = await world.store.links.get(digest_of(token))
            head = link.head_id or (await world.store.get(link.conversation_id, owner=ANN.owner)).head_id
            is_wanted = None if head is None else True
        assert is_wanted in (None, opened), "a link is lost" if is_wanted else "a link opens that must not"


def _said(entry: Entry) -> list[str]:
    texts = [_prompt_of(entry)]
    if isinstance(entry.message, ModelResponse):
        texts += [part.content for part in entry.message.parts if isinstance(part, TextPart)]
    return [word for text in texts for word in _words(text)]


def _words(text: str) -> list[str]:
    return [word for word in text.split() if word.startswith("w")]


def play(seeds: Sequence[int]) -> tuple[int, float, dict[int, str]]:
    """Play these seeds. Return the number of conversations, the processor's seconds, and how seeds broke a law."""
    gc.freeze()  # what is imported is no garbage
    conversations, broken, began = 0, dict[int, str](), process_time()
    with TemporaryDirectory() as folder, virtual_time() as simulate:
        for seed in seeds:
            try:
                conversations += simulate(seed, Path(folder))
            except Exception as failure:
                broken[seed] = "".join(format_exception(failure))
    return conversations, process_time() - began, broken


def main(arguments: Sequence[str]) -> int:
    """Play one seed, or several in processes of their own. Return the exit status: 1 if a law was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.simulation", description=__doc__)
    parser.add_argument("seed", type=int, help="the first seed")
    parser.add_argument("count", type=int, nargs="?", default=1, help="how many seeds follow one another")
    given = parser.parse_args(arguments)
    seeds = range(given.seed, given.seed + given.count)
    began, parts = monotonic(), [seeds[at : at + SEEDS_AT_ONCE] for at in range(0, len(seeds), SEEDS_AT_ONCE)]
    with ProcessPoolExecutor(mp_context=get_context("spawn")) if len(parts) > 1 else nullcontext() as pool:
        played = [*(pool.map if pool else map)(play, parts)]
    for seed, said in sorted((one for _, _, broken in played for one in broken.items())):
        print(f"seed {seed}:\n{said}")
    conversations, seconds = sum(one[0] for one in played), sum(one[1] for one in played)
    wrong = sum(len(one[2]) for one in played)
    print(
        f"{conversations} conversations, {wrong} of {len(seeds)} seeds broke a law, {seconds:.1f} s of the processor,"
    )
    print(f"{monotonic() - began:.1f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
