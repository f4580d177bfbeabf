"""A conversation for scripts and notebooks: an agent together with its context.

A chat has its own event loop in one thread, and all its runs happen there. It therefore works the same in a plain
script, in a notebook with a running loop, and across several `asyncio.run` calls. Tools open their sessions and clients
only once. The agent's coroutine functions run in that loop, too.
"""

import asyncio
import logging
import os
import threading
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Never, Self, Unpack, cast
from warnings import warn

from pydantic_ai.embeddings import EmbeddingModel

from agent.agent import Agent
from agent.chat_files import ChatFile, ChatIndex, SearchResult, files_in, search_files
from agent.context import Context
from agent.errors import AgentError, Busy, Conflict, InputError, SingleRun
from agent.keyword_arguments import ExplainsAttributes, explains_arguments, shown
from agent.messages.openai import to_openai
from agent.messages.prompt import Prompt
from agent.output import AnswerType, T
from agent.responses import Response
from agent.result import RunOptions, RunResult
from agent.runtime.arguments import read_context, read_embeddings, read_history
from agent.runtime.chat_history import ChatHistory, ChatVectors
from agent.runtime.loop_thread import LoopEnded, LoopThread
from agent.runtime.run import Run
from agent.suspension.suspended_run import Pending, Reply
from agent.tools.function_tools import Tool

BegunRun = tuple[Run, "asyncio.Task[None]"]
"""A run that has begun, and the task that ends once its chat has its result."""


@dataclass(frozen=True, slots=True)
class RunFollower:
    """Begins a run with `begin` in the loop of `thread`, and follows it. Leaving early cancels the run.

    A chat that is closed meanwhile ends the run first.
    """

    thread: Callable[[], LoopThread]
    begin: Callable[[], Coroutine[Any, Any, BegunRun]]

    def responses(self) -> Generator[Response]:
        """Yield the responses. Nothing begins before the first one is requested."""
        loop_thread = self.thread()
        run, completion = loop_thread.wait(self.begin())
        seen = 0
        try:
            while new_responses := loop_thread.wait(_wait_for_update(run, completion, seen)):
                seen += len(new_responses)
                yield from new_responses
        except LoopEnded:
            yield from run.responses[seen:]
        finally:
            _end(loop_thread, run, completion)

    async def responses_async(self) -> AsyncGenerator[Response]:
        """Do the same as `responses`, for `async for`."""
        async with self._run_in_loop() as (loop_thread, run, completion):
            seen = 0
            try:
                while new_responses := await loop_thread.submit(_wait_for_update(run, completion, seen)):
                    seen += len(new_responses)
                    for response in new_responses:
                        yield response
            except LoopEnded:
                for response in run.responses[seen:]:
                    yield response

    def result(self) -> RunResult:
        """Wait for the end and return the result. Raises `InputError` if the run was refused."""
        loop_thread = self.thread()
        run, completion = loop_thread.wait(self.begin())
        try:
            with suppress(LoopEnded):
                loop_thread.wait(_wait_for(completion))
        finally:
            _end(loop_thread, run, completion)
        return _result_of(run)

    async def result_async(self) -> RunResult:
        """Do the same as `result`, for `await`."""
        async with self._run_in_loop() as (loop_thread, run, completion):
            with suppress(LoopEnded):
                await loop_thread.submit(_wait_for(completion))
        return _result_of(run)

    @asynccontextmanager
    async def _run_in_loop(self) -> AsyncGenerator[tuple[LoopThread, Run, "asyncio.Task[None]"]]:
        """Begin a run. Leaving the context cancels it and waits for its end."""
        loop_thread = self.thread()
        run, completion = await loop_thread.submit(self.begin())
        try:
            yield loop_thread, run, completion
        finally:
            run.cancel("reader_left")
            with suppress(LoopEnded):
                await loop_thread.submit(_wait_for(completion))


class _Unread:
    """Responses of a run that say what to write where they are read wrongly (`fault`), or never asked for."""

    def __init__(self, call: str, fault: str) -> None:
        self._call, self._fault, self._has_begun = call, fault, False

    def __del__(self) -> None:
        if not self._has_begun:
            warn(f"{self._call} was never iterated, so nothing was sent", RuntimeWarning, stacklevel=2)

    if not TYPE_CHECKING:

        def __await__(self) -> Never:
            self._has_begun = True
            raise TypeError(self._fault)


class _Pieces(_Unread, Iterator[Response]):
    """The responses of a run, for `for`."""

    def __init__(self, pieces: Generator[Response], call: str, instead: str) -> None:
        super().__init__(call, f"{call} is for `for`, without `await` and `async`: write {instead}")
        self._pieces = pieces

    def __next__(self) -> Response:
        self._has_begun = True
        return next(self._pieces)

    def close(self) -> None:
        """Cancel the run, if it is going on."""
        self._has_begun = True
        self._pieces.close()

    if not TYPE_CHECKING:
        __aiter__ = _Unread.__await__


class _AsyncPieces(_Unread, AsyncIterator[Response]):
    """The same for `async for`."""

    def __init__(self, pieces: AsyncGenerator[Response], call: str, instead: str) -> None:
        super().__init__(call, f"{call} is for `async for`: write {instead}")
        self._pieces = pieces

    def __anext__(self) -> Awaitable[Response]:
        self._has_begun = True
        return self._pieces.__anext__()

    async def aclose(self) -> None:
        """Cancel the run, if it is going on."""
        self._has_begun = True
        await self._pieces.aclose()

    if not TYPE_CHECKING:
        __iter__ = _Unread.__await__


def _end(loop_thread: LoopThread, run: Run, completion: "asyncio.Task[None]") -> None:
    run.cancel("reader_left")
    with suppress(LoopEnded):
        loop_thread.wait(_wait_for(completion))


def _result_of(run: Run) -> RunResult:
    if run.refused is not None:
        raise run.refused
    assert run.result is not None
    return run.result


async def _wait_for_update(run: Run, completion: "asyncio.Task[None]", seen: int) -> Sequence[Response]:
    """Wait for the responses after the first `seen`. Return none once the run has ended and `Chat.result` is set."""
    while len(run.responses) == seen or run.refused:
        if run.done:
            await _wait_for(completion)
            if run.refused is not None:
                raise run.refused
            return ()
        await run.wait_for_update(seen)
    return run.responses[seen:]


async def _wait_for(completion: "asyncio.Task[None]") -> None:
    await asyncio.shield(completion)


log = logging.getLogger(__name__)

_MakeRun = Callable[[Agent], Run]


class Chat(ExplainsAttributes):
    """An agent and one conversation with it. Usable from any thread, for one run at a time.

    The conversation grows when a run ends with any reason but `error`: a cancelled, truncated or limited run keeps its
    partial messages. After an `error` the next run starts from the same context as the failed one.

    A second run during a run raises `Busy`, or waits for its turn with `queue=True`. With `single_run=True` (or
    `enforce_single_run`, its name in Koog) every second run raises `SingleRun` before it does anything. `context` is a
    conversation to continue.
    `Chat("name")` is `Chat(Agent("name"))`.

    `Chat(agent, store="sqlite:///chats.db", id="customer-42")` stores the conversation message by message and continues
    the one that has this id, also in another process. `store` can also be `json:folder`, `redis://...`,
    `postgresql://...`, or `memory:` for this process alone. Without `id`, a random one is made. Each run continues from
    what is stored at its beginning. If another process writes during a run, the run ends with an error that is a
    `Conflict`: nothing is overwritten. The stored chats belong to the owner `agent.history.PROGRAM`, which no visitor
    of the page can be.

    `embeddings` makes `search` compare meanings, too: "openai:text-embedding-3-small", the URL of a server such as
    "http://127.0.0.1:8080/v1#model", or an `EmbeddingModel` of pydantic-ai. That server gets the text of the files. By
    default it is EMBEDDINGS in the environment, and "" is none. The vectors are kept and deleted with the chat.

    A forked process begins with the conversation so far, and with a thread, connections and toolsets of its own.

    Toolsets are opened once, at the first run. `close` closes them, the agent's clients and child processes, and the
    thread. `with` and `async with` call it. A chat that is never closed does not keep the program alive.
    """

    @explains_arguments
    def __init__(
        self,
        agent: Agent | str,
        *,
        single_run: bool = False,
        enforce_single_run: bool = False,
        queue: bool = False,
        context: Context | None = None,
        store: str | None = None,
        id: str | None = None,
        embeddings: str | EmbeddingModel | None = None,
    ) -> None:
        if not isinstance(cast(object, agent), Agent | str):
            raise InputError(f"a chat takes an Agent or the name of a model, not {shown(agent)}")
        self.agent = Agent(agent) if isinstance(agent, str) else agent
        self.result: RunResult | None = None
        """The result of the last run."""
        self._history = read_history(store, id, context)
        embedder = read_embeddings(embeddings)
        self._vectors = ChatVectors(embedder, self._history) if embedder else None
        self._index = ChatIndex()
        self._context = Context(session_id=self._history.id) if self._history else read_context(context)
        self._single_run, self._queue = single_run or enforce_single_run, queue
        self._again: dict[str, Any] = {}  # the options of the last run that resuming it needs, too
        self._has_run = self._closed = False
        self._open_nothing()

    # The conversation

    @property
    def id(self) -> str:
        """The id of the conversation. With a store, `Chat(agent, store=..., id=...)` continues it."""
        return self._context.session_id

    @property
    def context(self) -> Context:
        """The conversation so far. `Chat(agent, context=...)` and `agent.ask(..., context=...)` continue it."""
        self._ensure_loaded()
        return self._context

    @property
    def pending(self) -> Sequence[Pending]:
        """The questions and approvals that the conversation waits with. `resume` answers them, also after a limit.

        A new prompt gives them up: the model reads that their calls were not answered.
        """
        self._notice_fork()
        self._ensure_loaded()
        if self.result is not None:
            return self.result.pending
        stored = self._history.suspension if self._history is not None else None
        return stored.pending if stored is not None else ()

    @property
    def messages(self) -> list[dict[str, Any]]:
        """A copy of the conversation so far in OpenAI's format, with the system message first."""
        return to_openai(self.context.messages, self.agent.system_message)

    @property
    def files(self) -> dict[str, ChatFile]:
        """The files of the conversation by name: of prompts, of tools and of the model. `clear` removes them."""
        return files_in(self.context.messages)

    def search(self, query: str, *, limit: int = 10) -> SearchResult:
        """Return the best passages of the documents and texts among `files`. Raises `InputError`.

        They are found by keywords and, with `embeddings`, also by vectors. The first search makes the vectors of all
        passages, which takes a request for each 64. If that fails, the result has the passages found by keywords. The
        words of the files stay in memory for the next search, until `clear`.
        """
        search = search_files(self.files.values(), query, limit=limit, index=self._index, vectors=self._vectors)
        return self._ensure_thread().wait(search)

    def clear(self) -> None:
        """Remove all messages except the system message, also from the store. Raises `Busy` during a run."""
        self._notice_fork()
        if self._run_lock.locked():
            raise Busy("This chat cannot be cleared while a run is going on: cancel it, or wait for its end.")
        if self._history is not None:
            self._ensure_thread().wait(self._history.delete())
        if self._vectors is not None:
            self._vectors.forget()
        self._index = ChatIndex()  # a search that is going on keeps the old one until its end
        self._context, self.result = replace(self._context, messages=()), None

    # Runs

    @explains_arguments
    def query(
        self, prompt: Prompt, *, output: AnswerType[T] = None, **options: Unpack[RunOptions]
    ) -> Iterator[Response]:
        """Ask and yield the answer piece by piece. The run begins when the first piece is requested.

        `output` and `options` are as for `Agent.run`. Leaving the loop early cancels the run, which keeps its partial
        answer. Raises `Busy`, `SingleRun`, and `InputError` for an invalid prompt.
        """
        pieces = self._follow(self._new_run(prompt, options, output)).responses()
        return _Pieces(
            pieces, "chat.query(...)", "await chat.ask(prompt), or async for response in chat.stream(prompt)"
        )

    @explains_arguments
    def stream(
        self, prompt: Prompt, *, output: AnswerType[T] = None, **options: Unpack[RunOptions]
    ) -> AsyncIterator[Response]:
        """Do the same as `query`, for `async for` in any event loop."""
        pieces = self._follow(self._new_run(prompt, options, output)).responses_async()
        return _AsyncPieces(
            pieces, "chat.stream(...)", "async for response in chat.stream(prompt), or chat.query(prompt)"
        )

    @explains_arguments
    def say(self, prompt: Prompt, *, output: AnswerType[T] = None, **options: Unpack[RunOptions]) -> RunResult[T]:
        """Ask, wait, and return the whole answer, as in `chat.say("Hello").text`. `ask` is the same for `await`.

        Raises as `query` does. Failures of a model or tool are in the result.
        """
        return cast(RunResult[T], self._follow(self._new_run(prompt, options, output)).result())

    @explains_arguments
    async def ask(self, prompt: Prompt, *, output: AnswerType[T] = None, **options: Unpack[RunOptions]) -> RunResult[T]:
        """Do the same as `say`, for `await` in any event loop."""
        return cast(RunResult[T], await self._follow(self._new_run(prompt, options, output)).result_async())

    @explains_arguments
    def resume(self, reply: Reply, *, changed_ok: bool = False, output: AnswerType[T] = None) -> Iterator[Response]:
        """Answer the `pending` questions of the last run and yield the rest of its answer piece by piece.

        A stored chat can be resumed in another process, also after a limit. The arguments are as for
        `Agent.resume`. With `single_run` this counts as the same run. Raises `InputError` if nothing is pending
        or the reply does not fit, `SuspensionError` if the agent has changed, and `Conflict` if another process was
        first.
        """
        pieces = self._follow(self._resumed_run(reply, changed_ok, output), same_run=True).responses()
        return _Pieces(pieces, "chat.resume(...)", "async for response in chat.stream_resume(reply), then chat.result")

    @explains_arguments
    def stream_resume(
        self, reply: Reply, *, changed_ok: bool = False, output: AnswerType[T] = None
    ) -> AsyncIterator[Response]:
        """Do the same as `resume`, for `async for` in any event loop."""
        pieces = self._follow(self._resumed_run(reply, changed_ok, output), same_run=True).responses_async()
        return _AsyncPieces(
            pieces, "chat.stream_resume(...)", "async for response in chat.stream_resume(reply), or chat.resume(reply)"
        )

    def cancel(self, reason: str = "user_request") -> None:
        """Cancel the current run, if any, from any thread. Its partial answer is kept. See `Run.cancel`."""
        if (run := self._run) is not None:
            run.cancel(reason)

    # The end

    def close(self) -> None:
        """Cancel the current run, close the tools and clients, and end the thread. A second call does nothing."""
        if loop_thread := self._detach_thread():
            with suppress(LoopEnded):
                loop_thread.wait(self._cancel_and_wait())
            loop_thread.close()

    async def aclose(self) -> None:
        """Do the same as `close` without blocking the caller's event loop."""
        if loop_thread := self._detach_thread():
            with suppress(LoopEnded):
                await loop_thread.submit(self._cancel_and_wait())
            await asyncio.to_thread(loop_thread.close)

    def __reduce__(self) -> Never:
        raise InputError(
            "a chat cannot be pickled, because it holds connections and a thread: pass on chat.context.to_json(), or "
            "make Chat(agent, store=..., id=chat.id) in the other process"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    # In the chat's own loop

    def _new_run(self, prompt: Prompt, options: RunOptions, output: Any) -> _MakeRun:
        if "context" in options:
            raise InputError("a chat has its own context: write Chat(agent, context=...) to continue another one")
        if self._history is not None:
            if options.get("journal") is not None:
                raise InputError("a chat with a store saves its messages itself: leave the journal out")
            options = {**options, "journal": self._history}

        def make(agent: Agent) -> Run:
            self._again = {name: value for name, value in options.items() if name in ("model", "tools", "headers")}
            return agent.run(prompt, context=self._context, output=output, **options)

        return make

    def _resumed_run(self, reply: Reply, changed_ok: bool, output: Any) -> _MakeRun:
        def make(agent: Agent) -> Run:
            stored = self._history.suspension if self._history is not None else None
            suspended = stored if self.result is None else self.result.suspension
            if suspended is None:
                raise InputError("nothing in this chat waits for an answer")
            if not isinstance(suspended, str):
                suspended = agent.seals.seal(suspended)  # it has the id of the run, which the ledger lets pass once
            journal = self._history
            return agent.resume(suspended, reply, journal=journal, changed_ok=changed_ok, output=output, **self._again)

        return make

    def _follow(self, make: _MakeRun, *, same_run: bool = False) -> RunFollower:
        return RunFollower(self._ensure_thread, partial(self._begin_run, make, same_run))

    async def _begin_run(self, make: _MakeRun, same_run: bool) -> BegunRun:
        self._check(same_run=same_run)
        if self._run_lock.locked() and not self._queue:
            raise Busy(
                "A run of this chat is going on: wait for its end, cancel it, or make the chat with queue=True. "
                "For conversations at the same time, make a Chat for each; they may share the agent."
            )
        await self._run_lock.acquire()
        try:
            self._check(same_run=same_run)  # again: the chat can have been closed or used in the meantime
            waited = same_run and (self.result is not None and self.result.suspension is not None)
            waited = waited or (same_run and self._history is not None and self._history.suspension is not None)
            await self._load()
            if waited and self.result is None and self._history is not None and self._history.suspension is None:
                raise Conflict(
                    f"The question that the chat {self.id!r} waited with was answered elsewhere meanwhile, or the chat "
                    "went on there. The next message continues from what is stored now."
                )
            run = make(await self._open_agent())
            if same_run and self._history is not None:
                await self._history.claim()
            self._has_run, self._run = True, run
            return run, asyncio.create_task(self._wait_until_done(run.start()))
        except BaseException:
            self._run_lock.release()
            raise

    def _check(self, *, same_run: bool) -> None:
        if self._closed:
            raise AgentError("This chat is closed. Its messages can still be read.")
        if self._single_run and self._has_run and not same_run:
            raise SingleRun(
                "This chat is for a single run (single_run=True) and has had it. Make another Chat for another "
                "run; to go on in one conversation, make it without single_run, or give its context to another."
            )

    def _ensure_loaded(self) -> None:
        if self._history is not None and not self._history.is_loaded:
            self._ensure_thread().wait(self._load(again=False))

    async def _load(self, *, again: bool = True) -> None:
        """Load the stored conversation if it is new or another process has changed it."""
        if self._history is not None and (loaded := await self._history.load(again=again)) is not None:
            self._context, self.result = loaded, None

    async def _open_agent(self) -> Agent:
        """Return the agent with its toolsets open. If one cannot be opened, leave it to the run to report that."""
        if self._agent_with_open_tools is None:
            tools: list[Tool] = []
            try:
                for toolset in self.agent.toolsets:
                    tools += await self._open_toolsets.enter_async_context(toolset.session())
                self._agent_with_open_tools = self.agent.with_tools(*tools).with_vectors(self._vectors)
            except BaseException as failure:
                await self._open_toolsets.aclose()
                if not isinstance(failure, Exception):
                    raise
                return self.agent
        return self._agent_with_open_tools

    async def _wait_until_done(self, run: Run) -> None:
        """Wait for the end of the run. Only then update the conversation and let the next run begin."""
        try:
            self.result = await run
            if self.result.finish_reason != "error":
                self._context = self.result.context
            elif self._history is not None:
                self._history.undo_run()
        except InputError:  # a refused run does not count
            self._has_run = False
            if self._history is not None:
                await self._history.release()
        finally:
            self._run = None
            self._run_lock.release()

    async def _cancel_and_wait(self) -> None:
        """Cancel the run and wait for its end. The loop closes the toolsets when it ends."""
        self.cancel()
        async with self._run_lock:
            pass

    # The thread

    def _open_nothing(self) -> None:
        self._pid = os.getpid()
        self._starting = threading.Lock()
        self._loop_thread: LoopThread | None = None
        self._run_lock = asyncio.Lock()
        self._open_toolsets = AsyncExitStack()
        self._agent_with_open_tools: Agent | None = None
        self._run: Run | None = None

    def _notice_fork(self) -> None:
        """Begin afresh in a forked process, which has no threads and must not use the connections of its parent."""
        if self._pid != os.getpid():
            self._open_nothing()
            if self._history is not None:
                self._history = self._history.reopened()

    def _ensure_thread(self) -> LoopThread:
        self._notice_fork()
        with self._starting:
            self._check(same_run=True)
            if self._loop_thread is None:
                self._loop_thread = LoopThread(partial(_close, self._open_toolsets, self.agent, self._history))
                weakref.finalize(self, self._loop_thread.close)  # this also runs when the program ends
            return self._loop_thread

    def _detach_thread(self) -> LoopThread | None:
        self._notice_fork()
        with self._starting:
            self._closed = True
            loop_thread, self._loop_thread = self._loop_thread, None
            return loop_thread


async def _close(sessions: AsyncExitStack, agent: Agent, history: ChatHistory | None) -> None:
    """Close what a chat has opened. It holds no reference to the chat, so the chat can be freed."""
    try:
        await sessions.aclose()
    except Exception:
        log.exception("tools of a chat could not be closed")
    await agent.aclose()
    if history is not None:
        await history.aclose()
