"""An agent: an immutable definition that any number of runs may share."""

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from typing import Any

from agent.context import Context
from agent.guardrails import Limits
from agent.prompt import Prompt, to_messages
from agent.providers import Connection, named
from agent.result import Journal, Options, Plan, RunResult
from agent.run import Run
from agent.tools import Function, Tool, Toolset, as_tool
from agent.toolsets import by_name


class Agent:
    """A model, a system message, tools, limits. No conversation lives in it: history is what is passed in.

    The model is a name with its provider, `Agent("my-model", provider="vllm", base_url="http://.../v1")`, or what
    `agent.connect` returned. Raises `UnknownModel`; touches no network.
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
    ) -> None:
        self.connection = named(model, provider, base_url, api_key) if isinstance(model, str) else model
        self.system_message = system_message
        self.toolsets = tuple(item for item in tools if isinstance(item, Toolset))
        self.tools = by_name([as_tool(item) for item in tools if not isinstance(item, Toolset)])
        self.limits = limits or Limits()

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
        plan = Plan(
            connection=self.connection,
            system_message=self.system_message,
            tools=self.tools,
            toolsets=self.toolsets,
            limits=self.limits,
            options=replace(options or Options(), **more),
        )
        return Run(plan, to_messages(prompt), context or Context(), journal)

    async def ask(self, prompt: Prompt, *, context: Context | None = None, **more: Any) -> RunResult:
        """Run to the end. Never raises for what a model or a tool did: see `finish_reason`."""
        return await self.run(prompt, context=context, **more)

    def with_tools(self, *tools: Tool) -> "Agent":
        """This agent with opened tools in the place of its toolsets: who opened them closes them."""
        other = copy(self)
        other.tools, other.toolsets = by_name([*self.tools.values(), *tools]), ()
        return other

    async def aclose(self) -> None:
        """Release the connections."""
        await self.connection.aclose()

    async def __aenter__(self) -> "Agent":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
