"""Histories that fit a model: what a request leaves out of a long conversation, and the summary that stands for it.

The conversation keeps all its messages. What is left out is noted in the metadata of the next answer, so every store
and every `Context` has it, and a later run leaves out the same.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any, cast

from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    TextContent,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from agent.errors import InputError
from agent.keyword_arguments import explains_fields, shown
from agent.messages.repair import count_bytes, text_bytes
from agent.plain_text import is_picture

KEY = "compaction"
"""The key in the metadata of an answer."""
NO_PICTURE = "[A picture was here. It is left out, because the conversation is long.]"
INSTRUCTIONS = (
    "You summarize the beginning of a conversation for the assistant that goes on with it and sees nothing else of it. "
    "Keep what the user wants, facts, names, numbers, decisions, results of tools and what is still open. Write the "
    "summary alone, in the language of the conversation."
)
LONGEST_ITEM = 4000
"""The most bytes of one text or result in the transcript that is summarized. Bytes, because a character of Chinese,
Japanese or Korean is a token or more, and has three."""
LONGEST_PROMPT = 20_000
"""The same for a prompt, before which the summary of what came before it can stand."""
_EPOCH = datetime.fromtimestamp(0, UTC)


@explains_fields
@dataclass(frozen=True, slots=True, kw_only=True)
class Compaction:
    """Makes long conversations fit the model: `Agent(..., compaction=Compaction(at=0.85, keep=6))`.

    It acts before a request that would fill more than `at` of the model's context; above 1, `at` is a number of tokens.
    First, pictures are left out of all but the newest `keep` messages. If that is not enough, a summary replaces these
    older messages. `summarize` is a function, also an async one, that gets the older messages and returns the summary;
    None: the model writes it. A call and its result stay together, so a few more messages can be kept.

    The conversation keeps everything. `Context.without_summary` drops the summary, and an agent without `compaction`
    does not use it. Raises `InputError` for a value that is not possible.
    """

    at: float = 0.85
    keep: int = 6
    summarize: Callable[[Sequence[ModelMessage]], str | Awaitable[str]] | None = None

    def __post_init__(self) -> None:
        at, keep, summarize = cast(tuple[object, ...], (self.at, self.keep, self.summarize))
        if not isinstance(at, int | float) or isinstance(at, bool) or not at > 0:
            raise InputError(f"at is a part of the context such as 0.85, or a number of tokens, not {shown(at)}")
        if not isinstance(keep, int) or isinstance(keep, bool) or keep < 1:
            raise InputError(f"keep is the number of messages that stay as they are, 1 or more, not {shown(keep)}")
        if summarize is not None and not callable(summarize):
            raise InputError(f"summarize is a function of messages that returns a text, not {shown(summarize)}")

    def tokens(self, context_tokens: int) -> float:
        """Return the most tokens of a request to a model with this context."""
        return self.at if self.at > 1 else self.at * context_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The part of a conversation that requests leave out. Answers are counted from its beginning.

    `text` replaces the first `answers` answers, what came before them, and the results of their calls. The pictures
    before the end of the first `pictures` answers are left out.
    """

    answers: int = 0
    text: str = ""
    pictures: int = 0


def summary_of(messages: Sequence[ModelMessage]) -> Summary:
    """Return what the newest answer that says so leaves out; nothing if none does."""
    for message in reversed(messages):
        if isinstance(message, ModelResponse) and message.metadata and KEY in message.metadata:
            return _read(message.metadata[KEY])
    return Summary()


def _read(noted: object) -> Summary:
    """Return what was noted. A note that this version did not write leaves nothing out."""
    try:
        return Summary(**cast(Any, noted))
    except TypeError:
        return Summary()


def with_summary(response: ModelResponse, summary: Summary | None) -> ModelResponse:
    """Return the answer with this in its metadata; None: without what is there."""
    others = {name: value for name, value in (response.metadata or {}).items() if name != KEY}
    added = {KEY: asdict(summary)} if summary is not None else {}
    return replace(response, metadata=(others | added) or None)


def coverable_answers(messages: Sequence[ModelMessage], keep: int) -> int:
    """Return how many answers can be left out so that at least `keep` messages stay, and each call has its result."""
    count = most = 0
    for number, message in enumerate(messages):
        if not isinstance(message, ModelResponse):
            continue
        count += 1
        after = messages[number + 1 :][: keep + 1]
        if after and isinstance(after[0], ModelRequest):  # not in the middle of a text that was continued
            has_prompt = bool(_without_results(after[0]).parts)
            most = count if len(after) - (not has_prompt) >= keep else most
    return most


def shortened(messages: Sequence[ModelMessage], summary: Summary) -> list[ModelMessage]:
    """Return the messages to send. Those that are sent whole are not copied, so what was signed stays valid."""
    start, pictures = _after_answer(messages, summary.answers), _after_answer(messages, summary.pictures)
    rest = list(messages[start:])
    for number in range(pictures - start):
        rest[number] = _without_pictures(rest[number])
    if not summary.text:
        return rest
    while rest and isinstance(first := rest[0], ModelRequest):
        rest[0] = _without_results(first)
        if rest[0].parts:
            break
        del rest[0]
    told = f"[Summary of the conversation so far]\n\n{summary.text}"
    if not rest or not isinstance(first := rest[0], ModelRequest):
        return [ModelRequest(parts=[UserPromptPart(told, timestamp=_EPOCH)], timestamp=_EPOCH), *rest]
    return [replace(first, parts=_with_text(told, first.parts)), *rest[1:]]


def covered(messages: Sequence[ModelMessage], before: Summary, answers: int) -> list[ModelMessage]:
    """Return the messages that a summary of this many answers is about, with the summary `before` of the first ones."""
    at = _after_answer(messages, answers)
    results: list[ModelMessage] = []
    while at < len(messages) and isinstance(one := messages[at], ModelRequest):
        kept = [part for part in one.parts if isinstance(part, ToolReturnPart)]
        results += [replace(one, parts=kept)] if kept else []
        at += 1
    return [*shortened(messages[: _after_answer(messages, answers)], before), *results]


def transcript(messages: Sequence[ModelMessage], tokens: float) -> str:
    """Return the messages as a text of at most about two thirds of these tokens, for the model that summarizes them.

    If it is longer, the middle is left out: the first message has the task or the summary before.
    """
    most = max(1000, int(2 * tokens))
    first, *others = [line for message in messages for line in _lines(message)] or [""]
    rest = "\n\n".join(others)
    room = max(most - text_bytes(first), most // 2)
    begins = _beginning(first, most - min(text_bytes(rest), room))
    ends = rest if text_bytes(rest) <= room else rest.encode("utf-8", "replace")[-room:].decode("utf-8", "ignore")
    return "\n\n".join(filter(None, [begins, ends]))


def estimate(messages: Sequence[ModelMessage], *texts: str) -> int:
    """Return about how many tokens these are, rather too many than too few."""
    return (sum(map(count_bytes, messages)) + sum(map(text_bytes, texts))) // 3


def _beginning(text: str, most: int) -> str:
    """Return the beginning of a text with at most so many bytes."""
    return text if text_bytes(text) <= most else text[:most].encode("utf-8", "replace")[:most].decode("utf-8", "ignore")


def _lines(message: ModelMessage) -> list[str]:
    lines: list[str] = []
    for part in message.parts:
        match part:
            case UserPromptPart():
                lines.append(f"User: {_text_of(part.content, LONGEST_PROMPT)}")
            case TextPart():
                lines.append(f"Assistant: {_beginning(part.content, LONGEST_ITEM)}")
            case ToolCallPart():
                arguments = _beginning(part.args_as_json_str(), LONGEST_ITEM)
                lines.append(f"Assistant calls {part.tool_name}: {arguments}")
            case ToolReturnPart():
                lines.append(f"Result of {part.tool_name}: {_text_of(part.content)}")
            case _:
                pass
    return lines


def _text_of(content: Any, most: int = LONGEST_ITEM) -> str:
    items = cast(Sequence[object], content) if isinstance(content, list | tuple) else [content]
    texts = [item.content if isinstance(item, TextContent) else item for item in items]
    return _beginning(" ".join(text if isinstance(text, str) else "[file]" for text in texts), most)


def _after_answer(messages: Sequence[ModelMessage], answers: int) -> int:
    """Return the index of the message after the first `answers` answers."""
    if answers:
        for number, message in enumerate(messages):
            answers -= isinstance(message, ModelResponse)
            if not answers:
                return number + 1
    return 0


def _with_text(text: str, parts: Sequence[ModelRequestPart]) -> list[ModelRequestPart]:
    """Return the parts with this text before the prompt, in one part: many chat templates refuse two."""
    if not parts or not isinstance(prompt := parts[0], UserPromptPart):
        return [UserPromptPart(text, timestamp=_EPOCH), *parts]
    content = prompt.content
    joined = f"{text}\n\n{content}" if isinstance(content, str) else [text, *content]
    return [replace(prompt, content=joined), *parts[1:]]


def _without_results(message: ModelRequest) -> ModelRequest:
    parts = [part for part in message.parts if not isinstance(part, ToolReturnPart)]
    return message if len(parts) == len(message.parts) else replace(message, parts=parts)


def _without_pictures(message: ModelMessage) -> ModelMessage:
    if not isinstance(message, ModelRequest):
        return message
    parts: list[ModelRequestPart] = []
    for part in message.parts:
        content: Any = getattr(part, "content", None)
        items = cast(Sequence[object], content) if isinstance(content, list | tuple) else [content]
        if isinstance(part, UserPromptPart | ToolReturnPart) and any(map(is_picture, items)):
            part = replace(part, content=[NO_PICTURE if is_picture(item) else item for item in items])
        parts.append(part)
    changed = any(one is not other for one, other in zip(parts, message.parts, strict=True))
    return replace(message, parts=parts) if changed else message
