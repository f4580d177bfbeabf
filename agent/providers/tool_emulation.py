"""Tool calling for models with a chat template that has no tools: each step, a JSON schema binds the model's choice.

Knows pydantic-ai's messages. Does not know the server, or how tools run.
"""

import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, TypeGuard, cast

from pydantic_ai import RunContext
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    ModelResponseStreamEvent,
    PartDeltaEvent,
    PartStartEvent,
    SystemPromptPart,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
    ToolCallPart,
    ToolCallPartDelta,
    ToolReturnPart,
    UserContent,
    UserPromptPart,
)
from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.settings import ModelSettings, ToolOrOutput
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.usage import RequestUsage

from agent.providers.connection import StreamingModel


def instruction(tools: Sequence[ToolDefinition], reply: str | None) -> str:
    """Return the instruction: the shape of the answer and a line for each tool. If `reply` is None, it must use a tool.

    Measured on Qwen2.5-Coder-0.5B (18 questions, greedy): these words got 16 right; words on when to use a tool got 10;
    `{"tool": ...} | {"reply": ...}` got 9 at best. With an example exchange it also got 16, but then asked the weather
    tool for the capital of France, so there is none.
    """
    lines = ['Answer with one JSON object. To use a tool: {"name": tool, "arguments": {...}}.']
    if reply:
        lines[0] += f' To answer: {{"name": "{reply}", "text": answer}}.'
    lines.append("Tools:")
    lines += [f"- {tool.name}({_signature(tool)}): {_summary(tool)}" for tool in tools]
    if reply:
        lines.append(f"- {reply}(text: string): Answer the user in words.")
    return "\n".join(lines)


def choice_schema(
    tools: Sequence[ToolDefinition], reply: str | None, answer: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Return one JSON schema: `anyOf` a reply (unless None) and each tool's parameters. Definitions are at its root.

    The text of the reply is an object if `answer` is its schema.
    """
    definitions: dict[str, Any] = {}
    wanted = answer or {"type": "string"}
    text = _accepted_schema(wanted, prefix=f"{reply}.", definitions=definitions)
    options = [_object({"name": {"const": reply}, "text": text})] if reply else []
    for tool in tools:
        arguments = _accepted_schema(tool.parameters_json_schema, prefix=f"{tool.name}.", definitions=definitions)
        options.append(_object({"name": {"const": tool.name}, "arguments": arguments}))
    return {"anyOf": options} | ({"$defs": definitions} if definitions else {})


def reply_name(tools: Sequence[ToolDefinition]) -> str:
    """Return the name of a reply: "reply", or a similar name if a tool has that one."""
    name, taken = "reply", {tool.name for tool in tools}
    while name in taken:
        name += "_to_user"
    return name


# --- decoding -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """The decoded choice: `text` not given out yet, or a `call` (name, arguments). `whole` is False if it was cut."""

    text: str = ""
    call: tuple[str, dict[str, Any]] | None = None
    whole: bool = True


class ToolChoiceDecoder:
    """Decodes one choice from chunks cut anywhere. Gives out its text while the rest is still being written.

    `feed` and `finish` never raise, and take time linear in the input. If a model ignores the schema and writes no JSON
    at all, everything it wrote is the text. Without a schema, so is JSON that names none of the `tools`. Each response
    needs its own decoder.
    """

    def __init__(self, reply: str = "reply", tools: Collection[str] | None = None) -> None:
        self._reply, self._tools = reply, tools
        self._opening = re.compile(
            rf'\s*(?:```\w*\s*)?\{{\s*"name"\s*:\s*{re.escape(json.dumps(reply))}\s*,\s*"text"\s*:\s*"'
        )
        self._chunks: list[str] = []
        self._undecided: str | None = ""
        self._string: _JsonString | None = None
        self._plain = False

    def feed(self, chunk: str) -> str:
        """Take a chunk and return the text that it adds to the reply, often ""."""
        if self._plain:
            return chunk
        if self._string:
            return self._string.feed(chunk)
        self._chunks.append(chunk)
        return "" if self._undecided is None else self._decide(self._undecided + chunk)

    def finish(self) -> ToolChoice:
        """End the input and return the rest that has not been given out yet."""
        if self._plain:
            return ToolChoice()
        if self._string:
            return ToolChoice(whole=self._string.rest.lstrip().startswith("}"))
        return self._read("".join(self._chunks))

    def _decide(self, head: str) -> str:
        """Look for the opening of a reply in the first characters only, so that long arguments need no rescans."""
        if opening := self._opening.match(head):
            self._string = _JsonString()
            return self._string.feed(head[opening.end() :])
        bare = _OPENED_FENCE.sub("", head.lstrip())
        if bare[:1] not in ("", "{") and not "```".startswith(bare):
            self._plain = True
            return head
        self._undecided = head if len(head) < _LONGEST_OPENING else None
        return ""

    def _read(self, raw: str) -> ToolChoice:
        """Decode a text that does not open as a reply: a tool call, a reply in another order, or neither."""
        bare = _OPENED_FENCE.sub("", raw.lstrip())
        try:
            value, _ = _DECODER.raw_decode(bare)
        except (ValueError, RecursionError):
            return ToolChoice(whole=False) if _begins_a_choice(bare) else ToolChoice(text=raw)
        name, arguments = value.get("name"), value.get("arguments", {})
        if name == self._reply and isinstance(text := value.get("text"), str | dict):
            return ToolChoice(text=_scrub(text) if isinstance(text, str) else _dump(_scrub(text)))
        is_tool = name != self._reply if self._tools is None else name in self._tools
        if isinstance(name, str) and is_tool and _is_dict(arguments):
            return ToolChoice(call=(_scrub(name), _scrub(arguments)))
        return ToolChoice(text=raw)


class _JsonString:
    """The inside of one JSON string, unescaped chunk by chunk up to its closing quote. `rest` is the text after it."""

    def __init__(self) -> None:
        self.rest = ""
        self._closed = False
        self._held = ""  # the beginning of an escape that is not complete; a surrogate pair is one escape

    def feed(self, chunk: str) -> str:
        if self._closed:
            if not self.rest.strip():
                self.rest = chunk
            return ""
        data, self._held = self._held + chunk, ""
        out: list[str] = []
        at = 0
        while at < len(data):
            if run := _PLAIN_RUN.match(data, at):
                out.append(run[0])
            elif data[at] == '"':
                self._closed, self.rest = True, data[at + 1 :]
                break
            elif _HALF_ESCAPE.fullmatch(data, at):
                self._held = data[at:]
                break
            else:
                run = _ESCAPE.match(data, at)
                assert run  # every text that begins with a backslash matches one of the two
                out.append(_unescape(run[0]))
            at = run.end()
        return "".join(out)


_LONGEST_OPENING = 256
_OPENED_FENCE = re.compile(r"^```\w*\s*")
"""The beginning of a block of code, which models put around JSON that no schema binds."""
_PLAIN_RUN = re.compile(r'[^"\\]+')
_ESCAPE = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\.", re.DOTALL)
_HALF_ESCAPE = re.compile(
    r"\\(?:u[0-9a-fA-F]{0,3}|u[dD][89abAB][0-9a-fA-F]{2}(?:\\(?:u(?:[dD](?:[c-fC-F][0-9a-fA-F]?)?)?)?)?)?"
)
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def _unescape(escape: str) -> str:
    try:
        return _scrub(json.loads(f'"{escape}"'))
    except ValueError:  # not a JSON escape: show it as written rather than lose it
        return escape


def _scrub(value: Any) -> Any:
    """Return the value with U+FFFD for lone surrogates, which no store and no page can encode."""
    if isinstance(value, str):
        return _LONE_SURROGATE.sub("\ufffd", value)
    if _is_list(value):
        return [_scrub(item) for item in value]
    if _is_dict(value):
        return {_scrub(name): _scrub(item) for name, item in value.items()}
    return value


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is not JSON")


# strict=False: small models put raw newlines into strings, which does no harm.
_DECODER = json.JSONDecoder(strict=False, parse_constant=_refuse)


def _begins_a_choice(raw: str) -> bool:
    """Return True if a text that is not JSON looks like a choice that was cut, and so must not be shown."""
    head = re.sub(r"\s", "", raw[:_LONGEST_OPENING])
    return any(head.startswith(key) or key.startswith(head) for key in ('{"name"', '{"text"', '{"arguments"'))


# --- describing tools -------------------------------------------------------------------------------------------------


def _signature(tool: ToolDefinition) -> str:
    properties: dict[str, Any] = tool.parameters_json_schema.get("properties", {})
    return ", ".join(f"{name}: {_type_of(schema)}" for name, schema in properties.items())


def _type_of(schema: Any) -> str:
    if not _is_dict(schema):
        return "any"
    if _is_list(options := schema.get("enum")):
        return "|".join(_dump(option) for option in options)
    return str(schema.get("type", "any"))


def _summary(tool: ToolDefinition) -> str:
    """Return the first paragraph of the description. pydantic-ai wraps it in `<summary>` if a return is described."""
    text = (tool.description or "").removeprefix("<summary>").split("</summary>")[0]
    return " ".join(text.split("\n\n")[0].split())


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def _accepted_schema(schema: Any, *, prefix: str, definitions: dict[str, Any]) -> Any:
    """Return the schema without keywords that grammars refuse. Its definitions move to the root with a prefix.

    Leaving parts out only loosens it: when the tool is executed, the arguments are validated against the full schema.
    """
    if _is_list(schema):
        return [_accepted_schema(item, prefix=prefix, definitions=definitions) for item in schema]
    if not _is_dict(schema):
        return schema
    kept: dict[str, Any] = {}
    for keyword, value in schema.items():
        if keyword in ("$defs", "definitions"):
            for name, definition in value.items():
                definitions[prefix + name] = _accepted_schema(definition, prefix=prefix, definitions=definitions)
        elif keyword == "$ref":
            if local := _DEFINITION.fullmatch(str(value)):
                kept["$ref"] = f"#/$defs/{prefix}{local[1]}"
        elif keyword == "properties":
            kept[keyword] = {
                name: _accepted_schema(each, prefix=prefix, definitions=definitions) for name, each in value.items()
            }
        elif keyword in _VALUES:
            kept[keyword] = value
        elif keyword in _SCHEMAS:
            kept[keyword] = _accepted_schema(value, prefix=prefix, definitions=definitions)
    return kept


_VALUES = ("type", "const", "enum", "required", "minimum", "maximum")
_SCHEMAS = ("items", "prefixItems", "anyOf", "oneOf", "allOf", "additionalProperties")
_DEFINITION = re.compile(r"#/(?:\$defs|definitions)/([^/]+)")


def _is_list(value: object) -> TypeGuard[list[Any]]:
    return isinstance(value, list)


class ToolEmulationModel(StreamingModel, WrapperModel):
    """A wrapper that lets a model call tools although its chat template cannot: `ToolEmulationModel(chat_model)`.

    It sends no function tools. They become the server's `response_format`, one line each in the system message, and
    plain user and assistant messages in the history. The streamed JSON comes back as ordinary text and tool call
    parts, one part per response. A request without function tools passes through, except that the tool parts of its
    history become text. `tool_choice` is honoured.

    Without `schemas`, the system message alone binds the model. A native call is taken, too, if the server sends one.

    Malformed output of the model never raises. JSON that was cut or is wrong gives the text so far, `state`
    "incomplete" and the server's finish reason, or "error" if the server claims a normal end.
    """

    def __init__(self, wrapped: Model, *, schemas: bool = True) -> None:
        super().__init__(wrapped)
        self._schemas = schemas

    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: RunContext[Any] | None = None,
    ) -> AsyncGenerator[StreamedResponse]:
        tools, may_reply = _offered_tools(model_request_parameters, model_settings)
        parameters = replace(model_request_parameters, function_tools=[], tool_visibility=None)
        if not tools:
            rewritten = rewrite_history(messages) if _has_tool_parts(messages) else messages
            settings = _without_tool_choice(model_settings)
            async with self.wrapped.request_stream(rewritten, settings, parameters, run_context) as stream:
                yield stream
            return
        reply = reply_name(tools)
        system = "\n\n".join([*_instructions(messages, parameters), instruction(tools, reply if may_reply else None)])
        settings = _without_tool_choice(model_settings)
        if self._schemas:
            wanted = parameters.output_object and parameters.output_object.json_schema
            settings = self._with_schema(settings, choice_schema(tools, reply if may_reply else None, wanted))
        rewritten = rewrite_history(messages, reply=reply, system=system)
        parameters = replace(parameters, instruction_parts=None, output_mode="text", output_object=None)
        async with self.wrapped.request_stream(rewritten, settings, parameters, run_context) as stream:
            decoder = ToolChoiceDecoder(reply, None if self._schemas else [tool.name for tool in tools])
            yield ToolEmulationStream(model_request_parameters, inner=stream, decoder=decoder)

    def _with_schema(self, settings: ModelSettings, schema: dict[str, Any]) -> ModelSettings:
        """Return the settings with the schema in `extra_body`, which is sent untouched whatever the profile supports.

        pydantic-ai merges settings only at the top level, so the wrapped model's own `extra_body` is merged here.
        """
        own = (self.wrapped.settings or {}).get("extra_body")
        given = settings.get("extra_body")
        body: dict[str, Any] = {**(own if _is_dict(own) else {}), **(given if _is_dict(given) else {})}
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "choice", "schema": schema}}
        return cast(ModelSettings, {**settings, "extra_body": body})


@dataclass
class ToolEmulationStream(StreamedResponse):
    """The stream of an emulated response: passes the wrapped model's reasoning on and decodes its JSON."""

    inner: StreamedResponse
    decoder: ToolChoiceDecoder
    _has_native_call: bool = field(default=False, init=False)

    async def _get_event_iterator(self) -> AsyncIterator[ModelResponseStreamEvent]:
        try:
            async for event in self.inner:
                self._follow()
                for routed in self._route(event):
                    yield routed
        finally:
            self._follow()
        if self.inner.cancelled:
            return  # after a stop, a call that happened to be complete must not be executed
        for routed in self._close(self.decoder.finish()):
            yield routed

    def _route(self, event: ModelResponseStreamEvent) -> Iterator[ModelResponseStreamEvent]:
        match event:
            case PartStartEvent(part=TextPart(content=content)):
                yield from self._text(self.decoder.feed(content))
            case PartDeltaEvent(delta=TextPartDelta(content_delta=content)):
                yield from self._text(self.decoder.feed(content))
            case PartStartEvent(part=ThinkingPart() as part):
                yield self._parts_manager.handle_part(vendor_part_id=("thinking", event.index), part=replace(part))
            case PartDeltaEvent(delta=ThinkingPartDelta() as delta):
                yield from self._parts_manager.handle_thinking_delta(
                    vendor_part_id=("thinking", event.index),
                    content=delta.content_delta,
                    signature=delta.signature_delta,
                    provider_name=delta.provider_name,
                    provider_details=delta.provider_details,
                )
            case PartStartEvent(part=ToolCallPart() as part):
                self._has_native_call = True
                yield self._parts_manager.handle_part(vendor_part_id=("call", event.index), part=replace(part))
            case PartDeltaEvent(delta=ToolCallPartDelta() as delta):
                if routed := self._parts_manager.handle_tool_call_delta(
                    vendor_part_id=("call", event.index),
                    tool_name=delta.tool_name_delta,
                    args=delta.args_delta,
                    tool_call_id=delta.tool_call_id,
                ):
                    yield routed
            case _:
                pass  # the base class creates the end and final-result events itself

    def _text(self, content: str) -> Iterator[ModelResponseStreamEvent]:
        if content:
            yield from self._parts_manager.handle_text_delta(vendor_part_id="reply", content=content)

    def _close(self, choice: ToolChoice) -> Iterator[ModelResponseStreamEvent]:
        yield from self._text(choice.text)
        if self._has_native_call:
            return
        if choice.call:
            name, arguments = choice.call
            yield self._parts_manager.handle_tool_call_part(vendor_part_id="call", tool_name=name, args=arguments)
            self.finish_reason = "tool_call"
        elif not choice.whole:
            self.state = "incomplete"
            if self.finish_reason in (None, "stop"):
                self.finish_reason = "error"

    def _follow(self) -> None:
        """Copy the state of the wrapped stream. Called after every event, because `get` can be called at any time."""
        self.provider_response_id = self.inner.provider_response_id
        self.provider_details = self.inner.provider_details
        self.canonical_system = self.inner.canonical_system
        self.finish_reason = self.inner.finish_reason
        self.state = self.inner.state
        self.metadata = self.inner.metadata
        self.failed_attempts = self.inner.failed_attempts

    async def close_stream(self) -> None:
        await self.inner.cancel()  # unlike `close_stream`, it marks the broken connection as intended

    def get_stream_cancel_errors(self) -> tuple[type[BaseException], ...]:
        return self.inner.get_stream_cancel_errors()

    @property
    def usage(self) -> RequestUsage:
        return self.inner.usage

    @property
    def model_name(self) -> str:
        return self.inner.model_name

    @property
    def provider_name(self) -> str | None:
        return self.inner.provider_name

    @property
    def provider_url(self) -> str | None:
        return self.inner.provider_url

    @property
    def timestamp(self) -> datetime:
        return self.inner.timestamp


# --- the request ----------------------------------------------------------------------------------------------------


def rewrite_history(
    messages: Sequence[ModelMessage], *, reply: str | None = None, system: str | None = None
) -> list[ModelMessage]:
    """Return the conversation without tool parts, for templates that know neither tool calls nor a tool role.

    A call becomes an assistant message of JSON, and its result a user message. With `reply`, assistant text becomes
    JSON too, as the model itself wrote it: the model sees its own habit, and the server's prompt cache still fits. With
    `system`, the system prompts and that text become one message at the start, the only place that every template
    accepts. Reasoning is dropped, and messages of one role are joined. The argument is not changed.
    """
    rewritten: list[ModelMessage] = []
    head: list[str] = []
    for message in messages:
        if isinstance(message, ModelResponse):
            _append_response(rewritten, _response_text(message, reply))
            continue
        head += [part.content for part in message.parts if system is not None and isinstance(part, SystemPromptPart)]
        parts = [part for part in message.parts if system is None or not isinstance(part, SystemPromptPart)]
        _append_request(rewritten, parts, None if system is not None else message.instructions)
    if system is not None:
        head_part = SystemPromptPart("\n\n".join([*head, system]))
        if rewritten and isinstance(rewritten[0], ModelRequest):
            rewritten[0] = replace(rewritten[0], parts=[head_part, *rewritten[0].parts])
        else:
            rewritten.insert(0, ModelRequest([head_part]))
    return rewritten


def _append_request(rewritten: list[ModelMessage], parts: Sequence[ModelRequestPart], instructions: str | None) -> None:
    joined: list[ModelRequestPart] = []
    if rewritten and isinstance(previous := rewritten[-1], ModelRequest):
        rewritten.pop()
        joined += previous.parts
        instructions = instructions or previous.instructions
    for part in parts:
        plain = UserPromptPart(_result_content(part)) if isinstance(part, ToolReturnPart) else part
        last = joined[-1] if joined else None
        if isinstance(plain, UserPromptPart) and isinstance(last, UserPromptPart):
            joined[-1] = replace(last, content=_join(last.content, plain.content))
        else:
            joined.append(plain)
    if joined:
        rewritten.append(ModelRequest(joined, instructions=instructions))


def _append_response(rewritten: list[ModelMessage], text: str) -> None:
    if not text:
        return
    if rewritten and isinstance(previous := rewritten[-1], ModelResponse):
        rewritten[-1] = ModelResponse([TextPart(f"{_response_text(previous, None)}\n{text}")])
    else:
        rewritten.append(ModelResponse([TextPart(text)]))


def _response_text(message: ModelResponse, reply: str | None) -> str:
    lines: list[str] = []
    for part in message.parts:
        if isinstance(part, TextPart) and part.content:
            lines.append(_dump({"name": reply, "text": part.content}) if reply else part.content)
        elif isinstance(part, ToolCallPart):
            lines.append(_dump({"name": part.tool_name, "arguments": part.args_as_dict()}))
    return "\n".join(lines)


def _result_content(part: ToolReturnPart[Any]) -> str | list[UserContent]:
    """Return a result as text for the model. "Result of" matters: after "x gave: ...", Coder-0.5B called x again."""
    text, files = part.model_response_str_and_user_content(wrap_if_error=False)
    line = f"Result of {part.tool_name}: {text}" if part.outcome == "success" else f"{part.tool_name} failed: {text}"
    return [line, *files] if files else line


def _join(first: str | Sequence[UserContent], second: str | Sequence[UserContent]) -> str | list[UserContent]:
    if isinstance(first, str) and isinstance(second, str):
        return f"{first}\n\n{second}"
    return [*([first] if isinstance(first, str) else first), *([second] if isinstance(second, str) else second)]


def _offered_tools(
    parameters: ModelRequestParameters, settings: ModelSettings | None
) -> tuple[Sequence[ToolDefinition], bool]:
    """Return the tools that the model can choose, and whether it can reply in words instead."""
    tools = parameters.declared_function_tools
    match (settings or {}).get("tool_choice"):
        case "none":
            return [], True
        case "required":
            return tools, False
        case list() as names:
            return [tool for tool in tools if tool.name in names], False
        case ToolOrOutput(function_tools=names):
            return [tool for tool in tools if tool.name in names], True
        case _:
            return tools, True


def _without_tool_choice(settings: ModelSettings | None) -> ModelSettings:
    kept = {name: value for name, value in (settings or {}).items() if name not in _TOOL_SETTINGS}
    return cast(ModelSettings, kept)


def _instructions(messages: Sequence[ModelMessage], parameters: ModelRequestParameters) -> list[str]:
    """Return the current instructions: from the parameters, else from the latest request that has any."""
    if parameters.instruction_parts is not None:
        return [part.content for part in parameters.instruction_parts]
    for message in reversed(messages):
        if isinstance(message, ModelRequest) and message.instructions:
            return [message.instructions]
    return []


def _has_tool_parts(messages: Sequence[ModelMessage]) -> bool:
    return any(isinstance(part, ToolCallPart | ToolReturnPart) for message in messages for part in message.parts)


_TOOL_SETTINGS = ("tool_choice", "parallel_tool_calls")


def _dump(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _is_dict(value: object) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict)
