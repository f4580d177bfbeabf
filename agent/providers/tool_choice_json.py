"""The JSON in which a model without tool calling states its choice: its schema, its instruction and its decoder.

The choice is one object: `{"name": tool, "arguments": {...}}` or `{"name": "reply", "text": ...}`. Knows nothing of
messages, models or servers. Measurements decided its shape and wording: see `tests/providers/test_tool_emulation.py`.
"""

import json
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from pydantic_ai.tools import ToolDefinition


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


def _dump(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _is_dict(value: object) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict)


def _is_list(value: object) -> TypeGuard[list[Any]]:
    return isinstance(value, list)
