"""Prepares stored messages for sending: repairs them, joins continued answers, alternates roles, limits the length."""

import operator
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import takewhile
from typing import Any, cast

from pydantic_ai.messages import (
    BinaryContent,
    FileUrl,
    ModelMessage,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    ModelResponsePart,
    SystemPromptPart,
    TextContent,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserContent,
    UserPromptPart,
)

from agent.files.videos import read_video
from agent.plain_text import plain_text
from agent.responses import steered_text
from agent.system.media_types import is_text_type


def is_cut(message: ModelResponse) -> bool:
    """Return True if the length limit, a stop or a failure ended the response before its end."""
    return message.state == "interrupted" or message.finish_reason == "length"


def join_responses(before: ModelResponse, after: ModelResponse) -> ModelResponse:
    """Return two responses that follow each other as one. Text that continues unfinished text is joined to it."""
    parts, added = [*before.parts], [*after.parts]
    if is_cut(before) and parts and added:
        last, first = parts[-1], added[0]
        if isinstance(last, TextPart) and isinstance(first, TextPart):
            parts[-1] = replace(last, content=last.content + first.content)
            del added[0]
    return replace(after, parts=[*parts, *added])


def join_continued(messages: Sequence[ModelMessage]) -> list[ModelMessage]:
    """Return the messages with each continued answer as one message."""
    out: list[ModelMessage] = []
    for message in messages:
        before = out[-1] if out else None
        if isinstance(message, ModelResponse) and isinstance(before, ModelResponse) and is_cut(before):
            out[-1] = join_responses(before, message)
        else:
            out.append(message)
    return out


def unfinished_text(messages: Sequence[ModelMessage]) -> str:
    """Return the unfinished text that the conversation ends with, which a model can continue; "" if there is none."""
    answers = [*takewhile(lambda one: isinstance(one, ModelResponse), reversed(messages))][::-1]
    answer = join_continued(answers)[-1] if answers else None
    if not isinstance(answer, ModelResponse) or not is_cut(answer) or not answer.parts:
        return ""
    last = answer.parts[-1]
    return last.content if isinstance(last, TextPart) and last.content.strip() else ""


def without_end_space(messages: Sequence[ModelMessage]) -> tuple[list[ModelMessage], str]:
    """Return the messages without the white space at the end of their unfinished text, and that white space.

    Chat templates treat it differently, and after a space many models do not find the next word.
    """
    *earlier, last = messages
    if not isinstance(last, ModelResponse) or not last.parts or not isinstance(part := last.parts[-1], TextPart):
        return list(messages), ""
    text = part.content.rstrip()
    return [*earlier, replace(last, parts=[*last.parts[:-1], replace(part, content=text)])], part.content[len(text) :]


UNANSWERED = "(No answer was given.)"
"""Replaces an answer that ended before any text, because chat templates require alternating roles."""

CUT_THOUGHTS = "(No answer was given: the length limit was reached after these thoughts.)"
"""Precedes the reasoning of an answer that reached the length limit before any text."""

FILE_BYTES = 3000
"""The bytes that a file counts among texts: about a thousand tokens."""

SECOND_BYTES, VIDEO_BYTES = 900, 60_000
"""The bytes that a second of a video counts, and the most for a video: servers take fewer pictures of long ones."""
PAGE_BYTES = 6000
"""The bytes that a page of a PDF counts, which a provider reads as text and as a picture: about two thousand tokens."""
BYTES_OF_PAGE = 50_000
"""The bytes of a PDF for each page of which nothing is known."""
_PDF_PAGE, _SHORT_PDF = re.compile(rb"/Type\s*/Page\b"), 1 << 20

INTERRUPTED = "The call was interrupted and has no result."

_TOOL_PARTS = (ToolCallPart, ToolReturnPart)
_EPOCH = datetime.fromtimestamp(0, UTC)
"""The timestamp of inserted messages. It is fixed, so that repairing a history always gives the same value."""


def repair(messages: Sequence[ModelMessage]) -> list[ModelMessage]:
    """Return the history with exactly one result for each tool call, right after them and in their order.

    Results in several requests, as in a resumed run, are joined in one request. Results without a call are removed, and
    so are calls of an interrupted response, without a name, or with the id of another call in the same response.
    Idempotent. Messages that need no change are not copied.
    """
    out: list[ModelMessage] = []
    waiting: dict[str, str] = {}
    calling = ModelResponse([])
    held: ModelRequest | None = None  # the last message, if it has only results and can get more
    for message in messages:
        if held is None and not waiting and message.parts and not _has_tools(message):  # as most messages
            out.append(message)
            continue
        if isinstance(message, ModelResponse):
            _close(out, held, waiting, calling)
            held, parts = None, list[ModelResponsePart]()
            for part in message.parts:
                if isinstance(part, ToolCallPart):
                    if message.state == "interrupted" or not part.tool_name or part.tool_call_id in waiting:
                        continue
                    waiting[part.tool_call_id] = part.tool_name
                parts.append(part)
            calling = message if len(parts) == len(message.parts) else replace(message, parts=parts)
            out.append(calling)
            continue
        results: list[ToolReturnPart] = []
        others: list[ModelRequestPart] = []
        for part in message.parts:
            if not isinstance(part, ToolReturnPart):
                others.append(part)
            elif waiting.pop(part.tool_call_id, None):
                results.append(part)
        if held is not None and results:
            out[-1] = held = _with_results(held, results, calling)
            results = []
        if others and held is None:
            results += _no_results(waiting)
        elif others:
            _close(out, held, waiting, calling)
            held = None
        if kept := [*in_order_of_calls(results, calling), *others]:
            same = len(kept) == len(message.parts) and all(map(operator.is_, kept, message.parts))
            out.append(message := message if same else replace(message, parts=kept))
            held = None if others else message
    _close(out, held, waiting, calling)
    return out


def in_order_of_calls(results: Iterable[ToolReturnPart], response: ModelResponse) -> list[ToolReturnPart]:
    """Return the results in the order of the response's calls, because many chat templates print them without ids."""
    calls = [part.tool_call_id for part in response.parts if isinstance(part, ToolCallPart)]
    places = {id_: number for number, id_ in enumerate(calls)}
    return sorted(results, key=lambda result: places.get(result.tool_call_id, len(places)))


def unanswered_calls(messages: Sequence[ModelMessage]) -> tuple[int, list[ToolCallPart]]:
    """Return the index of the last response and its calls without a result; none if a prompt follows it."""
    at = max((n for n, message in enumerate(messages) if isinstance(message, ModelResponse)), default=len(messages))
    since = [part for message in messages[at + 1 :] for part in message.parts]
    if at == len(messages) or not all(isinstance(part, ToolReturnPart) for part in since):
        return at, []
    answered = {part.tool_call_id for part in since if isinstance(part, ToolReturnPart)}
    [last] = repair([messages[at]])[:1]
    calls = [part for part in last.parts if isinstance(part, ToolCallPart)]
    return at, [call for call in calls if call.tool_call_id not in answered]


def open_calls(before: tuple[str, ...], message: ModelMessage) -> tuple[str, ...]:
    """Return the ids of the calls without a result after this message, if `before` are those before it."""
    if isinstance(message, ModelResponse):
        return tuple(part.tool_call_id for part in message.parts if isinstance(part, ToolCallPart))
    done = {part.tool_call_id for part in message.parts if isinstance(part, ToolReturnPart)}
    return tuple(call for call in before if call not in done)


def prepare_messages(
    messages: Sequence[ModelMessage], system_message: str = "", *, joins_steered: bool = False
) -> list[ModelMessage]:
    """Return the messages for a provider: repaired, with alternating roles and the system message first.

    `joins_steered`: the provider takes a message that steers a run beside the results of tools, as one request. Many
    chat templates do not, and get a note between them that no answer was given.

    A pure function of its input, so the bytes of earlier turns stay the same from turn to turn.
    """
    out: list[ModelMessage] = []
    for message in repair(messages):
        if isinstance(message, ModelResponse):
            if out and isinstance(before := out[-1], ModelResponse):
                out[-1] = join_responses(before, message)
                continue
            if not any([_says_something(part) for part in message.parts]):
                message = replace(message, parts=[TextPart(_unsaid(message))])
        elif out and isinstance(before := out[-1], ModelRequest):
            if joins_steered and steered_text(message) is not None:
                out[-1] = replace(before, parts=[*before.parts, *message.parts])
                continue
            out.append(ModelResponse(parts=[TextPart(UNANSWERED)], timestamp=_EPOCH))
        out.append(message)
    if system_message and out:
        first = out[0]
        system = SystemPromptPart(system_message)
        if isinstance(first, ModelRequest):
            own = [part for part in first.parts if not isinstance(part, SystemPromptPart)]  # drop the caller's own
            out[0] = replace(first, parts=[system, *own])
        else:
            out.insert(0, ModelRequest(parts=[system]))
    return out


def estimate_tokens(parts: Iterable[UserContent]) -> int:
    """Estimate the tokens of the texts among these parts: one token per four bytes, as in English."""
    texts = [part.content if isinstance(part, TextContent) else part for part in parts]
    return sum(len(text.encode("utf-8", "replace")) for text in texts if isinstance(text, str)) // 4


def keep_newest(messages: Sequence[ModelMessage], tokens: int, *, beside: int = 0) -> list[ModelMessage]:
    """Return the newest complete turns with at most about `tokens` tokens, or all messages if they fit.

    A token is counted as three bytes, slightly fewer than in typical text. Turns are dropped in blocks, down to 70 %,
    and the next turn drops the same ones: a prompt that lost one turn each time would always miss the server's cache.
    The newest turn stays, whatever its length, unless a new message of `beside` tokens leaves no room for it.
    """
    turns: list[tuple[int, int]] = []
    for index, message in enumerate(messages):
        if not turns or (isinstance(message, ModelRequest) and _has_prompt(message)):
            turns.append((index, 0))
        turns[-1] = (turns[-1][0], turns[-1][1] + count_bytes(message) // 3)
    first, total = 0, 0
    for number, (_, size) in enumerate(turns):
        total += size
        if total > tokens:
            while total > 0.7 * tokens and first < number:
                total -= turns[first][1]
                first += 1
    while beside and first < len(turns) and total + beside > tokens:
        if first == len(turns) - 1 and total * 3 // 4 + beside <= tokens:
            break  # it can still fit, because the count is cautious
        total -= turns[first][1]
        first += 1
    return list(messages[turns[first][0] :]) if first < len(turns) else []


def count_bytes(message: ModelMessage) -> int:
    """Return about how many bytes of text a message has."""
    if (text := plain_text(message)) is not None:
        return text_bytes(text)
    total = 0
    for part in message.parts:
        content: Any = getattr(part, "content", None) or getattr(part, "args", None)
        if isinstance(content, BinaryContent | FileUrl):
            total += file_bytes(content)
        elif isinstance(content, str):
            total += text_bytes(content)
        elif isinstance(content, list):
            items = cast(list[Any], content)
            texts = [item.content if isinstance(item, TextContent) else item for item in items]
            total += sum(text_bytes(item) if isinstance(item, str) else file_bytes(item) for item in texts)
        elif content is not None:
            total += len(str(content))
    return total


def file_bytes(item: object) -> int:
    """Return what a file counts among texts: all of a text, pages of a PDF, seconds of a video, or `FILE_BYTES`."""
    if not isinstance(item, BinaryContent):
        return FILE_BYTES
    if item.media_type == "application/pdf":
        return PAGE_BYTES * _pages(item.data)
    if item.is_video and (video := read_video(item.data)):
        return max(FILE_BYTES, min(int(video.seconds) * SECOND_BYTES, VIDEO_BYTES))
    return len(item.data) if is_text_type(item.media_type) else FILE_BYTES


def _pages(pdf: bytes) -> int:
    """Return about how many pages there are, without reading the file: from its objects, else from its size.

    Newer files have their objects in compressed streams, and large ones are counted again for each request.
    """
    found = len(_PDF_PAGE.findall(pdf)) if len(pdf) <= _SHORT_PDF else 0
    return found or 1 + len(pdf) // BYTES_OF_PAGE


def text_bytes(text: str) -> int:
    """Return the number of bytes of a text in UTF-8."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))


def _has_prompt(message: ModelRequest) -> bool:
    return plain_text(message) is not None or any([isinstance(part, UserPromptPart) for part in message.parts])


def _has_tools(message: ModelMessage) -> bool:
    return plain_text(message) is None and any([isinstance(part, _TOOL_PARTS) for part in message.parts])


def _close(out: list[ModelMessage], held: ModelRequest | None, waiting: dict[str, str], calling: ModelResponse) -> None:
    """Answer the pending calls of the last response, in the same request as the existing results."""
    missing = _no_results(waiting)
    if missing and held is not None:
        out[-1] = _with_results(held, missing, calling)
    elif missing:
        out.append(ModelRequest(parts=missing))


def _with_results(held: ModelRequest, results: Iterable[ToolReturnPart], calling: ModelResponse) -> ModelRequest:
    before = [part for part in held.parts if isinstance(part, ToolReturnPart)]  # all of them
    return replace(held, parts=in_order_of_calls([*before, *results], calling))


def _no_results(waiting: dict[str, str]) -> list[ToolReturnPart]:
    missing = [
        ToolReturnPart(name, INTERRUPTED, tool_call_id=id_, outcome="interrupted", timestamp=_EPOCH)
        for id_, name in waiting.items()
    ]
    waiting.clear()
    return missing


def _unsaid(message: ModelResponse) -> str:
    """Return the text for an answer without text: its reasoning if the length limit cut that off, else `UNANSWERED`."""
    thoughts = [part.content for part in message.parts if isinstance(part, ThinkingPart) and part.content.strip()]
    return "\n\n".join([CUT_THOUGHTS, *thoughts]) if thoughts and message.finish_reason == "length" else UNANSWERED


def _says_something(part: ModelResponsePart) -> bool:
    return isinstance(part, ToolCallPart) or (isinstance(part, TextPart) and bool(part.content.strip()))
