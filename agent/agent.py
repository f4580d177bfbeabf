"""An agent: an immutable definition that any number of runs may share."""

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from typing import Any

from agent.context import Context
from agent.errors import InputError, SuspensionError
from agent.guardrails import Limits
from agent.prompt import Prompt, to_messages
from agent.providers import Connection, named
from agent.result import OPTIONS, Journal, Options, Plan, RunResult
from agent.run import Run
from agent.seals import Seals
from agent.suspension import Reply, Resumption, Suspension, answered
from agent.tools import Function, Tool, Toolset, as_tool
from agent.toolsets import by_name


class Agent:
    """A model, a system message, tools, limits. No conversation lives in it: history is what is passed in.

    The model is a name with its provider, `Agent("my-model", provider="vllm", base_url="http://.../v1")`, or what
    `agent.connect` returned. `seals` are for runs that are suspended. Raises `UnknownModel`, and `InputError` for two
    tools of one name or a limit in dollars where the model's price is not known; touches no network.
    """

    def __init__(
        self,
        model: str | Connection,
        *,
        provider: str | None = None,
        base_url: str | None = None,
        api_key: str | None = None,
        system_message: str = "",
        tools: Sequence[Tool | Function | Toolset] = (),
        limits: Limits | None = None,
        seals: Seals | None = None,
    ) -> None:
        self.connection = named(model, provider, base_url, api_key) if isinstance(model, str) else model
        self.system_message = system_message
        self.toolsets = tuple(item for item in tools if isinstance(item, Toolset))
        self.tools = by_name([as_tool(item) for item in tools if not isinstance(item, Toolset)])
        self.limits = limits or Limits()
        self.seals = seals or Seals()
        if self.limits.dollars is not None and self.connection.spec.price is None:
            raise InputError(
                f"a limit in dollars cannot be kept: the price of {self.connection.spec.label} is not known"
            )

    def run(
        self,
        prompt: Prompt,
        *,
        context: Context | None = None,
        options: Options | None = None,
        journal: Journal | None = None,
        **more: Any,
    ) -> Run:
        """Begin a run: iterate over it, await it, or cancel it. Raises `InputError` before any network.

        `more` are the fields of `Options`, for those who write `run(..., reasoning=True)`.
        """
        plan = self._plan(replace(options or Options(), **more))
        return Run(plan, to_messages(prompt), context or Context(), journal)

    async def ask(self, prompt: Prompt, *, context: Context | None = None, **more: Any) -> RunResult:
        """Run to the end. Never raises for what a model or a tool did: see `finish_reason`."""
        return await self.run(prompt, context=context, **more)

    def resume(
        self, suspended: str | Suspension, reply: Reply, *, journal: Journal | None = None, changed_ok: bool = False
    ) -> Run:
        """Go on with a suspended run: a run of its own, which begins with the results of the calls that waited.

        `suspended` is a result's `suspension`, which is good once, or a `Suspension` of one's own making, which is
        trusted. `reply` is the answer to the one question, or by call id a text, `Approve()` or `Refuse()` to each.
        Raises `InputError` where an answer is missing, unknown or empty, and `SuspensionError`, whose `reason` says
        what is wrong with what is suspended; what only comes to light later (it was used, the tools of a server are
        others) is raised by the run. Nothing is used up by what is refused. An agent with another model or other
        tools resumes only where that is `changed_ok`.
        """
        sealed = isinstance(suspended, str)
        suspension = self.seals.open(suspended) if sealed else suspended
        answers = answered(suspension.pending, reply)
        spec = self.connection.spec
        if suspension.model not in ("", spec.id) and not changed_ok:
            raise SuspensionError(f"This run was suspended with {suspension.model}, not {spec.id}.", reason="model")
        resumed = Resumption(suspension=suspension, answers=answers, sealed=sealed, changed_ok=changed_ok)
        context = Context(session_id=suspension.session_id, messages=suspension.messages)
        return Run(self._plan(OPTIONS.validate_python(suspension.options)), [], context, journal, resumed=resumed)

    def with_tools(self, *tools: Tool) -> "Agent":
        """This agent with opened tools in the place of its toolsets: who opened them closes them."""
        other = copy(self)
        other.tools, other.toolsets = by_name([*self.tools.values(), *tools]), ()
        return other

    def _plan(self, options: Options) -> Plan:
        return Plan(
            connection=self.connection,
            system_message=self.system_message,
            tools=self.tools,
            toolsets=self.toolsets,
            limits=self.limits,
            options=options,
            seals=self.seals,
        )

    async def aclose(self) -> None:
        """Release the connections."""
        await self.connection.aclose()

    async def __aenter__(self) -> "Agent":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
