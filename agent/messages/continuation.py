"""Unfinished answers: how to tell one, where its text goes on, and how it is joined with its continuation.

A continuation is a response of its own, directly after the unfinished one. Nothing else is stored about it.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile

from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart


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
