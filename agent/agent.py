"""An agent: an immutable definition that any number of runs can share."""

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Never, Unpack, cast
from weakref import WeakSet

from agent.context import Context
from agent.errors import InputError, ToolError, UnknownModel
from agent.events import Observers
from agent.fetch import GUARD, Guard
from agent.files.long_documents import LongDocument
from agent.files.ranking import Vectors
from agent.keyword_arguments import ExplainsAttributes, explains_arguments, shown
from agent.limits import Limits
from agent.messages.adapt import check_prompt
from agent.messages.compaction import Compaction
from agent.messages.prompt import Prompt, check_question, fetch_urls, to_messages
from agent.messages.repair import unfinished_text
from agent.models.catalog import AUTO, Capabilities, load_catalog, with_capabilities
from agent.output import AnswerType, T, read_output
from agent.providers.connection import (
    Connection,
    Endpoint,
    ModelChoice,
    OwnsServers,
    base_url_variable,
    check_base_url,
    connect,
    default_endpoint,
)
from agent.providers.stand_ins import StandIns
from agent.result import DEFAULTS, Journal, Options, RunOptions, RunPlan, RunResult, shared_options
from agent.runtime.arguments import (
    check_addresses,
    check_models,
    read_base_options,
    read_compaction,
    read_context,
    read_limits,
    read_models,
    read_suspended,
    read_tools,
)
from agent.runtime.children import AgentCall
from agent.runtime.run import Run
from agent.settings import load_settings
from agent.suspension.seals import Seals
from agent.suspension.suspended_run import SCHEMA, Reply, Resumption, Suspension, match_answers, refused
from agent.telemetry import Telemetry
from agent.tools.function_tools import Function, Tool, Toolset, tools_by_name

LONGEST_CALL_SECONDS = 24 * 3600.0
"""Seconds that the call of an agent can take. The limits of its run, and of the run above it, are shorter."""


class _User:
    """Stands for an agent and its copies, as a user of a connection."""


_USERS: dict[int, WeakSet[_User]] = {}
"""The agents that have used a connection and are not closed, by the id of the connection, which they keep alive."""

_CLOSING: set[asyncio.Task[None]] = set()
"""Tasks that close agents. A loop itself would not keep them alive."""


async def _close(connections: Sequence[Connection]) -> None:
    await asyncio.gather(*(one.aclose() for one in connections))


class Agent(ExplainsAttributes):
    """A model, a system message, tools and limits. It stores no conversation: the caller passes the history in.

    The model is a name with its provider, `Agent("my-model", provider="vllm", base_url="http://.../v1")`, or the return
    value of `agent.connect`. `Agent("auto")` is the model that the page would choose on this machine: the first run
    looks for it, and starts a small one if there is nothing else. In a list, as in `Agent(["openai:gpt-6-luna",
    "anthropic:claude-sonnet-5-5", "auto"])`, each model stands in if those before it are not available: a run asks the
    next one as long as nothing of the answer has come. `capabilities` such as `{"tools": "native", "context_tokens":
    8192}` correct what is assumed about a model that is given by name. `seals` sign suspended runs. `telemetry` emits
    tracing spans (None: use SWITCHBOARD_TELEMETRY). `guard` decides which URLs pictures can be fetched from.
    `compaction` makes long conversations fit the model (None: all is sent). The constructor does not use the network. A
    tool can be named, as in "preset:currency". Raises `UnknownModel`, and `ConfigError` for a tool that has an unknown
    name. Raises `InputError` for a wrong argument, for two tools of one name, and for a limit in dollars if the model's
    price is unknown.

    `async with` closes the connections of its event loop, and `with` ends the model servers that the agent started,
    unless another agent with the same connection has used it and is not closed.
    """

    @explains_arguments
    def __init__(
        self,
        model: ModelChoice,
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
        compaction: Compaction | None = None,
    ) -> None:
        models = read_models(model)
        own = {"provider": provider, "base_url": base_url, "api_key": api_key, "capabilities": capabilities or None}
        if len(models) > 1 and (named := next((name for name, value in own.items() if value is not None), None)):
            raise InputError(f"{named} belongs to one model, not to a list: put connect(spec, endpoint) into the list")
        if capabilities and not isinstance(models[0], str):
            raise InputError("capabilities belong to a model that is given by its name; a connection has its own spec")
        self._user, self._known = _User(), dict[str | int, Connection]()
        self.connections = self._connect(models, provider, base_url, api_key, capabilities)
        self.system_message = system_message
        found, self.toolsets = read_tools(tools)
        self.tools = tools_by_name(found)
        self.limits = read_limits(limits)
        self.documents: Sequence[LongDocument] | None = None
        self.vectors: Vectors | None = None
        self.has_search = False
        self.count_search: Callable[[], AbstractContextManager[object]] | None = None
        self.seals, self.guard = seals or Seals(), guard
        self.telemetry = telemetry or Telemetry.from_env()
        self.compaction = read_compaction(compaction)
        check_models(self.connections, self.limits)

    @property
    def connection(self) -> Connection:
        """The connection to the model, or to the first of several."""
        return self.connections[0]

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
        check_prompt(messages, plan.connection.spec)
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
        plan, journal = self._read_options(options)
        spec = plan.connection.spec
        if not spec.continues:
            raise InputError(f"{spec.label} cannot continue a text; ask it for the rest in a message")
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
        model: ModelChoice | None = None,
        tools: Sequence[Tool | Function | Toolset | str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Run[T]:
        """Continue a suspended run. The new run begins with the results of the pending calls.

        `suspended` is a suspended result or its `suspension`, which can be used once, or a `Suspension` that the caller
        built, which is trusted. `reply` answers the single question, or maps each call id to a text, `Approve()` or
        `Refuse()`. Raises `InputError` if an answer is missing, unknown or empty. Raises `SuspensionError` with a
        `reason` if the suspension is invalid. The run raises what is found only later: the suspension was used before,
        or a server has other tools. A refused call uses nothing up. An agent with another model or other tools
        resumes only with `changed_ok`. `output`, `model`, `tools` and `headers` are as for `run`: give them again. Of
        several models, the one that was asked last goes on.
        """
        given = read_suspended(suspended)
        sealed = isinstance(given, str)
        suspension = self.seals.open(given) if sealed else given
        if suspension.schema != SCHEMA:
            raise refused("schema")
        answers = match_answers(suspension.pending, reply)
        agent = self._with(model, tools)
        for name in suspension.handed:
            agent, headers = copy(agent._colleague(name)), None  # they are for the agent that handed over
        ids = [one.spec.id for one in agent.connections]
        same = next((id_ for id_ in (suspension.model, AUTO) if id_ in ids), None)
        if same is None and suspension.model and not changed_ok:
            raise refused("model", then=suspension.model, now=ids[0])
        agent.connections = agent.connections[ids.index(same) if same else 0 :]
        resumed = Resumption(suspension=suspension, answers=answers, sealed=sealed, changed_ok=changed_ok)
        context = Context(session_id=suspension.session_id, messages=suspension.messages)
        plan = agent._plan({**suspension.options, **({"headers": headers} if headers else {})}, output=output)
        plan = replace(plan, limits=self.limits, seals=self.seals)
        return Run(plan, [], context, journal, resumed=resumed, observers=self._observers())

    @explains_arguments
    def as_tool(self, description: str, *, name: str = "ask_agent", handoff: bool = False) -> Tool:
        """Return this agent as a tool of another one: `Agent(..., tools=[researcher.as_tool("...", name="research")])`.

        `description` tells the other model when to use the agent. A call gives it a task, and its answer is the result,
        with the files of its run. It sees nothing of the conversation. Its run is a child: its steps, tokens, cost and
        time also count for the limits of the run above, a cancellation ends both, and if it waits for people, so does
        the run above. With `handoff`, the call ends the turn of the other agent instead: this agent goes on with the
        same conversation and the same limits, and answers. Raises `InputError` for a wrong name or description. Who
        made the agent closes it.
        """
        if not isinstance(cast(object, description), str) or not description.strip():
            raise InputError(
                "as_tool takes a text that tells the other model when to ask this agent, such as "
                f'as_tool("Finds sources on the web.", name="research"), not {shown(description)}'
            )

        async def ask(task: str) -> Any:
            """Ask the agent.

            Args:
                task: What to do, with all that is needed for it. The agent sees nothing of this conversation.
            """
            return await self._answer_call(task)

        async def hand_over() -> str:
            AgentCall.current().hand_over(self._plan)
            return "This agent has taken over. It answers the user now."

        function: Function = hand_over if handoff else ask
        return _AgentTool(function, name, LONGEST_CALL_SECONDS, description=description, agent=self)

    async def _answer_call(self, task: str) -> Any:
        """Run as a child of the run that calls this agent as a tool. Return the result of the call."""
        call = AgentCall.current()
        call.check_depth()
        if (waiting := call.resumed) is not None:
            run = self.resume(*waiting, changed_ok=call.changed_ok)
        else:
            run = self.run(task)
        result = await run.below(call)
        if result.suspension is not None:
            call.suspend(self.seals.open(result.suspension))
        if result.failed or result.finish_reason == "cancelled":
            raise ToolError("\n\n".join(filter(None, [result.text, result.note.detail])))
        return [result.text, *result.files] if result.files else result.text

    async def _write(self, instructions: str, text: str, call: AgentCall, max_tokens: int | None) -> str:
        """Return what the model answers to the text in a run below the call's run, with its headers."""
        writer = self._with(None, [])
        writer.system_message, writer.compaction, writer.documents = instructions, None, ()
        given = call.caller.plan.options
        options = replace(DEFAULTS, headers=given.headers, timeout=given.timeout, max_tokens=max_tokens)
        result = await writer.run(text, options=options).below(call)
        return result.checked().text

    def _colleague(self, name: str) -> "Agent":
        """Return the agent that has taken over by this tool. Raises `SuspensionError` if there is none now."""
        found = self.tools.get(name)
        if not isinstance(found, _AgentTool):
            raise refused("tools", changed=f"{name!r} is gone")
        return found.agent

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

    def with_search(
        self, has_search: bool, count: Callable[[], AbstractContextManager[object]] | None = None
    ) -> "Agent":
        """Return a copy whose model's provider can search the web, if it offers that.

        `count` counts a search while it is entered, or raises `Limited`. See `ModelRequests`.
        """
        other = copy(self)
        other.has_search, other.count_search = has_search, count
        return other

    def _observers(self) -> Observers:
        return Observers([self.telemetry()] if self.telemetry is not None else [])

    def _read_options(self, options: RunOptions, output: object = None) -> tuple[RunPlan, Journal | None]:
        """Return the plan of a run with these options, and its journal."""
        given: dict[str, Any] = {**options}
        base, journal = given.pop("options", None), given.pop("journal", None)
        if journal is not None and not hasattr(journal, "write"):
            raise InputError(f"journal must be an object with the method write(message, note), not {shown(journal)}")
        agent = self._with(given.pop("model", None), given.pop("tools", None))
        return agent._plan(given, read_base_options(base) or DEFAULTS, output), journal

    def _with(self, model: object, tools: object) -> "Agent":
        """Return a copy for one run with these models and tools; None: those of this agent."""
        other = copy(self)
        if model is not None:
            other.connections = self._connect(read_models(model))
            check_models(other.connections, self.limits)
        if tools is not None:
            found, other.toolsets = read_tools(tools)
            other.tools = tools_by_name(found)
        return other

    def _connect(self, models: Sequence[str | Connection], *how: Any) -> tuple[Connection, ...]:
        """Return the connections to these models. Each name is connected once, `how` is as for `connect_by_name`."""
        for one in models:
            if not isinstance(one, str):
                self._known[id(one)] = one
            elif one not in self._known:
                self._known[one] = connect_by_name(one, *(how or (None, None)))
        return tuple(self._known[one if isinstance(one, str) else id(one)] for one in models)

    def _plan(self, given: Mapping[str, Any], base: Options = DEFAULTS, output: object = None) -> RunPlan:
        connection = StandIns(self.connections) if len(self.connections) > 1 else self.connection
        connection.check()
        for one in self.connections:
            _USERS.setdefault(id(one), WeakSet()).add(self._user)
        return RunPlan(
            connection=connection,
            system_message=self.system_message,
            tools=self.tools,
            toolsets=self.toolsets,
            limits=self.limits,
            options=shared_options(given, base, [one.spec for one in self.connections]),
            seals=self.seals,
            prepare=partial(fetch_urls, guard=self.guard),
            documents=self.documents,
            vectors=self.vectors,
            has_search=self.has_search,
            count_search=self.count_search,
            output=read_output(output),
            compaction=self.compaction,
            write=self._write,
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
        await _close(self._last_used())

    def _last_used(self) -> list[Connection]:
        """Return the connections that no other agent uses. This agent then does not use them any more."""
        for id_ in map(id, self._known.values()):
            users = _USERS.get(id_, WeakSet())
            users.discard(self._user)
            if not users:
                _USERS.pop(id_, None)
        return [one for one in self._known.values() if id(one) not in _USERS]

    def __enter__(self) -> "Agent":
        return self

    def __exit__(self, *_: object) -> None:
        """End the model servers that this agent has started. Clients are closed with the event loop of their runs.

        In a running event loop, such as a notebook's, a task of that loop closes the rest.
        """
        if not (connections := self._last_used()):
            return
        with suppress(RuntimeError):  # no loop runs here
            loop = asyncio.get_running_loop()
            closing = loop.create_task(_close(connections))
            _CLOSING.add(closing)
            closing.add_done_callback(_CLOSING.discard)
        for one in connections:
            if isinstance(one, OwnsServers):
                one.end_servers()

    async def __aenter__(self) -> "Agent":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


@dataclass(frozen=True)
class _AgentTool(Tool):
    """An agent as a tool."""

    agent: Agent = field(kw_only=True)


_OWN_SERVERS = ("vllm", "llama.cpp")
"""Providers with servers that this machine can start."""


def connect_by_name(
    model: str,
    provider: str | None,
    base_url: str | None,
    api_key: str | None = None,
    capabilities: Capabilities | None = None,
) -> Connection:
    """Return the connection to a model by its name, as `Catalog.find` reads it.

    `auto` is the model that the page would choose on this machine, or the first model at `base_url`. `capabilities`
    count more than what the catalogue says about the model.

    If the model has open weights and no server is named, this machine serves it from its first request on. Raises
    `UnknownModel` if no server for it is known, or if this machine cannot serve it.
    """
    is_auto = model.strip() == AUTO and provider is None
    if capabilities and is_auto:
        raise InputError("capabilities belong to a model with a name of its own")
    if is_auto:
        return _connect_later(base_url, api_key)
    try:
        spec = load_catalog().find(model, provider)
    except UnknownModel as error:
        if not base_url or provider is not None:
            raise
        raise UnknownModel(
            f'a model at an address of your own needs the kind of its server: Agent({model!r}, provider="vllm", '
            f"base_url=...). {error}"
        ) from None
    spec = with_capabilities(spec, capabilities or {})
    if base_url:
        return connect(spec, Endpoint(base_url, api_key, is_own_key=bool(api_key)))
    if spec.provider in _OWN_SERVERS and not os.environ.get(base_url_variable(spec.provider)):
        from agent.local.connection import LocalConnection  # late, because few programs start a server

        return LocalConnection(spec, load_settings().local)
    usual = default_endpoint(load_catalog().providers[spec.provider])
    return connect(spec, replace(usual, api_key=api_key or usual.api_key, is_own_key=bool(api_key)))


def _connect_later(base_url: str | None, api_key: str | None) -> Connection:
    settings = load_settings().local
    if base_url:
        check_base_url(base_url)
        settings = replace(settings, vllm_base_url=base_url.rstrip("/"), vllm_api_key=api_key)
    from agent.local.connection import AutoConnection  # late, because few programs start a server

    return AutoConnection(settings)
