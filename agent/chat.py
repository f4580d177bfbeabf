"""A conversation for scripts and notebooks: an agent together with its context.

A chat has its own event loop in one thread, and all its runs happen there. It therefore works the same in a plain
script, in a notebook with a running loop, and across several `asyncio.run` calls. Tools open their sessions and clients
only once. The agent's coroutine functions run in that loop, too.
"""

import asyncio
import logging
import threading
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, Self, Unpack

from agent.agent import Agent
from agent.context import Context
from agent.errors import AgentError, Busy, InputError, SingleRun
from agent.messages.openai import to_openai
from agent.messages.prompt import Prompt
from agent.responses import Response
from agent.result import RunOptions, RunResult
from agent.run import Run
from agent.runtime.loop_thread import LoopEnded, LoopThread
from agent.suspension import Reply
from agent.tools import Tool

log = logging.getLogger(__name__)

_MakeRun = Callable[[Agent], Run]


class Chat:
    """An agent and one conversation with it. Usable from any thread, for one run at a time.

    The conversation grows when a run ends with any reason but `error`: a cancelled, truncated or limited run keeps its
    partial messages. After an `error` the next run starts from the same context as the failed one.

    A second run during a run raises `Busy`, or waits for its turn with `queue=True`. With `single_run=True` every
    second run raises `SingleRun` before it does anything. `context` is a conversation to continue.

    Toolsets are opened once, at the first run. `close` closes them, the agent's clients and child processes, and the
    thread. `with` and `async with` call it. A chat that is never closed does not keep the program alive.
    """

    def __init__(
        self, agent: Agent, *, single_run: bool = False, queue: bool = False, context: Context | None = None
    ) -> None:
        self.agent = agent
        self.result: RunResult | None = None
        """The result of the last run."""
        self._context = context or Context()
        self._single_run, self._queue = single_run, queue
        self._used = self._closed = False
        self._starting = threading.Lock()
        self._home: LoopThread | None = None
        self._turn = asyncio.Lock()
        self._open = AsyncExitStack()
        self._agent_with_open_tools: Agent | None = None
        self._run: Run | None = None

    # The conversation

    @property
    def context(self) -> Context:
        """The conversation so far. `Chat(agent, context=...)` and `agent.ask(..., context=...)` continue it."""
        return self._context

    @property
    def messages(self) -> list[dict[str, Any]]:
        """A copy of the conversation so far in OpenAI's format, with the system message first."""
        return to_openai(self._context.messages, self.agent.system_message)

    def clear(self) -> None:
        """Remove all messages except the system message. Raises `Busy` during a run."""
        if self._turn.locked():
            raise Busy("This chat cannot be cleared while a run is going on: cancel it, or wait for its end.")
        self._context = replace(self._context, messages=())

    # Runs

    def query(self, prompt: Prompt, **options: Unpack[RunOptions]) -> Iterator[Response]:
        """Ask and yield the answer piece by piece. The run begins when the first piece is requested.

        `RunOptions` describes the `options`. Leaving the loop early cancels the run, which keeps its partial
        answer. Raises `Busy`, `SingleRun`, and `InputError` for an invalid prompt.
        """
        return self._pulled(self._question(prompt, options))

    def stream(self, prompt: Prompt, **options: Unpack[RunOptions]) -> AsyncIterator[Response]:
        """Do the same as `query`, for `async for` in any event loop."""
        return self._streamed(self._question(prompt, options))

    async def ask(self, prompt: Prompt, **options: Unpack[RunOptions]) -> RunResult:
        """Ask and wait for the whole answer. Raises as `query` does. Failures of a model or tool are in the result."""
        async with self._begun(self._question(prompt, options)) as (home, run, over):
            with suppress(LoopEnded):  # the chat was closed meanwhile, which ends the run first
                await home.submit(_waited(over))
        if run.refused is not None:
            raise run.refused
        assert run.result is not None
        return run.result

    def resume(self, reply: Reply) -> Iterator[Response]:
        """Answer the pending questions of the last run and yield the rest of its answer piece by piece.

        `reply` has the same form as for `Agent.resume`. With `single_run` this counts as the same run. Raises
        `InputError` if nothing is pending or the reply does not fit.
        """
        return self._pulled(self._answer(reply), same_run=True)

    def stream_resume(self, reply: Reply) -> AsyncIterator[Response]:
        """Do the same as `resume`, for `async for` in any event loop."""
        return self._streamed(self._answer(reply), same_run=True)

    def cancel(self, reason: str = "user_request") -> None:
        """Cancel the current run, if any, from any thread. Its partial answer is kept. See `Run.cancel`."""
        if (run := self._run) is not None:
            run.cancel(reason)

    # The end

    def close(self) -> None:
        """Cancel the current run, close the tools and clients, and end the thread. A second call does nothing."""
        if home := self._leave():
            with suppress(LoopEnded):
                home.wait(self._shut())
            home.close()

    async def aclose(self) -> None:
        """Do the same as `close` without blocking the caller's event loop."""
        if home := self._leave():
            with suppress(LoopEnded):
                await home.submit(self._shut())
            await asyncio.to_thread(home.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    # In the chat's own loop

    def _question(self, prompt: Prompt, options: RunOptions) -> _MakeRun:
        return lambda agent: agent.run(prompt, context=self._context, **options)

    def _answer(self, reply: Reply) -> _MakeRun:
        def make(agent: Agent) -> Run:
            if self.result is None or self.result.suspension is None:
                raise InputError("nothing in this chat waits for an answer")
            return agent.resume(self.result.suspension, reply)

        return make

    def _pulled(self, make: _MakeRun, *, same_run: bool = False) -> Iterator[Response]:
        home = self._started()
        run, over = home.wait(self._begin(make, same_run))
        seen = 0
        try:
            while news := home.wait(_wait_for_update(run, over, seen)):
                seen += len(news)
                yield from news
        except LoopEnded:  # the chat was closed meanwhile
            yield from run.responses[seen:]
        finally:
            run.cancel("client_disconnect")
            with suppress(LoopEnded):
                home.wait(_waited(over))

    async def _streamed(self, make: _MakeRun, *, same_run: bool = False) -> AsyncIterator[Response]:
        async with self._begun(make, same_run=same_run) as (home, run, over):
            seen = 0
            try:
                while news := await home.submit(_wait_for_update(run, over, seen)):
                    seen += len(news)
                    for response in news:
                        yield response
            except LoopEnded:  # the chat was closed meanwhile
                for response in run.responses[seen:]:
                    yield response

    @asynccontextmanager
    async def _begun(
        self, make: _MakeRun, *, same_run: bool = False
    ) -> AsyncGenerator[tuple[LoopThread, Run, "asyncio.Task[None]"]]:
        """Begin a run. Leaving the context cancels it and waits for its end."""
        home = self._started()
        run, over = await home.submit(self._begin(make, same_run))
        try:
            yield home, run, over
        finally:
            run.cancel("client_disconnect")
            with suppress(LoopEnded):
                await home.submit(_waited(over))

    async def _begin(self, make: _MakeRun, same_run: bool) -> tuple[Run, "asyncio.Task[None]"]:
        self._check(same_run=same_run)
        if self._turn.locked() and not self._queue:
            raise Busy(
                "A run of this chat is going on: wait for its end, cancel it, or make the chat with queue=True. "
                "For conversations at the same time, make a Chat for each; they may share the agent."
            )
        await self._turn.acquire()
        try:
            self._check(same_run=same_run)  # again: the chat can have been closed or used in the meantime
            run = make(await self._ready())
            self._used, self._run = True, run
            return run, asyncio.create_task(self._wait_until_done(run.start()))
        except BaseException:
            self._turn.release()
            raise

    def _check(self, *, same_run: bool) -> None:
        if self._closed:
            raise AgentError("This chat is closed. Its messages can still be read.")
        if self._single_run and self._used and not same_run:
            raise SingleRun(
                "This chat is for a single run (single_run=True) and has had it. Make another Chat for another run; "
                "to go on in one conversation, make it without single_run, or give its context to another."
            )

    async def _ready(self) -> Agent:
        """Return the agent with its toolsets open. If one cannot be opened, leave it to the run to report that."""
        if self._agent_with_open_tools is None:
            tools: list[Tool] = []
            try:
                for toolset in self.agent.toolsets:
                    tools += await self._open.enter_async_context(toolset.session())
                self._agent_with_open_tools = self.agent.with_tools(*tools)
            except BaseException as failure:
                await self._open.aclose()
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
        except InputError:  # a refused run does not count
            self._used = False
        finally:
            self._run = None
            self._turn.release()

    async def _shut(self) -> None:
        """Cancel the run and wait for its end. The loop closes the toolsets when it ends."""
        self.cancel()
        async with self._turn:
            pass

    # The thread

    def _started(self) -> LoopThread:
        with self._starting:
            self._check(same_run=True)
            if self._home is None:
                self._home = LoopThread(partial(_closed, self._open, self.agent))
                weakref.finalize(self, self._home.close)  # this also runs when the program ends
            return self._home

    def _leave(self) -> LoopThread | None:
        with self._starting:
            self._closed = True
            home, self._home = self._home, None
            return home


async def _closed(sessions: AsyncExitStack, agent: Agent) -> None:
    """Close the sessions and the agent of a chat. It holds no reference to the chat, so the chat can be freed."""
    try:
        await sessions.aclose()
    except Exception:
        log.exception("tools of a chat could not be closed")
    await agent.aclose()


async def _wait_for_update(run: Run, over: "asyncio.Task[None]", seen: int) -> Sequence[Response]:
    """Wait for the responses after the first `seen`. Return none once the run has ended and `Chat.result` is set."""
    while len(run.responses) == seen or run.refused:
        if run.done:
            await _waited(over)
            if run.refused is not None:
                raise run.refused
            return ()
        await run.wait_for_update(seen)
    return run.responses[seen:]


async def _waited(over: "asyncio.Task[None]") -> None:
    await asyncio.shield(over)
