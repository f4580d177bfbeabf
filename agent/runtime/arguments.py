"""Reads the arguments of `Agent` and `Chat`. A wrong one gets a message that names the argument or type that was meant.

Everything here happens before any network access.
"""

import inspect
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import cast

from pydantic_ai.embeddings import EmbeddingModel
from pydantic_ai.messages import ImageUrl, ModelMessage

from agent.context import Context
from agent.errors import ConfigError, InputError
from agent.fetch import Guard
from agent.history import STORE_KINDS, new_id
from agent.keyword_arguments import shown
from agent.limits import Limits
from agent.messages.compaction import Compaction
from agent.messages.prompt import prompt_parts
from agent.models.catalog import AUTO
from agent.providers.connection import Connection, Embedder, connect_embedder
from agent.result import Options, RunResult
from agent.runtime.chat_history import ChatHistory
from agent.runtime.loop_thread import StoreAddress
from agent.suspension.suspended_run import Suspension
from agent.tools.function_tools import Function, Tool, Toolset, as_tool

LONGEST_ID = 200
"""The most characters of a chat's id."""


def read_models(model: object) -> list[str | Connection]:
    """Return the models of a list, or the one that was given. Raises `InputError` unless each is a name or connection.

    The `connection` of each is known only later: see `check_models`.
    """
    if not isinstance(model, list | tuple):
        return [_check_model(model)]
    models = [_check_model(one) for one in cast(Sequence[object], model)]
    if not models:
        raise InputError('the list of models is empty: write Agent(["openai:gpt-6-luna", "auto"]), the first one first')
    return models


def _check_model(model: object) -> str | Connection:
    """Return the value. Raises `InputError` unless it is a name or a connection."""
    if isinstance(model, str) or (hasattr(model, "spec") and hasattr(model, "model")):
        return cast("str | Connection", model)
    given = "None; is a variable of the environment not set?" if model is None else shown(model)
    raise InputError(
        f'the model must be a name such as "openai:gpt-6-luna" or the return value of connect(...), not {given}'
    )


def check_models(connections: Sequence[Connection], limits: Limits) -> None:
    """Raise `InputError` for a model that is there twice, and for a limit in dollars on one without a price."""
    seen: list[object] = []
    for one in connections:
        spec, endpoint = one.spec, getattr(one, "endpoint", None)
        key: object = one if endpoint is None and spec.id != AUTO else (spec.id, endpoint)
        if key in seen:
            raise InputError(f"{spec.id} is twice in the list of models: a model cannot stand in for itself")
        seen.append(key)
        if limits.dollars is not None and spec.price is None:
            raise InputError(f"a limit in dollars cannot be kept: the price of {spec.label} is not known")


def read_limits(limits: object) -> Limits:
    """Return the limits, or those by default for None. Raises `InputError` for anything else."""
    if limits is None:
        return Limits()
    if isinstance(limits, Limits):
        return limits
    meant = ""
    if isinstance(limits, Mapping):
        items = cast(Mapping[object, object], limits).items()
        meant = f": write limits=Limits({', '.join(f'{name}={shown(value)}' for name, value in items)})"
    raise InputError(f"limits takes an object of the class Limits, not {shown(cast(object, limits))}{meant}")


def read_compaction(compaction: object) -> Compaction | None:
    """Return the compaction. Raises `InputError` for anything else."""
    if isinstance(compaction, Compaction | None):
        return compaction
    raise InputError(f"compaction takes a Compaction such as Compaction(at=0.85, keep=6), not {shown(compaction)}")


def read_context(context: object) -> Context:
    """Return the context, or an empty one for None. Raises `InputError` for anything else."""
    if context is None:
        return Context()
    if isinstance(context, RunResult):
        raise InputError(
            "context takes the context of a result, not the RunResult itself: write context=result.context"
        )
    if not isinstance(context, Context):
        listed = isinstance(context, list | tuple)
        meant = "; pass messages in OpenAI's format in the prompt: agent.ask([*messages, prompt])" if listed else ""
        raise InputError(f"context takes a Context such as result.context, not {shown(context)}{meant}")
    return context


def read_history(store: object, id_: object, context: object) -> ChatHistory | None:
    """Return the history of a chat with these arguments, None without a store. Raises `InputError`. Opens nothing."""
    if store is None:
        if id_ is not None:
            raise InputError('a chat has an id in a store: write Chat(agent, store="sqlite:///chats.db", id=...)')
        return None
    if context is not None:
        raise InputError("a chat takes a store or a context: the stored conversation is its context")
    if not isinstance(store, str) or store.partition(":")[0] not in STORE_KINDS:
        raise InputError(
            'store takes a URL such as "sqlite:///chats.db", "json:folder", "redis://host", "postgresql://host/name" '
            f'or "memory:", not {shown(store)}'
        )
    if id_ is not None and not (isinstance(id_, str) and id_.strip() and len(id_) <= LONGEST_ID and id_.isprintable()):
        raise InputError(f'the id of a chat is a text such as "customer-42", not {shown(id_)}')
    return ChatHistory(StoreAddress(store, Path.cwd()), id_ or new_id())


def embedder_of(name: str, env: Mapping[str, str] = os.environ) -> Embedder | None:
    """Return the embedder of the setting EMBEDDINGS, None if it is empty. Raises `ConfigError`."""
    try:
        return connect_embedder(name.strip(), env) if name.strip() else None
    except InputError as error:
        raise ConfigError(f"EMBEDDINGS: {error}") from error


def read_embeddings(embeddings: object, env: Mapping[str, str] = os.environ) -> Embedder | None:
    """Return the embedder of a chat. For None it is that of EMBEDDINGS in the environment, if there is one. "": none.

    Raises `InputError` or, for a wrong variable, `ConfigError`.
    """
    if embeddings is None:
        return embedder_of(env.get("EMBEDDINGS", ""), env)
    if not isinstance(embeddings, str | EmbeddingModel):
        raise InputError(
            'embeddings takes a name such as "openai:text-embedding-3-small", the URL of a server, or an '
            f"EmbeddingModel of pydantic-ai, not {shown(embeddings)}"
        )
    return connect_embedder(embeddings) if embeddings else None


def read_base_options(options: object) -> Options | None:
    """Return the value of the argument `options`. Raises `InputError` unless it is an `Options`."""
    if not isinstance(options, Options | None):
        raise InputError(f"options takes an object of the class Options, not {shown(options)}")
    return options


def read_tools(tools: object) -> tuple[list[Tool], tuple[Toolset, ...]]:
    """Return the tools and the toolsets of a list of tools, functions, toolsets and references to presets.

    Raises `InputError` for anything else, and `ConfigError` for an unknown preset.
    """
    if isinstance(tools, str | Mapping) or callable(tools) or not isinstance(tools, Iterable):
        raise InputError(f"tools takes a list, not {shown(cast(object, tools))}: write tools=[...]")
    found = [_tool(item) for item in cast(Iterable[object], tools)]
    return [one for one in found if isinstance(one, Tool)], tuple(one for one in found if not isinstance(one, Tool))


def _tool(item: object) -> Tool | Toolset:
    if isinstance(item, Tool | Toolset):
        return cast("Tool | Toolset", item)
    if isinstance(item, str):
        from agent.tools.presets import load_presets  # late, because few programs use one

        return load_presets(item)
    if isinstance(item, Mapping):
        raise InputError(
            f"a tool is a function or a Tool, not the dict {shown(cast(object, item))}: the dict has no function to "
            "call. Write tools=[function]; its schema comes from its signature and docstring"
        )
    if callable(getattr(item, "as_tool", None)) or getattr(item, "__name__", "") == "as_tool":
        raise InputError(
            'an agent becomes a tool with as_tool: write tools=[agent.as_tool("When to ask it.", name="...")]'
        )
    if not callable(item):
        raise InputError(
            f'a tool is a function, a Tool, a Toolset or a name such as "preset:currency", not {shown(item)}'
        )
    function = cast(Function, item)
    if getattr(function, "__name__", "") == "<lambda>":
        raise InputError(
            "a lambda cannot be a tool, because it has no name and no types for the model: write a function with def, "
            "type hints and a docstring"
        )
    if inspect.isclass(function):
        meant = (
            f"make one, such as {function.__name__}(...)" if hasattr(function, "session") else "pass one of its methods"
        )
        raise InputError(f"a tool is a function, not the class {function.__name__}: {meant}")
    return as_tool(function)


def read_suspended(suspended: object) -> str | Suspension:
    """Return the suspension of a suspended result, and a suspension unchanged. Raises `InputError` otherwise."""
    if isinstance(suspended, RunResult):
        if suspended.suspension is None:
            raise InputError(
                f"this result is not suspended, it ended with {suspended.finish_reason!r}: nothing to resume"
            )
        return suspended.suspension
    if suspended is None:
        raise InputError("there is nothing to resume: the suspension is None, so the run did not end as suspended")
    if not isinstance(suspended, str | Suspension):
        raise InputError(f"resume takes result.suspension or the suspended result, not {shown(suspended)}")
    return suspended


def check_addresses(messages: Sequence[ModelMessage], guard: Guard) -> None:
    """Raise `InputError` for a picture at a private address, with the ways to use it. Looks no host name up."""
    for item in (item for message in messages for item in prompt_parts(message)):
        if isinstance(item, ImageUrl) and (host := guard.private_host(item.url)):
            raise InputError(
                f"{host} is not on the public internet, so no picture is fetched from it. Read it yourself with "
                f'Image.from_bytes or Image.from_path, or allow the host: Agent(..., guard=Guard(allow=("{host}",)))'
            )
