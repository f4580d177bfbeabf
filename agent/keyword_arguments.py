"""Explains wrong arguments: names that a function does not have, and values that are not of the type of their hint.

For a wrong name, the message says which argument was meant, or where it belongs.

People know the names of other libraries, such as `instructions` for the system message.
"""

import inspect
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from difflib import get_close_matches
from functools import cache, wraps
from os import PathLike
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    ParamSpec,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from agent.errors import AgentError, InputError, without_logins
from agent.i18n.text import _

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C", bound=type[Any])

MAX_WRITTEN = 6
"""The most arguments that the example of a call shows, unless it needs more."""

_SYNONYMS: Sequence[tuple[str, str]] = (
    ("system_message", "system system_prompt instructions instruction system_instruction prompt_template developer"),
    ("id", "session_id session chat_id thread_id conversation_id user_id"),
    ("prompt", "messages"),
    ("context", "ctx messages message_history history chat_history session_id conversation"),
    ("steps", "max_turns max_steps max_iterations recursion_limit request_limit turns requests tool_calls"),
    ("seconds", "timeout max_seconds max_time time_limit max_execution_time"),
    ("timeout", "seconds timeout_seconds max_seconds"),
    ("tool_seconds", "tool_timeout"),
    ("retries", "max_retries num_retries retry"),
    ("start_seconds", "startup_timeout client_session_timeout_seconds init_timeout"),
    ("tokens", "max_tokens total_tokens_limit token_limit max_total_tokens"),
    ("max_tokens", "num_predict max_output_tokens max_completion_tokens max_new_tokens"),
    ("dollars", "cost max_cost budget max_budget usd"),
    ("reasoning", "think thinking effort reasoning_effort thinking_budget"),
    ("prompt", "input question query user_prompt message text images"),
    ("tools", "functions toolsets toolset mcp_servers plugins tool_filter allowed_tools include_tools"),
    ("at", "threshold trigger fraction token_limit max_tokens trigger_tokens"),
    ("keep", "keep_recent keep_last preserve_recent messages_to_keep"),
    ("summarize", "summarizer summary_fn summarizer_model"),
    ("agent", "model llm"),
    ("messages", "history message_history chat_history"),
    ("output", "output_type output_schema response_format response_model result_type"),
    ("temperature", "temp"),
    ("seed", "random_seed"),
    ("stop", "stop_sequences stop_words"),
    ("single_run", "enforceSingleRun single_use"),
    ("keys", "secret key secret_key signing_key"),
    ("allow", "whitelist hosts domains"),
    ("url", "base_url uri endpoint server_url"),
    ("headers", "api_key token bearer_token auth authorization"),
    ("reason", "message feedback explanation"),
    ("arguments", "args kwargs override_args"),
    ("args", "arguments argv"),
    ("format", "media_type mime_type mimetype"),
    ("model", "llm model_name model_id chat_model"),
    ("base_url", "api_base endpoint host url openai_api_base"),
    ("api_key", "key token apikey openai_api_key"),
    ("limits", "usage_limits"),
    ("store", "memory db database checkpointer storage"),
    ("elicitation", "elicitation_callback elicitation_handler on_elicitation"),
    ("sampling", "sampling_callback sampling_handler sampling_model allow_sampling"),
    ("resources", "include_resources load_resources"),
    ("prompts", "include_prompts load_prompts"),
    ("needs_approval", "requires_approval require_confirmation"),
    ("name", "name_override tool_name"),
    ("description", "tool_description"),
    ("contents", "content text parts"),
    ("compaction", "history_processors memory_manager summarization"),
    ("options", "model_settings model_kwargs generation_config run_config settings"),
)
"""The names of this package, and what other libraries call the same."""


def _table(lines: str) -> dict[str, str]:
    """Return the meaning of each name. A line has names, a colon, and their meaning."""
    rows = (line.split(": ", 1) for line in lines.strip().splitlines())
    return {name: meaning for names, meaning in rows for name in names.split()}


_PLACES = _table("""
model provider base_url api_key: Agent(model, provider=..., base_url=..., api_key=...)
system_message: Agent(model, system_message=...)
tools limits: Agent(model, tools=[...], limits=Limits(...))
steps seconds dollars: Agent(model, limits=Limits(steps=..., seconds=...))
retries: Agent(model, limits=Limits(retries=...))
compaction: Agent(model, compaction=Compaction(at=0.85, keep=6))
fallback fallbacks fallback_models: Agent([model, another])
name: agent.as_tool("When to ask it.", name=...)
callbacks callback hooks event_handler: async for event in agent.run(prompt).events()
verbose debug: logging.basicConfig(level="INFO"), or telemetry=Telemetry()
tool_choice parallel_tool_calls logprobs top_logprobs frequency_penalty presence_penalty logit_bias top_k min_p n \
repetition_penalty: ask(prompt, extra_body={name: value})
messages history: ask([*messages, prompt]) or ask(prompt, context=result.context)
session_id: ask(prompt, context=result.context), or Chat(agent, store=..., id=...)
context: ask(prompt, context=result.context)
id store: Chat(agent, store=..., id=...)
reasoning temperature max_tokens top_p seed stop extra_body options: ask(prompt, temperature=..., reasoning=...)
output: ask(prompt, output=...)
deps deps_type dependencies context_variables: tools=[...] with methods of an object that has them
handoffs sub_agents: tools=[agent.as_tool("When to ask it.", handoff=True)]
prompt: ask(prompt), with pictures and sound in a list
stream streaming: async for response in agent.run(prompt)
description docstring args_schema parameters: the tool's docstring and type hints
""")
"""The place of each argument, for people who pass it elsewhere."""

_OTHER_PLACES: Mapping[str, Mapping[str, str]] = {
    "McpServer": _table("""
command args env cwd: McpServer.stdio(command, [argument, ...], name=...)
params: McpServer.stdio(command, [argument, ...], name=...), or McpServer.http(url, name=...)
transport transport_type: McpServer.http(url, name=...), for streamable HTTP
url headers: McpServer.http(url, name=..., headers={"Authorization": ...})
"""),
    **{name: {} for name in ("Seals", "Guard", "Telemetry", "Approve", "Refuse")},
}
"""The places of arguments for classes other than Agent."""

_METHODS = _table("""
run_sync invoke ainvoke chat complete generate send predict query kickoff: \
await agent.ask(prompt), or Chat(agent).say(prompt) without await
stream astream run_stream run_streamed iter: async for response in agent.run(prompt)
text content final_output: (await agent.ask(prompt)).text
output: (await agent.ask(prompt, output=...)).output
__iter__: async for response in agent.run(prompt), or for response in Chat(agent).query(prompt)
run_delta stream_events: async for response in agent.run(prompt), or agent.run(...).events()
get_messages history all_messages: chat.messages, or result.context.messages
clear_messages reset: chat.clear()
tool tool_plain add_tools register_tool: @tool, and Agent(model, tools=[...])
system_prompt: Agent(model, system_message=...)
override clone: agent.run(prompt, model=..., tools=...)
print: display(response)
close: async with Agent(...) as agent, or await agent.aclose()
steer: run = agent.run(prompt), and run.steer(text)
message: run.result.text
run: chat.say(prompt), or for response in chat.query(prompt)
""")
"""Our calls, by the names of the methods of other libraries that do the same."""
_OF_A_RESULT = _table("""
content message response data choices answer result output_text: result.text
messages all_messages new_messages history: result.context.messages
tool_calls tool_results tools_called steps new_items to_input: result.to_input_list()
parsed value final_output_as: result.output, of ask(prompt, output=...)
model_name provider_name: result.model
to_json json model_dump model_dump_json: result.context.to_json()
interruptions questions: result.pending
suspension_record to_state: result.suspension
last_agent: event.name of a HandedOver in run.events()
error exception reason: result.why, or result.checked()
session_id conversation_id: result.context.session_id
""")
"""The fields of a result, by the names that other libraries give them."""

_NAMES = _table("""
Runner DedalusRunner AIAgent: Agent(model, system_message=..., tools=[...]) and agent.ask(prompt)
AgentBuilder LocalModel APIModel LangModel Runtime OpenAIModel: Agent("provider:model")
function_tool FunctionTool: from agent import tool
McpServer MCPServer MCPServerStdio MCPServerStreamableHttp: from agent.tools.mcp import McpServer
SQLiteSession Session ChatMemory: Chat(agent, store="sqlite:///chats.db", id="customer-42")
AgentContext: from agent import Context
ModelSettings RunConfig: from agent import Options
UsageLimits: from agent import Limits
ModelRetry: from agent import ToolError
FallbackModel: Agent([model, another])
RunContext: tools=[...] with methods of an object that has what they need
ImageContent AudioContent: from agent import Image, Audio
ask query: Agent(model).ask(prompt) or Chat(agent).say(prompt)
ChildEvent TextDelta ToolEvent ToolOutput StepStarted StepEnded HandedOver RunStarted: from agent.events import {name}
Ledger open_ledger: from agent.suspension.ledger import {name}
examine_server: from agent.conformance import examine_server
PROGRAM open_store: from agent.history import {name}
""")
"""The words to write instead of the names of other libraries, or of names in other modules of this one."""


def name_written_here(name: str) -> str:
    """Return what to write instead of a name that `agent` does not have, or ""."""
    return _NAMES.get(name, "").replace("{name}", name)


def meant_by(
    name: str, known: Sequence[str], others: Sequence[str] = (), places: Mapping[str, str] = _PLACES
) -> list[str]:
    """Return the sentence that says what an unknown argument may mean, if anything.

    `others` are known, too, but only misspellings of them are named, because `places` says how they are given.
    """
    given, name = name, _CAPITAL.sub(lambda found: f"_{found[0].lower()}", name)  # as in Java and Kotlin
    meanings = [meaning for meaning, others in _SYNONYMS if name in others.split()]
    if found := next((one for one in meanings if one in known), None):
        return [_("Perhaps it is {names}.", names=found)]
    if place := next((places[one] for one in (name, *meanings) if one in places), None):
        return [f"{given} is given in another way: {place}."]
    close = get_close_matches(name, [*known, *others], 1)
    return [_("Perhaps it is {names}.", names=close[0])] if close else []


_CAPITAL = re.compile(r"(?<=[a-z])[A-Z]")


class WrongArgument(InputError, TypeError):
    """A function was called with an argument that it does not have. The message names the one that was meant."""


def explains_arguments(function: Callable[P, R]) -> Callable[P, R]:
    """Make calls with unknown arguments raise `WrongArgument`, with the argument that was meant.

    Values that do not fit the type hints of a constructor raise `InputError`, unless it refuses them in its own words.
    """

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            made = function(*args, **kwargs)
        except AgentError:
            raise
        except (TypeError, ValueError, AttributeError) as error:
            signature = inspect.signature(function)
            if not (misfit := _misfit(signature, args, kwargs)):  # the function itself has raised it
                if wrong := _wrong_value(function, args, kwargs):
                    raise InputError(wrong) from error
                raise
            if not isinstance(error, TypeError):
                raise
            owner = function.__qualname__.removesuffix(".__init__")
            all_ = signature.parameters.values()
            taken = [one for one in all_ if one.kind is not one.VAR_KEYWORD and one.name not in ("self", "cls")]
            takes = [one.name for one in taken]
            if unknown := [name for name in kwargs if name not in takes]:
                places = _OTHER_PLACES.get(owner.partition(".")[0], _PLACES)
                meant = [(name, meant_by(name, takes, places=places)) for name in unknown]
                name, hints = next((one for one in meant if one[1]), meant[0])
                said = [*hints, f"{owner} has no argument {name!r}; it takes {', '.join(takes)}."]
                raise WrongArgument(" ".join(said)) from None
            raise WrongArgument(f"{misfit}: write {owner}({_written(taken)}).") from None
        if wrong := _wrong_value(function, args, kwargs):
            raise InputError(wrong)
        return made

    return call


def explains_fields(cls: C) -> C:
    """Do the same as `explains_arguments` for the constructor of a dataclass."""
    made = cast(Any, cls)
    made.__init__ = explains_arguments(made.__init__)
    return cls


class ExplainsAttributes:
    """Base of classes that people ask for methods of other libraries. An error inside a property comes through."""

    if not TYPE_CHECKING:  # a checker would take any attribute for one

        def __getattr__(self, name: str) -> Any:
            if hasattr(type(self), name):  # a property that has raised an AttributeError, which Python has dropped
                return object.__getattribute__(self, name)
            raise no_attribute(self, name)


def no_attribute(owner: object, name: str) -> AttributeError:
    """Return the error for a method or field that an object does not have."""
    said = f"{type(owner).__name__!r} object has no attribute {name!r}"
    names = _OF_A_RESULT if type(owner).__name__ == "RunResult" else _METHODS
    if name in names:
        return AttributeError(f"{said}: write {names[name]}")
    return AttributeError(said, name=name, obj=owner)


def _written(taken: Sequence[inspect.Parameter]) -> str:
    """Return how a call is written, with the arguments that it needs, and some of the others."""
    needed = [one for one in taken if one.default is one.empty]
    shown = [*needed, *(one for one in taken if one not in needed)][: max(len(needed), MAX_WRITTEN)]
    words = [f"{one.name}=..." if one.kind is one.KEYWORD_ONLY else one.name for one in shown]
    return ", ".join([*words, *(["..."] if len(shown) < len(taken) else [])])


_Kind = tuple[str, Callable[[Any], bool]]
"""A kind of values, in words and as a test."""

_FROM_ZERO = ("retries", "dollars", "redirects", "temperature", "top_p", "seed")
"""The arguments that can be 0. All other numbers of this package are counts, sizes or times above 0."""
_NOT_SHOWN = ("api_key", "keys", "headers", "env")
"""Arguments whose values can be secret."""
MAX_SHOWN = 80
"""The most characters of a wrong value that a message shows."""


def shown(value: object) -> str:
    """Return a wrong value for a message, without the user and the password of a URL."""
    text = without_logins(repr(value))
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}… ({type(value).__name__})"


def _wrong_value(function: Callable[..., Any], args: Sequence[object], kwargs: Mapping[str, object]) -> str:
    """Return the sentence about a value that the type hint of its argument does not allow, "" if all fit."""
    signature, kinds = _hinted(function)
    if not kinds:
        return ""
    # binding is slow, and an object is mostly made by names alone
    given_by_name = len(args) == 1 and "self" in signature.parameters
    for name, value in (kwargs if given_by_name else signature.bind(*args, **kwargs).arguments).items():
        allowed = kinds.get(name)
        if allowed is not None and not any(fits(value) for _, fits in allowed):
            owner = function.__qualname__.removesuffix(".__init__")
            given = type(value).__name__ if name in _NOT_SHOWN else shown(value)
            return f"{owner}({name}={given}): {name} must be {', or '.join(words for words, _ in allowed)}"
    return ""


@cache
def _hinted(function: Callable[..., Any]) -> tuple[inspect.Signature, Mapping[str, list[_Kind] | None]]:
    """Return the signature, and the kinds of values of each argument. Methods check theirs before they do anything."""
    signature = inspect.signature(function)
    if "self" in signature.parameters and function.__name__ != "__init__":
        return signature, {}
    try:
        hints = get_type_hints(function)
    except NameError:  # a hint that only a checker can read
        hints = dict[str, Any]()
    return signature, {
        name: _kinds(hints[name], name)
        for name, one in signature.parameters.items()
        if name in hints and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
    }


def _kinds(hint: Any, name: str) -> list[_Kind] | None:
    """Return the kinds of values that a type hint allows, None if they cannot be told."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        found = [_kinds(one, name) for one in inner]
        return None if None in found else [kind for kinds in found for kind in kinds or ()]
    if origin is Literal:
        return [(f"one of {', '.join(map(repr, inner))}", lambda value: value in inner)]
    kind: Any = origin or hint
    if kind in _PLAIN:
        return [_PLAIN[kind]]
    if hint in (int, float):
        least, words = (0, "from 0 on") if name in _FROM_ZERO else (1, "from 1 on")
        if hint is int:
            return [(f"a whole number {words}", lambda value: _is_number(value, int) and value >= least)]
        if least:
            return [("a number above 0", lambda value: _is_number(value) and value > 0)]
        return [("a number from 0 on", lambda value: _is_number(value) and value >= 0)]
    if is_typeddict(kind) or (inspect.isclass(kind) and issubclass(kind, Mapping)):
        words, items = ("a dict of texts", [_PLAIN[str]]) if inner == (str, str) else ("a dict", None)
        return [(words, lambda value: isinstance(value, Mapping) and _is_list(cast(Any, value).values(), items))]
    if kind is Callable or getattr(kind, "__name__", "") == "Callable":
        return [("a function", callable)]
    if not inspect.isclass(kind) or kind is object:
        return None
    if issubclass(kind, Collection):
        alike = inner if inner[1:] in ((), (...,)) else ()  # not a tuple of different things
        checked = alike and (alike[0] in (*_PLAIN, int, float) or get_origin(alike[0]) is tuple)
        items = _kinds(inner[0], name) if checked else None
        words = f"a list, each item {', or '.join(words for words, _ in items)}" if items else "a list"
        return [(words, lambda value: _is_list(value, items))]
    if getattr(kind, "_is_protocol", False):
        methods = [one for one in vars(kind) if not one.startswith("_")]
        return [
            (f"an object with the methods of {kind.__name__}", lambda value: all(hasattr(value, m) for m in methods))
        ]
    return [(f"an object of the class {kind.__name__}", lambda value: isinstance(value, kind))]


def _is_number(value: object, kind: Any = int | float) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _is_list(value: object, items: list[_Kind] | None) -> bool:
    """Return True for a collection with such items. An iterator is none: whoever looks at its items takes them away."""
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Collection):
        return False
    return not items or all(any(fits(one) for _, fits in items) for one in cast(Collection[object], value))


_PLAIN: Mapping[Any, _Kind] = {
    NoneType: ("None", lambda value: value is None),
    bool: ("True or False", lambda value: isinstance(value, bool)),
    str: ("a text", lambda value: isinstance(value, str)),
    bytes: ("bytes", lambda value: isinstance(value, bytes | bytearray | memoryview)),
    **dict.fromkeys((Path, PathLike), ("a path", lambda value: isinstance(value, str | PathLike))),
}


def _misfit(signature: inspect.Signature, args: tuple[object, ...], kwargs: Mapping[str, object]) -> str:
    """Return why the arguments do not fit the signature, "" if they do."""
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        return str(error)
    return ""
