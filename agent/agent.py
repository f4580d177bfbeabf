"""An agent: an immutable definition that any number of runs can share."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import copy
from functools import partial
from typing import Any, Never, Unpack
from weakref import WeakSet

from agent.arguments import (
    check_addresses,
    check_model,
    read_base_options,
    read_context,
    read_limits,
    read_suspended,
    read_tools,
)
from agent.context import Context
from agent.documents.long_documents import LongDocument
from agent.documents.vectors import Vectors
from agent.errors import InputError
from agent.events import Observers
from agent.fetch import GUARD, Guard
from agent.keyword_arguments import ExplainsAttributes, explains_arguments, shown
from agent.limits import Limits
from agent.local.connect_by_name import connect_by_name
from agent.messages.adapt import check_prompt
from agent.messages.continuation import unfinished_text
from agent.messages.prompt import Prompt, check_question, fetch_urls, to_messages
from agent.models.catalog import AUTO, Capabilities
from agent.output import AnswerType, T, read_output
from agent.providers import Connection, OwnsServers
from agent.result import DEFAULTS, Journal, Options, RunOptions, RunPlan, RunResult, checked_options
from agent.run import Run
from agent.runtime.tool_sessions import tools_by_name
from agent.suspension import SCHEMA, Reply, Resumption, Suspension, match_answers
from agent.suspension.seals import Seals
from agent.suspension.sentences import refused
from agent.telemetry import Telemetry
from agent.tools import Function, Tool, Toolset


class _User:
    """Stands for an agent and its copies, as a user of a connection."""


_USERS: dict[int, WeakSet[_User]] = {}
"""The agents that have used a connection and are not closed, by the id of the connection, which they keep alive."""

_CLOSING: set[asyncio.Task[None]] = set()
"""Tasks that close agents. A loop itself would not keep them alive."""


class Agent(ExplainsAttributes):
    """A model, a system message, tools and limits. It stores no conversation: the caller passes the history in.

    The model is a name with its provider, `Agent("my-model", provider="vllm", base_url="http://.../v1")`, or the return
    value of `agent.connect`. `Agent("auto")` is the model that the page would choose on this machine: the first run
    looks for it, and starts a small one if there is nothing else. `capabilities` such as
    `{"tools": "native", "context_tokens": 8192}` correct what is assumed about a model that is given by name. `seals`
    sign suspended runs. `telemetry` emits tracing spans (None: use SWITCHBOARD_TELEMETRY). `guard` decides which URLs
    pictures can be fetched from. The constructor does not use the network. A tool can be named, as in
    "preset:currency". Raises `UnknownModel`, and `ConfigError` for a tool that has an unknown name. Raises `InputError`
    for a wrong argument, for two tools of one name, and for a limit in dollars if the model's price is unknown.

    `async with` closes the connections of its event loop, and `with` ends the model servers that the agent started,
    unless another agent with the same connection has used it and is not closed.
    """

    @explains_arguments
    def __init__(
        self,
        model: str | Connection,
        *,
        provider: str | None = None,
        base_url: str | None = None,
        api_key: str | None = None,
        capabilities: Capabilities | None = None,
        system_message: str = "",
        tools: Sequence[Tool | Function | Toolset | str] = (),
        limits: Limits | None = None,
        seals: Seals | None = None,
        telemetry: Telemetry | None = None,
        guard: Guard = GUARD,
    ) -> None:
        check_model(model)
        if capabilities and not isinstance(model, str):
            raise InputError("capabilities belong to a model that is given by its name; a connection has its own spec")
        connection = (
            connect_by_name(model, provider, base_url, api_key, capabilities) if isinstance(model, str) else model
        )
        self.connection, self._user = connection, _User()
        self.system_message = system_message
        found, self.toolsets = read_tools(tools)
        self.tools = tools_by_name(found)
        self.limits = read_limits(limits)
        self.documents: Sequence[LongDocument] | None = None
        self.vectors: Vectors | None = None
        self.seals, self.guard = seals or Seals(), guard
        self.telemetry = telemetry or Telemetry.from_env()
        if self.limits.dollars is not None and self.connection.spec.price is None:
            raise InputError(
                f"a limit in dollars cannot be kept: the price of {self.connection.spec.label} is not known"
            )

    @explains_arguments
    def run(
        self,
        prompt: Prompt,
        *,
        context: Context | None = None,
        output: AnswerType[T] = None,
        **options: Unpack[RunOptions],
    ) -> Run[T]:
        """Create a run: iterate over it, await it, or cancel it. Raises `InputError` before any network access.

        `output` is the type of the answer, such as a pydantic model: see `RunResult.output` and `Run.partial_output`.
        An answer that does not fit is repaired once; then the run fails. `RunOptions` describes the `options`.
        """
        plan, journal = self._read_options(options, output)
        messages = to_messages(prompt)
        check_prompt(messages, self.connection.spec)
        check_addresses(messages, self.guard)
        return Run(plan, messages, read_context(context), journal, observers=self._observers())

    @explains_arguments
    async def ask(
        self,
        prompt: Prompt,
        *,
        context: Context | None = None,
        output: AnswerType[T] = None,
        **options: Unpack[RunOptions],
    ) -> RunResult[T]:
        """Run to the end. Failures of a model or a tool are never raised: see `finish_reason`.

        With a type as `output`, `result.output` is the answer as a value of that type.
        `RunOptions` describes the `options`. Raises `InputError` for an invalid prompt, also if a picture on the web
        cannot be fetched.
        """
        return await self.run(prompt, context=context, output=output, **options)

    @explains_arguments
    def continue_answer(self, context: Context, **options: Unpack[RunOptions]) -> Run:
        """Continue the unfinished text that the conversation ends with. The new run has only the rest of the answer.

        The text is unfinished if its run was cancelled, failed, or reached the length limit. `RunOptions` describes the
        `options`. Raises `InputError` if there is no such text, or if the model cannot continue one
        (`connection.spec.continues`): then ask it for the rest with `run`.
        """
        context = read_context(context)
        if not unfinished_text(context.messages):
            raise InputError("the conversation does not end with an unfinished text")
        if not self.connection.spec.continues:
            raise InputError(f"{self.connection.spec.label} cannot continue a text; ask it for the rest in a message")
        plan, journal = self._read_options(options)
        return Run(plan, [], context, journal, observers=self._observers())

    @explains_arguments
    def answer(self, context: Context, **options: Unpack[RunOptions]) -> Run:
        """Take the next step of a conversation that ends with a prompt, or with the results of tool calls.

        `RunOptions` describes the `options`. Raises `InputError` if the conversation ends in another way.
        """
        context = read_context(context)
        try:
            check_question(context.messages)
        except InputError as error:
            raise InputError(f"the conversation does not end with a prompt or with results of tools: {error}") from None
        plan, journal = self._read_options(options)
        return Run(plan, [], context, journal, observers=self._observers())

    @explains_arguments
    def resume(
        self,
        suspended: str | Suspension | RunResult,
        reply: Reply,
        *,
        journal: Journal | None = None,
        changed_ok: bool = False,
        output: AnswerType[T] = None,
    ) -> Run[T]:
        """Continue a suspended run. The new run begins with the results of the pending calls.

        `suspended` is a suspended result or its `suspension`, which can be used once, or a `Suspension` that the caller
        built, which is trusted. `reply` answers the single question, or maps each call id to a text, `Approve()` or
        `Refuse()`. Raises `InputError` if an answer is missing, unknown or empty. Raises `SuspensionError` with a
        `reason` if the suspension is invalid. The run raises what is found only later: the suspension was used before,
        or a server has other tools. A refused call uses nothing up. An agent with another model or other tools
        resumes only with `changed_ok`. `output` is as for `run`: give the type again.
        """
        given = read_suspended(suspended)
        sealed = isinstance(given, str)
        suspension = self.seals.open(given) if sealed else given
        if suspension.schema != SCHEMA:
            raise refused("schema")
        answers = match_answers(suspension.pending, reply)
        spec = self.connection.spec
        if suspension.model not in ("", spec.id) and spec.id != AUTO and not changed_ok:
            raise refused("model", then=suspension.model, now=spec.id)
        resumed = Resumption(suspension=suspension, answers=answers, sealed=sealed, changed_ok=changed_ok)
        context = Context(session_id=suspension.session_id, messages=suspension.messages)
        plan = self._plan(suspension.options, output=output)
        return Run(plan, [], context, journal, resumed=resumed, observers=self._observers())

    def with_tools(self, *tools: Tool) -> "Agent":
        """Return a copy with these opened tools instead of its toolsets. The caller that opened them closes them."""
        other = copy(self)
        other.tools, other.toolsets = tools_by_name([*self.tools.values(), *tools]), ()
        return other

    def with_documents(self, *documents: LongDocument) -> "Agent":
        """Return a copy that knows the long documents of its conversation, and does not look for them in messages."""
        other = copy(self)
        other.documents = documents
        return other

    def with_vectors(self, vectors: Vectors | None) -> "Agent":
        """Return a copy whose tool `search_files` also finds passages by vectors."""
        other = copy(self)
        other.vectors = vectors
        return other

    def _observers(self) -> Observers:
        return Observers([self.telemetry()] if self.telemetry is not None else [])

    def _read_options(self, options: RunOptions, output: object = None) -> tuple[RunPlan, Journal | None]:
        """Return the plan of a run with these options, and its journal."""
        given: dict[str, Any] = {**options}
        base, journal = given.pop("options", None), given.pop("journal", None)
        if journal is not None and not hasattr(journal, "write"):
            raise InputError(f"journal must be an object with the method write(message, note), not {shown(journal)}")
        return self._plan(given, read_base_options(base) or DEFAULTS, output), journal

    def _plan(self, given: Mapping[str, Any], base: Options = DEFAULTS, output: object = None) -> RunPlan:
        self.connection.check()
        _USERS.setdefault(id(self.connection), WeakSet()).add(self._user)
        return RunPlan(
            connection=self.connection,
            system_message=self.system_message,
            tools=self.tools,
            toolsets=self.toolsets,
            limits=self.limits,
            options=checked_options(given, base, self.connection.spec),
            seals=self.seals,
            prepare=partial(fetch_urls, guard=self.guard),
            documents=self.documents,
            vectors=self.vectors,
            output=read_output(output),
        )

    def __copy__(self) -> "Agent":
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        return other

    def __reduce__(self) -> Never:
        raise InputError(
            "an agent cannot be pickled or copied deeply, because it holds connections: make it in the other process "
            "with Agent(...), and pass on result.context.to_json() or the id of a stored Chat"
        )

    async def aclose(self) -> None:
        """Close the connections, unless another agent that is not closed has used them, too."""
        if self._is_last_user():
            await self.connection.aclose()

    def _is_last_user(self) -> bool:
        """Return True if no other agent uses the connection. This agent then does not use it any more."""
        users = _USERS.get(id(self.connection), WeakSet())
        users.discard(self._user)
        if not users:
            _USERS.pop(id(self.connection), None)
        return not users

    def __enter__(self) -> "Agent":
        return self

    def __exit__(self, *_: object) -> None:
        """End the model servers that this agent has started. Clients are closed with the event loop of their runs.

        In a running event loop, such as a notebook's, a task of that loop closes the rest.
        """
        if not self._is_last_user():
            return
        with suppress(RuntimeError):  # no loop runs here
            closing = asyncio.get_running_loop().create_task(self.connection.aclose())
            _CLOSING.add(closing)
            closing.add_done_callback(_CLOSING.discard)
        if isinstance(self.connection, OwnsServers):
            self.connection.end_servers()

    async def __aenter__(self) -> "Agent":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
