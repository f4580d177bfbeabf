"""The language of the scripted model server: a pure function from a chat request to a plan of actions.

The last user message contains the script, so a person or a browser test can write it on the page. A message that begins
with `!` and a known name is a list of commands, and each further ` !name` starts a new one. Any other message gets a
short friendly answer, and a request for a summary gets one. `!tool`, `!tools` and `!loop` end a step: the commands
after them answer the tool results.

As in vLLM and llama.cpp, `continue_final_message` makes a request ask for the rest of its last message. Only what the
script says after that text is sent then. A command that ends after N tokens goes on with N more.

    !text WORDS               stream the words (\\n and \\t become a line break and a tab)
    !reasoning WORDS          the same as reasoning
    !echo                     stream the request itself as JSON (long strings shortened)
    !tokens N [@RATE]         N tokens of `token(i)`, RATE a second
    !markdown N [@RATE]       N tokens of a long answer in Markdown
    !tokens N hold M NAME     after M tokens silence until the test calls `release(NAME)`, also with `!markdown`
    !think N [@RATE]          N reasoning tokens
    !pace RATE                the rate of the commands after it
    !wait SECONDS             silence, with the headers sent
    !stall-before [headers]   silence for ever, without (or with) the headers
    !stall-after [N]          N tokens, then silence for ever
    !tool [NAME] [JSON]       one tool call, its arguments in pieces; what is not JSON is sent as it stands
    !tools [NAME JSON]...     parallel calls; without names the first offered tools, two calls in any case
    !loop [NAME] [JSON]       the same call after every result
    !status CODE [SECONDS]    an HTTP error, with Retry-After
    !fail N CODE [SECONDS]    the same for the first N attempts, then what follows
    !context                  the 400 of a prompt that is too long
    !blind                    the 400 of a model that takes no pictures if the request has one, then what follows
    !cut [N]                  N tokens, then a clean end without a finish reason
    !reset [N]                N tokens, then a connection reset
    !error-event [N]          N tokens, then an error inside the stream
    !length [N]               N tokens, finish reason length (`!filter`: content_filter)
    !refusal WORDS            a refusal
    !json LIST                deltas as they stand; also {"wait": s}, {"finish": reason or null}, {"raw": "a line"}
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, assert_never

from tests.support.markdown_tokens import markdown_tokens

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Deltas:
    """Deltas to stream, `rate` a second (0: as fast as possible)."""

    items: Sequence[Json]
    rate: float


@dataclass(frozen=True, slots=True)
class Wait:
    """Silence for some seconds. Infinite is a stall."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Hold:
    """Silence until the test releases this name."""

    name: str


@dataclass(frozen=True, slots=True)
class Hush:
    """Silence forever before anything is sent, including the headers."""


@dataclass(frozen=True, slots=True)
class Refuse:
    """An HTTP error instead of an answer."""

    status: int
    body: Json
    headers: dict[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class Raw:
    """A line of the event stream, sent unchanged."""

    line: str


@dataclass(frozen=True, slots=True)
class Finish:
    """The finish reason, usage and the end mark. None omits the reason."""

    reason: str | None


@dataclass(frozen=True, slots=True)
class Break:
    """An ending that no healthy server produces."""

    how: Literal["cut", "reset", "error-event"]


Action = Deltas | Wait | Hold | Hush | Refuse | Raw | Finish | Break
ENDINGS = (Hush, Refuse, Finish, Break)


@dataclass(frozen=True, slots=True)
class Command:
    """One command of a script, with the text after its name."""

    name: str
    text: str = ""


@dataclass(frozen=True, slots=True)
class Scene:
    """The input of a command: the request, the results of the tools it called, and the number of its attempts.

    `begun` is the text that the request asks to continue, "" if it asks for a new answer.
    """

    body: Json
    results: Sequence[str]
    step: int
    attempt: int
    begun: str = ""


def plan(
    body: Json, *, attempt: int = 1, rate: float = 100.0, scripts: Mapping[str, str] = MappingProxyType({})
) -> list[Action]:
    """Decide the whole answer to a chat request. `attempt` counts requests with the same messages from 1.

    A message with a key of `scripts` as its text plays that script. A key can begin with a model's name and ": ".
    """
    messages: list[Json] = body.get("messages") or []
    begun = ""
    if body.get("continue_final_message"):
        if body.get("add_generation_prompt", True):
            return [Refuse(400, error_body(_BOTH, "BadRequestError", 400))]
        *messages, last = messages
        begun = message_text(last)
    at = _last_prompt(messages)
    text = message_text(messages[at]) if at >= 0 else ""
    if script := scripts.get(f"{body.get('model')}: {text}") or scripts.get(text):
        messages = [*messages[:at], {**messages[at], "content": script}, *messages[at + 1 :]]
    return _rest(_plan(body, messages, begun, attempt, rate), begun)


_BOTH = "Cannot set both `continue_final_message` and `add_generation_prompt` to True."


def _rest(actions: Sequence[Action], begun: str) -> list[Action]:
    """Return the actions after the text `begun`: a server that continues a text neither reasons nor waits before it."""
    out: list[Action] = []
    for action in actions:
        if begun and isinstance(action, Deltas):
            items, begun = _after(action.items, begun)
            out += [Deltas(items, action.rate)] if items else []
        elif not begun or isinstance(action, ENDINGS):
            out.append(action)
    return out


def _after(items: Sequence[Json], begun: str) -> tuple[list[Json], str]:
    """Return the deltas after the text `begun`, and the part of it that they do not have."""
    for number, item in enumerate(items):
        text = str(item.get("content", ""))
        if len(text) > len(begun) and text.startswith(begun):
            return [{"content": text.removeprefix(begun)}, *items[number + 1 :]], ""
        if not begun.startswith(text):
            raise ValueError(f"the text {begun[:40]!r} is not of this script")
        begun = begun.removeprefix(text)
        if not begun:
            return list(items[number + 1 :]), ""
    return [], begun


def _plan(body: Json, messages: list[Json], begun: str, attempt: int, rate: float) -> list[Action]:
    at = _last_prompt(messages)
    text = message_text(messages[at]) if at >= 0 else ""
    after = messages[at + 1 :]
    results = [message_text(message) for message in after if message.get("role") == "tool"]
    step = sum(1 for message in after if message.get("role") == "assistant")
    commands = _commands_of_step(parse(text), step)
    if commands is None and messages and message_text(messages[0]).startswith("You summarize the beginning"):
        return _finished([Deltas(_words(f"In short: {text.count('User: ')} questions were answered."), rate)])
    if commands is None:
        said = _friendly(text, messages[:at], messages[at] if at >= 0 else {})
        schema = (body.get("response_format") or {}).get("json_schema", {}).get("schema", {})
        fitting = json.dumps(_fitting(schema, schema, said)) if "properties" in schema else said
        return _finished([Deltas(_words(fitting), rate)])
    scene = Scene(body=body, results=results, step=step, attempt=attempt, begun=begun)
    actions: list[Action] = []
    for command in commands or [Command("quote")]:
        if command.name == "pace":
            rate = _number(command.text, rate)
            continue
        for action in COMMANDS[command.name](command.text, scene):
            actions.append(Deltas(action.items, rate) if isinstance(action, Deltas) and action.rate < 0 else action)
            if isinstance(action, ENDINGS):
                return actions
    return _finished(actions)


def parse(text: str) -> list[Command]:
    """Split a script into commands. Return an empty list if the text is not a script."""
    commands: list[Command] = []
    text = text.strip()
    found = NAME.match(text)
    while found:
        start = found.end()
        end = start
        while found[1] in TAKES_JSON and (further := _after_json(text, end)) > end:
            end = further
        following = NAME.search(text, end)
        commands.append(Command(found[1], text[start : following.start() if following else None].strip()))
        found = following
    return commands


def token(i: int) -> str:
    """Return token `i` of `!tokens`: always the word `word<i>`, in Markdown that changes every few dozen tokens."""
    word, at = f"word{i} ", i % 200
    if at < 6:  # a heading
        return ("\n\n## " if at == 0 and i else "## " if at == 0 else "") + word + ("\n\n" if at == 5 else "")
    if 60 <= at < 100:  # a list
        return ("\n- " if at % 8 == 4 else "") + word
    if 130 <= at < 160:  # a block of code
        opening = "\n\n```python\n" if at == 130 else ""
        return opening + word + ("\n```\n\n" if at == 159 else "\n" if at % 5 == 4 else "")
    if 160 <= at < 184:  # a table of three columns
        opening = "\n\n| a | b | c |\n|---|---|---|\n| " if at == 160 else ""
        return opening + word + ("|\n\n" if at == 183 else "|\n| " if at % 3 == 0 and at > 160 else "| ")
    return f"**word{i}** " if at % 10 == 7 else f"`word{i}` " if at % 30 == 9 else word


def message_text(message: Json) -> str:
    """Return the text of a message. Its content is a string or a list of parts."""
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "\n".join(part.get("text", "") for part in content if part.get("type") == "text")


def error_body(message: str, kind: str, code: int | str, param: str | None = None) -> Json:
    """Return an error in the shape that OpenAI and vLLM use."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def _last_prompt(messages: list[Json]) -> int:
    """Return the index of the last prompt. A user message that only carries a tool's file is not one."""
    for at in range(len(messages) - 1, -1, -1):
        if messages[at].get("role") != "user":
            continue
        if at and messages[at - 1].get("role") == "tool" and message_text(messages[at]).startswith("This is file"):
            continue
        return at
    return -1


def _commands_of_step(commands: list[Command], step: int) -> list[Command] | None:
    """Return the commands of one model request: an empty list after the script's end, None if it is not a script."""
    if not commands:
        return None
    if any(command.name == "loop" for command in commands):
        return commands
    steps: list[list[Command]] = [[]]
    for command in commands:
        steps[-1].append(command)
        if command.name in ("tool", "tools"):
            steps.append([])
    return steps[step] if step < len(steps) else []


def _finished(actions: list[Action]) -> list[Action]:
    return [*actions, Finish("stop")]


def _friendly(text: str, before: Sequence[Json], prompt: Json) -> str:
    count = sum(1 for message in before if message.get("role") in ("user", "assistant"))
    parts = prompt.get("content")
    kinds = [part.get("type", "") for part in parts] if isinstance(parts, list) else []
    media = ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds) if kind != "text")
    also = f" With it came {media}." if media else ""
    return f'Hello! You said: "{text.strip()}".{also} Before it I was sent {count} messages.'


def _fitting(schema: Json, root: Json, text: str) -> Any:
    """Return a value that fits a simple schema. Its texts are `text`."""
    if "$ref" in schema:
        return _fitting(root["$defs"][schema["$ref"].rpartition("/")[2]], root, text)
    if "anyOf" in schema:
        return _fitting(schema["anyOf"][0], root, text)
    match schema.get("type"):
        case "object":
            return {name: _fitting(one, root, text) for name, one in schema.get("properties", {}).items()}
        case "array":
            return [_fitting(schema["items"], root, text)]
        case "number" | "integer":
            return 7
        case "boolean":
            return True
        case _:
            return schema.get("enum", [text])[0]


# The commands. Each returns its actions. Deltas with a negative rate take the rate of the script.


def _text(text: str, scene: Scene) -> list[Action]:
    return [Deltas(_words(_escapes(text)), -1)]


def _reasoning(text: str, scene: Scene) -> list[Action]:
    return [Deltas(_words(_escapes(text), "reasoning"), -1)]


def _refusal(text: str, scene: Scene) -> list[Action]:
    return [Deltas(_words(_escapes(text) or "I can't help with that.", "refusal"), -1)]


def _quote(text: str, scene: Scene) -> list[Action]:
    return [Deltas(_words("The tools said: " + "; ".join(f'"{result}"' for result in scene.results)), -1)]


def _echo(text: str, scene: Scene) -> list[Action]:
    shown = json.dumps(_shortened(scene.body), indent=1, ensure_ascii=False)
    return [Deltas([{"content": line} for line in f"```json\n{shown}\n```".splitlines(keepends=True)], 0)]


def _tokens(text: str, scene: Scene) -> list[Action]:
    count, rate = _count_and_rate(text)
    return _held([{"content": token(i)} for i in range(count)], rate, text)


def _markdown(text: str, scene: Scene) -> list[Action]:
    count, rate = _count_and_rate(text)
    return _held([{"content": piece} for piece in markdown_tokens(count)], rate, text)


def _held(items: list[Json], rate: float, text: str) -> list[Action]:
    """Stream the deltas, with a silence among them if the text asks for one."""
    if held := re.search(r"hold (\d+) (\S+)", text):
        at = int(held[1])
        return [Deltas(items[:at], rate), Hold(held[2]), Deltas(items[at:], rate)]
    return [Deltas(items, rate)]


def _think(text: str, scene: Scene) -> list[Action]:
    count, rate = _count_and_rate(text)
    return [Deltas([{"reasoning": f"thought{i} "} for i in range(count)], rate)]


def _wait(text: str, scene: Scene) -> list[Action]:
    return [Wait(_number(text, 1.0))]


def _stall_before(text: str, scene: Scene) -> list[Action]:
    return [Wait(float("inf"))] if text == "headers" else [Hush()]


def _after_tokens(*ending: Action) -> Callable[[str, Scene], list[Action]]:
    def act(text: str, scene: Scene) -> list[Action]:
        count, rate = _count_and_rate(text or "5")
        count += len(re.findall(r"word\d+", scene.begun))
        return [Deltas([{"content": token(i)} for i in range(count)], rate), *ending]

    return act


def _tool(text: str, scene: Scene) -> list[Action]:
    name, arguments = _call(text, scene, 0)
    return [Deltas(_call_deltas([(name, arguments)], scene), -1), Finish("tool_calls")]


def _tools(text: str, scene: Scene) -> list[Action]:
    calls: list[tuple[str, str]] = []
    while text:
        end = _after_json(text, 0) or len(text)
        calls.append(_call(text[:end], scene, 0))
        text = text[end:].strip()
    calls = calls or [_call("", scene, 0), _call("", scene, 1)]
    return [Deltas(_call_deltas(calls, scene), -1), Finish("tool_calls")]


def _status(text: str, scene: Scene) -> list[Action]:
    numbers = re.findall(r"[\d.]+", text) or ["500"]
    code = int(float(numbers[0]))
    kind, name, message = ERRORS.get(code, ("api_error", str(code), "The server had an error."))
    headers = {"retry-after": numbers[1]} if len(numbers) > 1 else {}
    return [Refuse(code, error_body(message, kind, name), headers)]


def _fail(text: str, scene: Scene) -> list[Action]:
    times, _, rest = text.partition(" ")
    return _status(rest, scene) if scene.attempt <= int(_number(times, 1)) else []


def _context(text: str, scene: Scene) -> list[Action]:
    message = (
        "This model's maximum context length is 32768 tokens. However, you requested 41234 tokens (40210 in the "
        "messages, 1024 in the completion). Please reduce the length of the messages or completion."
    )
    return [Refuse(400, error_body(message, "BadRequestError", 400))]


def _blind(text: str, scene: Scene) -> list[Action]:
    message = f"{scene.body.get('model')} is not a multimodal model"  # of vLLM
    has_picture = '"image_url"' in json.dumps(scene.body.get("messages"))
    return [Refuse(400, error_body(message, "BadRequestError", 400))] if has_picture else []


def _json(text: str, scene: Scene) -> list[Action]:
    actions: list[Action] = []
    for item in json.loads(text):
        match item:
            case {"wait": seconds}:
                actions.append(Wait(float(seconds)))
            case {"finish": reason}:
                actions.append(Finish(reason))
            case {"raw": line}:
                actions.append(Raw(str(line)))
            case _:
                actions.append(Deltas([item], 0))
    return actions


COMMANDS: dict[str, Callable[[str, Scene], list[Action]]] = {
    "text": _text,
    "reasoning": _reasoning,
    "refusal": _refusal,
    "quote": _quote,
    "echo": _echo,
    "tokens": _tokens,
    "markdown": _markdown,
    "think": _think,
    "pace": _wait,  # never called, because `plan` handles it
    "wait": _wait,
    "stall-before": _stall_before,
    "stall-after": _after_tokens(Wait(float("inf"))),
    "tool": _tool,
    "tools": _tools,
    "loop": _tool,
    "status": _status,
    "fail": _fail,
    "context": _context,
    "blind": _blind,
    "cut": _after_tokens(Break("cut")),
    "reset": _after_tokens(Break("reset")),
    "error-event": _after_tokens(Break("error-event")),
    "length": _after_tokens(Finish("length")),
    "filter": _after_tokens(Finish("content_filter")),
    "json": _json,
}
TAKES_JSON = frozenset({"tool", "tools", "loop", "json"})
NAME = re.compile(r"(?:^|(?<=\s))!(" + "|".join(sorted(COMMANDS, key=len, reverse=True)) + r")(?=\s|$)")
ERRORS: dict[int, tuple[str, str, str]] = {
    400: ("invalid_request_error", "invalid_value", "The request is not valid."),
    401: ("invalid_request_error", "invalid_api_key", "Incorrect API key provided: sk-wrong."),
    403: ("invalid_request_error", "forbidden", "You are not allowed to use this model."),
    404: ("invalid_request_error", "model_not_found", "The model does not exist or you do not have access to it."),
    429: ("rate_limit_error", "rate_limit_exceeded", "Rate limit reached. Please try again later."),
    500: ("server_error", "server_error", "The server had an error while processing your request."),
    503: ("server_error", "overloaded", "The server is overloaded. Please try again later."),
}


def _call(text: str, scene: Scene, index: int) -> tuple[str, str]:
    """Return name and raw arguments of a typed call. Without a typed name, take the offered tool at `index`."""
    name, _, arguments = text.strip().partition(" ")
    if name and not name.startswith("{"):
        return name, arguments.strip() or "{}"
    offered = [tool["function"]["name"] for tool in scene.body.get("tools") or []] or ["nothing"]
    return offered[index % len(offered)], text.strip() or "{}"


def _call_deltas(calls: Sequence[tuple[str, str]], scene: Scene) -> list[Json]:
    """Stream each call's id and name, then its arguments in pieces of 4 characters, so that cuts fall anywhere."""
    deltas: list[Json] = []
    for index, (name, arguments) in enumerate(calls):
        head = {"index": index, "id": f"chatcmpl-tool-{scene.step}-{index}", "type": "function"}
        deltas.append({"tool_calls": [{**head, "function": {"name": name, "arguments": ""}}]})
        for at in range(0, len(arguments), 4):
            deltas.append({"tool_calls": [{"index": index, "function": {"arguments": arguments[at : at + 4]}}]})
    return deltas


def _words(text: str, name: str = "content") -> list[Json]:
    """Cut text roughly as a tokenizer does: words with the space before them, long words in pieces."""
    return [{name: piece} for piece in re.findall(r"\s*\S{1,8}|\s+", text)]


def _escapes(text: str) -> str:
    return text.replace("\\n", "\n").replace("\\t", "\t")


def _count_and_rate(text: str) -> tuple[int, float]:
    count = re.match(r"\d+", text)
    rate = re.search(r"@([\d.]+)", text)
    return int(count[0]) if count else 5, float(rate[1]) if rate else -1


def _number(text: str, default: float) -> float:
    found = re.match(r"[\d.]+", text)
    return float(found[0]) if found else default


def _after_json(text: str, start: int) -> int:
    """Return the end of the first JSON value after `start`, or `start` if there is none.

    Searching for the next command only after it lets a command's JSON contain the text of another command.
    """
    opening = re.compile(r"[^!{\[]*(?=[{\[])").match(text, start)
    if not opening:
        return start
    try:
        return json.JSONDecoder().raw_decode(text, opening.end())[1]
    except json.JSONDecodeError:
        return start


def _shortened(value: Any, limit: int = 200) -> Any:
    match value:
        case str():
            return value if len(value) <= limit else f"{value[:limit]}... ({len(value)} characters)"
        case list():
            return [_shortened(item) for item in value]
        case dict():
            return {key: _shortened(item) for key, item in value.items()}
        case _:
            return value


def pieces(actions: Sequence[Action]) -> Iterator[Json]:
    """Yield all deltas of a plan, which is what a client should have read."""
    for action in actions:
        match action:
            case Deltas(items=items):
                yield from items
            case Wait() | Hold() | Hush() | Refuse() | Raw() | Finish() | Break():
                continue
            case _:
                assert_never(action)
