"""The use of a model's window by a chat, and the summary that is sent instead of the first turns.

The entries stay. The conversation has the summary and the message that begins the last turn of it, so a branch that
does not have this message is sent whole, and dropping the summary undoes it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic_ai.messages import ModelMessage, ModelResponse, ThinkingPart

from agent.history import ChatSummary, Entry
from agent.messages.compaction import Summary, estimate, shortened
from agent.messages.repair import keep_newest
from agent.web.chat.transcript import is_prompt

FULL = 0.85
"""The part of the room for a chat from which on a summary is offered, or made."""
KEPT_TURNS = (3, 2, 1)
"""The newest turns that stay as they are: as many of them as leave half of the room free."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowUse:
    """The use of a model's window by a chat, in tokens. `room` is the part for the chat, without the next answer.

    `is_estimated`: the tokens were counted here, or those of another model. `cost` is that of the chat in US dollars.
    `left_out` counts the messages that did not fit the last time. `is_too_small`: the model cannot write summaries.
    """

    tokens: int
    is_estimated: bool
    window: int
    room: int
    share: float
    left_out: int
    cost: float
    can_summarize: bool
    is_too_small: bool
    summary: ChatSummary | None


@dataclass(frozen=True, slots=True)
class SentHistory:
    """The messages of a chat that are sent, and how many before them are neither sent nor in the summary."""

    messages: Sequence[ModelMessage]
    left_out: int


def end_of(summary: ChatSummary | None, entries: Sequence[Entry]) -> int:
    """Return the number of the first of these entries that the summary does not have; 0 without one of this branch."""
    is_inside = False
    for number, entry in enumerate(entries if summary is not None else ()):
        if is_inside and is_prompt(entry):
            return number
        is_inside = is_inside or (summary is not None and entry.id == summary.message)
    return len(entries) if is_inside else 0


def sent_history(
    summary: ChatSummary | None, entries: Sequence[Entry], room: int, *, earlier: int = 0, beside: int = 0
) -> SentHistory:
    """Return the newest messages of a chat that fit, with its summary. `earlier` counts entries that were not read."""
    first = end_of(summary, entries)
    messages = [entry.message for entry in entries[first:]]
    if summary is None or not first:
        kept = keep_newest(messages, room, beside=beside)
        return SentHistory(kept, earlier + len(messages) - len(kept))
    kept = keep_newest(messages, max(1, room - estimate((), summary.text)), beside=beside)
    return SentHistory(shortened(kept, Summary(text=summary.text)), len(messages) - len(kept))


def summarizable(summary: ChatSummary | None, entries: Sequence[Entry], room: int) -> int:
    """Return the number of the first entry that stays when the turns before it are summarized; 0 if there are none."""
    first = end_of(summary, entries)
    prompts = [number for number in range(first, len(entries)) if is_prompt(entries[number])]
    found = 0
    for turns in KEPT_TURNS:
        if len(prompts) > turns:
            found = prompts[-turns]
            if estimate([entry.message for entry in entries[found:]]) <= room // 2:
                break
    return found


def reported_tokens(entries: Sequence[Entry]) -> tuple[int, Entry] | None:
    """Return the tokens of the chat as the model's server counted them with its last answer, and that answer.

    Reasoning is not sent again.
    """
    for entry in reversed(entries):
        message = entry.message
        if isinstance(message, ModelResponse):
            if message.usage.input_tokens <= 0:
                return None
            known = message.usage.details.get("reasoning_tokens", 0)
            thoughts = [part for part in message.parts if isinstance(part, ThinkingPart)]
            reasoning = known or sum(len(part.content.encode()) for part in thoughts) // 4
            return message.usage.input_tokens + max(0, message.usage.output_tokens - reasoning), entry
    return None
