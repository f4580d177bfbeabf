"""Explains keyword arguments that a function does not have: the argument that was meant, or the place where it belongs.

People know the names of other libraries, such as `instructions` for the system message.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from functools import wraps
from typing import Any, ParamSpec, TypeVar, cast

from agent.errors import InputError
from agent.i18n import _

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C", bound=type[Any])

_SYNONYMS: Sequence[tuple[str, str]] = (
    ("system_message", "system system_prompt instructions instruction system_instruction prompt_template developer"),
    ("id", "session_id session chat_id thread_id conversation_id user_id"),
    ("context", "ctx messages message_history history chat_history session_id conversation"),
    ("steps", "max_turns max_steps max_iterations recursion_limit request_limit turns"),
    ("seconds", "timeout max_seconds max_time time_limit max_execution_time"),
    ("timeout", "seconds timeout_seconds max_seconds"),
    ("tool_seconds", "tool_timeout"),
    ("retries", "max_retries num_retries retry"),
    ("tokens", "max_tokens total_tokens_limit token_limit max_total_tokens"),
    ("max_tokens", "num_predict max_output_tokens max_completion_tokens max_new_tokens"),
    ("dollars", "cost max_cost budget max_budget usd"),
    ("reasoning", "think thinking effort reasoning_effort thinking_budget"),
    ("prompt", "input question query user_prompt message text images"),
    ("tools", "functions toolsets toolset mcp_servers plugins"),
    ("agent", "model llm"),
    ("model", "llm model_name model_id chat_model name"),
    ("base_url", "api_base endpoint host url openai_api_base"),
    ("api_key", "key token apikey openai_api_key"),
    ("limits", "usage_limits"),
    ("store", "memory db database checkpointer storage"),
    ("needs_approval", "requires_approval require_confirmation"),
    ("name", "name_override tool_name"),
    ("options", "model_settings model_kwargs generation_config run_config settings"),
)
"""The names of this package, and what other libraries call the same."""

_PLACES = {
    **dict.fromkeys(
        ("model", "provider", "base_url", "api_key"), "Agent(model, provider=..., base_url=..., api_key=...)"
    ),
    "system_message": "Agent(model, system_message=...)",
    **dict.fromkeys(("tools", "limits"), "Agent(model, tools=[...], limits=Limits(...))"),
    **dict.fromkeys(("steps", "seconds", "retries", "dollars"), "Agent(model, limits=Limits(steps=..., seconds=...))"),
    **dict.fromkeys(("messages", "history"), "ask([*messages, prompt]) or ask(prompt, context=result.context)"),
    "session_id": "ask(prompt, context=result.context), or Chat(agent, store=..., id=...)",
    "context": "ask(prompt, context=result.context)",
    **dict.fromkeys(("id", "store"), "Chat(agent, store=..., id=...)"),
    **dict.fromkeys(
        ("reasoning", "temperature", "max_tokens", "options"), "ask(prompt, temperature=..., reasoning=...)"
    ),
    "prompt": "ask(prompt), with pictures and sound in a list",
    **dict.fromkeys(("stream", "streaming"), "async for response in agent.run(prompt)"),
    **dict.fromkeys(("description", "docstring", "args_schema", "parameters"), "the tool's docstring and type hints"),
}
"""The place of each argument, for people who pass it elsewhere."""


def meant_by(name: str, known: Sequence[str], others: Sequence[str] = ()) -> list[str]:
    """Return the sentence that says what an unknown argument may mean, if anything.

    `others` are known, too, but only misspellings of them are named, because `_PLACES` says how they are given.
    """
    meanings = [meaning for meaning, others in _SYNONYMS if name in others.split()]
    if found := next((one for one in meanings if one in known), None):
        return [_("Perhaps it is {names}.", names=found)]
    if place := next((_PLACES[one] for one in (name, *meanings) if one in _PLACES), None):
        return [f"{name} is given in another way: {place}."]
    close = get_close_matches(name, [*known, *others], 1)
    return [_("Perhaps it is {names}.", names=close[0])] if close else []


class WrongArgument(InputError, TypeError):
    """A function was called with an argument that it does not have. The message names the one that was meant."""


def explains_arguments(function: Callable[P, R]) -> Callable[P, R]:
    """Make calls with unknown arguments raise `WrongArgument`, with the argument that was meant."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except WrongArgument:
            raise
        except TypeError:
            signature = inspect.signature(function)
            if _fits(signature, args, kwargs):  # the function itself has raised it
                raise
            takes = [one.name for one in signature.parameters.values() if one.kind is not one.VAR_KEYWORD]
            unknown = next((name for name in kwargs if name not in takes and meant_by(name, takes)), None)
            unknown = unknown or next((name for name in kwargs if name not in takes), None)
            if unknown is None:
                raise
            owner = function.__qualname__.removesuffix(".__init__")
            raise wrong_argument(owner, unknown, [name for name in takes if name != "self"]) from None

    return call


def explains_fields(cls: C) -> C:
    """Do the same as `explains_arguments` for the constructor of a dataclass."""
    made = cast(Any, cls)
    made.__init__ = explains_arguments(made.__init__)
    return cls


def wrong_argument(owner: str, name: str, takes: Sequence[str]) -> WrongArgument:
    """Return the error for an argument that `owner` does not have."""
    sentences = [*meant_by(name, takes), f"{owner} has no argument {name!r}; it takes {', '.join(takes)}."]
    return WrongArgument(" ".join(sentences))


def _fits(signature: inspect.Signature, args: tuple[object, ...], kwargs: Mapping[str, object]) -> bool:
    try:
        signature.bind(*args, **kwargs)
    except TypeError:
        return False
    return True
