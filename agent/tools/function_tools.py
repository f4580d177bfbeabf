"""The contract of a tool: a function, its schema, and `execute`, which turns a call into a result and never raises.

If a tool raises, times out, is unknown or gets arguments that do not fit, the result is marked as an error, and the
model reads it. Only cancellation passes through. A `Toolset` provides tools that live as long as its session.
"""

import asyncio
import contextvars
import inspect
import json
import logging
import re
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from types import FunctionType, MethodType
from typing import Any, Generic, Protocol, cast, overload, runtime_checkable
from warnings import catch_warnings, simplefilter

import pydantic_ai
from pydantic import TypeAdapter, ValidationError
from pydantic_ai.messages import BinaryContent, ToolCallPart, ToolReturnPart
from pydantic_ai.tools import ToolDefinition
from pydantic_core import to_json
from typing_extensions import ParamSpec, TypeVar

from agent.errors import AgentError, InputError, ToolError, reason_of, without_paths
from agent.files.parts import Image, is_pillow
from agent.i18n.text import _
from agent.keyword_arguments import explains_arguments, explains_fields
from agent.responses import fix_surrogates
from agent.system.threads import FILES

MAX_RESULT = 50_000
"""The most characters of a result that the model gets, unless it is told otherwise."""
MAX_DEPTH = 100

_FILE = TypeAdapter(BinaryContent)


def content_of(value: Any, tool: str) -> Any:
    """Return strings and files unchanged, also in a list, pictures of Pillow as files, and anything else as JSON.

    The files in that JSON follow it, and their names take their place, because the model and the visitor cannot see
    bytes in a text, and the store keeps them only of files. Raises `ToolError` with the name of the `tool` for a value
    without a JSON form.
    """
    if isinstance(value, str):
        return fix_surrogates(value)
    if isinstance(value, BinaryContent):
        return value
    if is_pillow(value):
        return Image.from_pillow(value)
    if isinstance(value, list | tuple):
        items = cast(Sequence[Any], value)
        if any(isinstance(item, BinaryContent) or is_pillow(item) for item in items):
            return [part for item in items for part in _as_list(content_of(item, tool))]
    if isinstance(value, bytes | bytearray | memoryview):
        raise ToolError(
            f"The tool {tool!r} returned bytes. Image.from_bytes and Audio.from_bytes make a picture or a sound of "
            "them, and .decode() makes a text."
        )
    try:
        _refuse_iterators(cast(object, value))
        text = to_json(value, fallback=_plain)
    except (ValueError, TypeError, RecursionError) as error:
        raise ToolError(
            f"The tool {tool!r} returned what is neither text nor JSON: {error}. A tool returns text, a picture, a "
            "sound, a file, or values of JSON such as lists and dicts."
        ) from error
    if b'"kind":"binary"' not in text:
        return text.decode()
    files: list[BinaryContent] = []
    named = to_json(_with_names(json.loads(text), files)).decode()
    return [named, *files] if files else text.decode()


def cut_content(content: Any, most: int = MAX_RESULT) -> tuple[Any, str, int]:
    """Return the content with at most `most` characters, a note for the model, and the length of the whole content.

    The note is "" if all of it is there.
    """
    items: list[Any] = _as_list(content)
    length = sum(len(item) for item in items if isinstance(item, str))
    if length <= most:
        return content, "", length
    note = f"The result has {length} characters. Only its beginning is here: ask for less at a time."
    left = max(0, most - len(note) - 10)  # for the brackets and the blank line around the note
    kept: list[Any] = []
    for item in items:
        if isinstance(item, str):
            item, left = item[:left], max(0, left - len(item))
        if item:
            kept.append(item)
    return (kept if isinstance(content, list) else "".join(kept)), note, length


def _refuse_iterators(value: object, depth: int = 0) -> None:
    """Raise `TypeError` for an iterator, also inside lists and dicts, because pydantic would read it to its end."""
    if isinstance(value, Iterator | AsyncIterator):
        kind = type(cast(object, value)).__name__
        raise TypeError(f"{kind!r} yields values one by one; return list(...) of them")
    if depth > MAX_DEPTH:
        raise ValueError("it is nested too deeply")
    if isinstance(value, Mapping):
        value = [*cast(Mapping[object, object], value).values()]
    for item in cast(Sequence[object], value) if isinstance(value, list | tuple) else ():
        _refuse_iterators(item, depth + 1)


def _plain(value: Any) -> Any:
    """Return what JSON has for a value that pydantic does not know: a file, or the value's own text.

    Raises `TypeError` for an object that has no text but its address.
    """
    if is_pillow(value):
        return Image.from_pillow(value)
    if type(value).__str__ is object.__str__ and repr(value).startswith("<"):
        raise TypeError(f"{type(value).__name__!r} has no text")
    return str(value)


def _as_list(content: Any) -> list[Any]:
    return cast(list[Any], content) if isinstance(content, list) else [content]


def _with_names(value: Any, files: list[BinaryContent]) -> Any:
    """Return a JSON value with names instead of its files, and append these to `files`."""
    if isinstance(value, list):
        return [_with_names(item, files) for item in cast(list[Any], value)]
    if not isinstance(value, dict):
        return value
    fields = cast(dict[str, Any], value)
    if fields.get("kind") == "binary":
        with suppress(ValidationError):
            files.append(_FILE.validate_python(fields))
            return f"See file {files[-1].identifier}."
    return {key: _with_names(item, files) for key, item in fields.items()}


Function = Callable[..., Any]

GRACE_SECONDS = 0.4
"""Seconds that a cancelled tool has to clean up before it is abandoned."""

CUT, LEFT_RUNNING = "cut_from_characters", "left_running"
"""Keys in the metadata of a result."""

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
"""The names that all providers accept."""

_running: set[asyncio.Task[Any]] = set()
"""Strong references, because the event loop holds tasks only weakly: an abandoned tool must not be collected early."""


P = ParamSpec("P", default=...)
R = TypeVar("R", default=Any)


@explains_fields
@dataclass(frozen=True)
class Tool(Generic[P, R]):
    """A function that a model can call. The schema comes from its signature and docstring.

    Calling the tool calls the function, with its signature.

    `timeout` is in seconds, None for the agent's own limit. A call of a tool with `needs_approval` suspends the run
    until somebody approves it. A `poller` is meant to be called repeatedly, so repeated calls are no sign of a loop. If
    a server or a file describes the tool, `schema` is the JSON schema of its arguments and `description` its text. The
    arguments are then passed by keyword, unchecked, as the model wrote them. Raises `InputError` if no schema can be
    made of the signature, and for a name that providers refuse.

    The function returns text, `BinaryContent`, a Pillow image, a list of these, or anything with a JSON form. An async
    generator yields pieces of text: each is shown while the tool runs, and the result is all of them joined. The model
    gets at most `Limits.tool_characters` of it, and is told if there were more.
    """

    function: Callable[P, R]
    name: str
    timeout: float | None = None
    needs_approval: bool = False
    poller: bool = False
    schema: Mapping[str, Any] | None = field(default=None, hash=False)
    description: str = ""

    def __post_init__(self) -> None:
        if not callable(cast(object, self.function)):
            raise InputError(f"Tool takes a function, not {self.function!r}")
        if self.schema is None and (fault := _fault(self.function)):
            raise InputError(f"tool {self.name!r}: {fault}")
        if self.name == "<lambda>":
            raise InputError(
                "a lambda has no name and no docstring for the model: write a def with type hints and a docstring"
            )
        if not _NAME.fullmatch(self.name):
            fit = re.sub(r"[^A-Za-z0-9_-]+", "_", self.name).strip("_")[:64] or "name"
            raise InputError(
                f"tool {self.name!r}: its name must have 1 to 64 characters of a-z, A-Z, 0-9, _ and -, because "
                f'providers accept no other. Write @tool(name="{fit}")'
            )
        try:
            _ = self._schema
        except Exception as error:  # pydantic's exceptions here have no common base
            why = str(error).partition("\n")[0].partition(". ")[0]
            hint = ". Use str, int, lists, dicts, dataclasses or pydantic models" if "schema for" in why else ""
            raise InputError(f"tool {self.name!r}: no schema can be made of its signature: {why}{hint}") from error

    @cached_property
    def _schema(self) -> "pydantic_ai.Tool[None]":
        if self.schema is not None:
            return pydantic_ai.Tool[None].from_schema(
                self.function, self.name, self.description or None, dict(self.schema)
            )
        text = self.description or None
        with catch_warnings():  # of pictures and sounds, whose classes have no schema
            simplefilter("ignore", UserWarning)
            return pydantic_ai.Tool[None](_returning(self.function), name=self.name, description=text, takes_ctx=False)

    @property
    def is_async(self) -> bool:
        """True if a call can be interrupted. A plain function cannot: it runs in a thread."""
        return inspect.iscoroutinefunction(self.function) or inspect.isasyncgenfunction(self.function)

    @property
    def definition(self) -> ToolDefinition:
        """The description that providers get."""
        return self._schema.tool_def

    def arguments(self, call: ToolCallPart) -> tuple[list[Any], dict[str, Any]]:
        """Return the call's validated arguments. Raises `ValidationError` or `ValueError`."""
        given = dict(call.args_as_dict(raise_if_invalid=True))
        schema = self._schema.function_schema
        if rest := schema.var_positional_field:  # the library's schema requires it, although Python does not
            given.setdefault(rest, [])
        values: dict[str, Any] = dict(schema.validator.validate_python(given))
        positional = [values.pop(name) for name in schema.positional_fields]
        if schema.var_positional_field:
            positional.extend(values.pop(schema.var_positional_field))
        return positional, values

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function itself, as if it were not a tool."""
        return self.function(*args, **kwargs)

    @property
    def __wrapped__(self) -> Callable[P, R]:
        """The function. `inspect.signature` and editors read its signature here."""
        return self.function


def _returning(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return an async generator function as if it returned a text, for its schema, and any other function as it is."""
    if not inspect.isasyncgenfunction(function):
        return function
    whole: Any = inspect.unwrap(getattr(function, "__func__", function))
    made = FunctionType(whole.__code__, whole.__globals__, whole.__name__, whole.__defaults__, whole.__closure__)
    made.__kwdefaults__, made.__doc__, made.__module__ = whole.__kwdefaults__, whole.__doc__, whole.__module__
    made.__annotations__ = {**whole.__annotations__, "return": str}
    bound = getattr(function, "__self__", None)
    return made if bound is None else MethodType(made, bound)


def _fault(function: Callable[..., Any]) -> str:
    """Return why no tool can be made of a function, or ""."""
    if isinstance(function, Tool):
        return "it is a tool already"
    if not hasattr(function, "__name__"):
        return f"{function!r} has no name and no docstring of its own: write @tool over a def that calls it"
    if inspect.isfunction(function) and next(iter(inspect.signature(function).parameters), "") == "self":
        return f"{function.__qualname__} is a method without its object: pass the method of an object"
    return ""


@overload
def tool(function: Callable[P, R], /) -> Tool[P, R]: ...
@overload
def tool(
    *, name: str | None = None, timeout: float | None = None, needs_approval: bool = False, poller: bool = False
) -> Callable[[Callable[P, R]], Tool[P, R]]: ...
@explains_arguments
def tool(
    function: Function | None = None,
    /,
    *,
    name: str | None = None,
    timeout: float | None = None,
    needs_approval: bool = False,
    poller: bool = False,
) -> Tool | Callable[[Function], Tool]:
    """Turn a function into a tool: `@tool`, or `@tool(timeout=5, needs_approval=True)`. Raises `InputError`."""
    if function is not None and not callable(cast(object, function)):
        meant = f"name={function!r}" if isinstance(cast(object, function), str) else "name=..., timeout=..."
        raise InputError(f"@tool takes a function, not {function!r}: write @tool({meant})")

    def wrap(function: Function) -> Tool:
        named = name or getattr(function, "__name__", "tool")
        return Tool(function, named, timeout, needs_approval=needs_approval, poller=poller)

    return wrap if function is None else wrap(function)


@runtime_checkable
class Toolset(Protocol):
    """Tools that exist while a session is open. It can be shared: each run, or each chat, opens its own session."""

    @property
    def name(self) -> str:
        """The name for sentences."""
        ...

    def session(self) -> AbstractAsyncContextManager[Sequence[Tool]]:
        """Open a session and return its tools. Another task than the one that opened it can close it.

        Raises an `AgentError` with a sentence if it cannot be opened. Opening can be cancelled.
        """
        ...


@dataclass(frozen=True, slots=True)
class PromptArgument:
    """An argument of a prompt."""

    name: str
    description: str
    required: bool


@dataclass(frozen=True, slots=True)
class PromptInfo:
    """A prompt that a server has prepared, and the arguments that it takes."""

    name: str
    description: str
    arguments: Sequence[PromptArgument]


@runtime_checkable
class PromptSource(Protocol):
    """A toolset with prompts for people, such as an MCP server with `prompts`."""

    @property
    def name(self) -> str:
        """The name for sentences."""
        ...

    @property
    def prompts(self) -> bool:
        """True if its prompts are to be used."""
        ...

    async def list_prompts(self) -> Sequence[PromptInfo]:
        """Return its prompts. Raises `ToolError` with a sentence."""
        ...

    async def get_prompt(self, name: str, arguments: Mapping[str, str]) -> str:
        """Return the text of a prompt. Raises `ToolError` with a sentence."""
        ...


@tool
async def ask_user(question: str, choices: list[str] = []) -> str:  # noqa: B006 - its schema, nobody changes it
    """Ask the user a question and wait for the answer. Use it when you cannot go on without knowing.

    Args:
        question: What to ask, in one or two sentences.
        choices: Answers to choose from; leave it out where any answer will do.
    """
    raise ToolError("Nobody can be asked here.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question of a tool to people during its call. `key` names it within the call.

    With `arguments`, it is an approval of what the tool wants to do with them.
    """

    key: str
    text: str
    choices: Sequence[str] = ()
    arguments: Mapping[str, Any] | None = None


class Caller(Protocol):
    """The run that makes a call, as the tool sees it that is called."""

    @property
    def kept(self) -> Mapping[str, Any] | None:
        """The value that an earlier call has kept for this one with `ask`, or None."""
        ...

    @property
    def replies(self) -> Mapping[str, str | bool | Mapping[str, Any]]:
        """The answers of people by the keys of their questions.

        A text, True for an approval or the arguments that people have changed for it, False for a refusal.
        """
        ...

    def ask(self, questions: Sequence[Question], keep: Mapping[str, Any]) -> None:
        """Suspend the run until people have answered. Then the call is made again: it finds `keep` and `replies`."""
        ...

    def tell_progress(self, progress: float, total: float | None, message: str) -> None:
        """Tell the observers of the run how far the call is."""
        ...

    async def write(self, instructions: str, text: str, max_tokens: int | None) -> str:
        """Return the answer of the run's model in a run below, without tools and conversation. Raises `AgentError`."""
        ...


CALLER: contextvars.ContextVar[Caller | None] = contextvars.ContextVar("caller", default=None)
"""The run that makes the call of the current task; None outside of a run."""


def as_tool(item: Tool | Function) -> Tool:
    """Return a tool unchanged, and a plain function as a tool."""
    return cast(Tool, item) if isinstance(item, Tool) else tool(item)


async def execute(
    tools: Mapping[str, Tool],
    call: ToolCallPart,
    *,
    timeout: float,  # noqa: ASYNC109 - not raised
    characters: int = MAX_RESULT,
    on_output: Callable[[str], None] = lambda _: None,
) -> ToolReturnPart:
    """Run one call and return its result. `timeout` in seconds applies to tools without their own.

    `on_output` gets each text that the tool yields. The result has at most about so many `characters`. The metadata of
    one that was cut has the length of the whole one.
    """
    result = await _execute(tools, call, timeout, on_output)
    content, note, length = cut_content(result.content, characters)
    return with_note(replace(result, content=content, metadata={CUT: length}), note) if note else result


async def _execute(
    tools: Mapping[str, Tool], call: ToolCallPart, seconds: float, on_output: Callable[[str], None]
) -> ToolReturnPart:
    wanted = tools.get(call.tool_name)
    if wanted is None:
        known = ", ".join(tools) or "none"
        return _failure_result(call, f"There is no tool named {call.tool_name!r}. Known tools: {known}.")
    try:
        args, kwargs = wanted.arguments(call)
    except ValidationError as error:
        return _failure_result(call, f"The arguments do not fit: {_explain(error)}")
    except (ValueError, AssertionError):
        return _failure_result(call, f"The arguments are not a JSON object: {str(call.args)[:200]!r}")
    except Exception as error:  # from a validator of the tool itself
        return _failure_result(call, f"The arguments do not fit: {type(error).__name__}: {error}")
    limit = wanted.timeout or seconds
    work = asyncio.create_task(_invoke(wanted.function, args, kwargs, on_output), name=call.tool_call_id)
    try:
        if not await _finish_or_abandon(work, limit):
            return _failure_result(call, f"The tool took longer than {limit:g} s and was given up.")
        if work.cancelled():
            return _failure_result(call, "The tool was cancelled by something that it waited for.")
        value = work.result()
        if isinstance(value, ToolReturnPart):  # the result of an earlier call
            return replace(cast(ToolReturnPart[Any], value), tool_name=call.tool_name, tool_call_id=call.tool_call_id)
        made = partial(content_of, value, wanted.name)
        content = made() if isinstance(value, str) else await FILES.run(made)  # a picture would hold the loop
        return ToolReturnPart(call.tool_name, content, tool_call_id=call.tool_call_id)
    except AgentError as error:  # its text is already a sentence
        return _failure_result(call, str(error))
    except Exception as error:
        text = without_paths(str(error)) if isinstance(error, OSError) else error
        return _failure_result(call, f"{type(error).__name__}: {text}")


async def execute_all(
    tools: Mapping[str, Tool],
    calls: Sequence[ToolCallPart],
    *,
    timeout: float,  # noqa: ASYNC109 - not raised
    characters: int = MAX_RESULT,
    on_result: Callable[[ToolReturnPart], None],
    on_start: Callable[[ToolCallPart], None] = lambda _: None,
    on_output: Callable[[ToolCallPart, str], None] = lambda _, __: None,
) -> None:
    """Run calls concurrently and pass each result to `on_result` as it comes. Return when each call has one.

    `on_start` gets each call in the task that makes it, and `on_output` each text that its tool yields. On
    cancellation, each call without a result first gets one; its metadata says `left_running` if the tool could not be
    interrupted.
    """
    if not calls:
        return
    unanswered = {call.tool_call_id: call for call in calls}

    async def one(call: ToolCallPart) -> None:
        on_start(call)
        given = partial(on_output, call)
        result = await execute(tools, call, timeout=timeout, characters=characters, on_output=given)
        if unanswered.pop(call.tool_call_id, None):
            on_result(result)

    tasks = [asyncio.create_task(one(call)) for call in calls]
    try:
        await asyncio.wait(tasks)
    except asyncio.CancelledError:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=1.2 * GRACE_SECONDS)
        raise
    finally:
        for id_, call in list(unanswered.items()):
            del unanswered[id_]
            on_result(_given_up(call, tools.get(call.tool_name)))


def cancelled_result(call: ToolCallPart) -> ToolReturnPart:
    """Return the result of a call that was not made or not finished because the run was cancelled."""
    text = "Cancelled before it finished."
    return ToolReturnPart(call.tool_name, text, tool_call_id=call.tool_call_id, outcome="interrupted")


def _given_up(call: ToolCallPart, tool: Tool | None) -> ToolReturnPart:
    still = any(work.get_name() == call.tool_call_id for work in _running) or (tool is not None and not tool.is_async)
    if not still:
        return cancelled_result(call)
    text = "Cancelled; it could not be interrupted and was left running."
    return replace(cancelled_result(call), content=text, metadata={LEFT_RUNNING: True})


async def _finish_or_abandon(work: asyncio.Task[Any], limit: float) -> bool:
    """Return True if the task ends in time. If not, cancel it, and abandon it after `GRACE_SECONDS`."""
    _running.add(work)
    work.add_done_callback(_running.discard)
    try:
        await asyncio.wait([work], timeout=limit)
        if work.done():
            return True
        work.cancel()
        await asyncio.wait([work], timeout=GRACE_SECONDS)
    except asyncio.CancelledError:
        work.cancel()
        await asyncio.wait([work], timeout=GRACE_SECONDS)
        raise
    finally:
        work.add_done_callback(_retrieve_exception)
    return False


def _retrieve_exception(work: asyncio.Task[Any]) -> None:
    """Retrieve the exception of an abandoned task, so that asyncio does not report it."""
    if not work.cancelled():
        work.exception()


async def _invoke(function: Function, args: list[Any], kwargs: dict[str, Any], on_output: Callable[[str], None]) -> Any:
    try:
        if inspect.isasyncgenfunction(function):
            return await _all_of(function(*args, **kwargs), on_output)
        if inspect.iscoroutinefunction(function):
            return await function(*args, **kwargs)
        value = await _in_thread(lambda: function(*args, **kwargs))
        return await value if inspect.isawaitable(value) else value
    except (Exception, asyncio.CancelledError, GeneratorExit):
        raise
    except BaseException as error:  # SystemExit and KeyboardInterrupt would end the loop itself
        raise RuntimeError(f"the tool raised {type(error).__name__}") from error


async def _all_of(pieces: AsyncGenerator[Any], on_output: Callable[[str], None]) -> str:
    """Return the texts that a tool yields as one text, and show each as soon as it is there."""
    out = list[str]()
    async with aclosing(pieces):
        async for piece in pieces:
            if not isinstance(piece, str):
                raise ToolError(f"A tool that yields must yield texts, not {type(piece).__name__}.")
            out.append(piece)
            on_output(fix_surrogates(piece))
            await asyncio.sleep(0)  # others have their turn, also if the tool never waits
    return "".join(out)


async def _in_thread(function: Callable[[], Any]) -> Any:
    """Run in a daemon thread, which a cancelled run or an ending process abandons instead of waiting for it."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()
    context = contextvars.copy_context()

    def settle(set_: Callable[[Any], None], value: Any) -> None:
        if not future.done():
            set_(value)

    def work() -> None:
        try:
            outcome, set_ = context.run(function), future.set_result
        except BaseException as error:
            known = isinstance(error, Exception) and not isinstance(error, StopIteration)
            failure = error if known else RuntimeError(f"the tool raised {type(error).__name__}")
            outcome, set_ = failure, future.set_exception
        with suppress(RuntimeError):  # the loop may be closed by now
            loop.call_soon_threadsafe(settle, cast(Callable[[Any], None], set_), outcome)

    threading.Thread(target=work, daemon=True, name="tool").start()
    return await future


def with_note(result: ToolReturnPart, note: str) -> ToolReturnPart:
    """Return the result with our note to the model after it."""
    note, content = f"[{note}]", result.content
    if isinstance(content, str):
        return replace(result, content=f"{content}\n\n{note}")
    return replace(result, content=[*(cast(list[Any], content) if isinstance(content, list) else [content]), note])


def _failure_result(call: ToolCallPart, message: str) -> ToolReturnPart:
    return ToolReturnPart(call.tool_name, fix_surrogates(message), tool_call_id=call.tool_call_id, outcome="failed")


def _explain(error: ValidationError) -> str:
    return "; ".join(
        f"{'.'.join(str(step) for step in item['loc']) or 'arguments'}: {item['msg']}" for item in error.errors()
    )


log = logging.getLogger(__name__)

CLOSE_SECONDS = 5.0
"""The seconds that a run waits for closing, which then continues in the background."""

_closing: set[asyncio.Task[None]] = set()


def tools_by_name(tools: Iterable[Tool]) -> dict[str, Tool]:
    """Return the tools by name. Raises `InputError` if two tools have the same name."""
    named: dict[str, Tool] = {}
    for tool in tools:
        if tool.name in named:
            raise InputError(f"two tools are named {tool.name!r}; give one of them another name")
        named[tool.name] = tool
    return named


class ToolSessions:
    """The tool sessions of one run. Owns the open ones."""

    def __init__(self) -> None:
        self._stack = AsyncExitStack()
        self._entering: list[asyncio.Task[Sequence[Tool]]] = []

    async def open(self, tools: Mapping[str, Tool], toolsets: Sequence[Toolset]) -> Mapping[str, Tool]:
        """Open the toolsets and return all tools. Raises an `AgentError` with a sentence if one cannot be opened."""
        given = list(tools.values())
        for toolset in toolsets:
            work = asyncio.create_task(self._stack.enter_async_context(toolset.session()))
            self._entering.append(work)
            given += await _wait_until_open(work, toolset)
        return tools_by_name(given) if toolsets else tools

    async def close(self, *, hurried: bool) -> None:
        """Close the sessions in a task that continues in the background if it is slow or one is still opening."""
        if not self._entering:
            return
        work = asyncio.create_task(self._close())
        _closing.add(work)
        work.add_done_callback(_closing.discard)
        await asyncio.wait([work], timeout=GRACE_SECONDS if hurried else CLOSE_SECONDS)

    async def _close(self) -> None:
        await asyncio.wait(self._entering)
        try:
            await self._stack.aclose()
        except Exception:
            log.exception("tools could not be closed")


async def _wait_until_open(work: asyncio.Task[Sequence[Tool]], toolset: Toolset) -> Sequence[Tool]:
    try:
        await asyncio.wait([work])
    except asyncio.CancelledError:
        work.cancel()
        await asyncio.wait([work], timeout=GRACE_SECONDS)
        raise
    try:
        return work.result()
    except AgentError:
        raise
    except Exception as failure:
        log.exception("the tools %s could not be opened", toolset.name)
        why = reason_of(failure)
        raise AgentError(_("The tools {name!r} could not be opened: {why}", name=toolset.name, why=why)) from failure
