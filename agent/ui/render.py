"""Turns of a conversation as the chatbot's wire messages: pure, and the same live as after a reload.

Gradio is told `postprocess=False`, so what is made here is what the browser gets (shape: gradio's normalised message).
Text travels as a text part, never as a bare string, which Gradio would dedent.
"""

import html
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic_ai.messages import ImageUrl, ModelRequest, UserPromptPart

from agent.history import Entry, Note
from agent.responses import Piece, Response, Stamp, pieces

Wire = dict[str, Any]

LOST = "Interrupted: the server went down before the answer was finished."
NO_ENDING = Note(ended="error", detail=LOST)


@dataclass(slots=True)
class Bubble:
    """One bubble: its type, its text or its call, and, of a result, which call it belongs to."""

    first: Response
    texts: list[str]

    @property
    def text(self) -> str:
        """All its deltas joined."""
        return "".join(self.texts)

    @property
    def content(self) -> Any:
        """Its text, or the call or result it shows."""
        return self.text if isinstance(self.first.content, str) else dict(self.first.content)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What a user said (None where the history begins in mid-turn) and the bubbles of the answer.

    `note` is how it ended, None while it is still running.
    """

    user: Entry | None
    bubbles: Sequence[Bubble]
    note: Note | None


def fold(bubbles: list[Bubble], responses: Iterable[Response]) -> None:
    """Add responses to the bubbles they belong to: the flag alone decides."""
    for response in responses:
        text = response.content if isinstance(response.content, str) else ""
        if response.is_type_switched:
            bubbles.append(Bubble(response, [text]))
        else:
            bubbles[-1].texts.append(text)


def turns(entries: Sequence[Entry], *, running: str | None = None) -> list[Turn]:
    """Stored entries as turns. A turn without an ending was lost, unless it is the one of the run named `running`."""
    out: list[Turn] = []
    for group in _groups(entries):
        user = group[0] if _said(group[0]) is not None else None
        stamp, bubbles = Stamp(), list[Bubble]()
        for entry in group:
            fold(bubbles, map(stamp, pieces(entry.message)))
        note = next((entry.note for entry in reversed(group) if entry.note.ended), None)
        if note is None and group[-1].note.run_id != running:
            note = NO_ENDING
        if note is not None:
            fold(bubbles, map(stamp, _error(note)))
        out.append(Turn(user=user, bubbles=bubbles, note=note))
    return out


def wire(turn: Turn, reasoning: Sequence[float] = (), waiting: str = "") -> list[Wire]:
    """The messages of one turn.

    `reasoning` are the seconds of its reasoning bubbles while it runs; a finished turn's note has them. `waiting` says
    why nothing comes at the moment.
    """
    out: list[Wire] = []
    if turn.user is not None:
        out.append({"role": "user", "metadata": None, "content": _user_parts(turn.user), "options": None})
    timings = turn.note.timings if turn.note else None
    seconds = list(timings.reasoning if timings else reasoning)
    answered = {_of(bubble, "id") for bubble in turn.bubbles if bubble.first.type == "tool_call_result"}
    for number, bubble in enumerate(turn.bubbles):
        running = turn.note is None and number == len(turn.bubbles) - 1
        metadata: Wire | None = None
        match bubble.first.type:
            case "output_text":
                text = bubble.text
            case "reasoning":
                text = bubble.text
                metadata = {"title": "Reasoning", "status": "pending" if running else "done"}
                if seconds and not running:
                    metadata["duration"] = round(seconds.pop(0), 1)
            case "tool_call":
                text = _code(_of(bubble, "arguments"))
                busy = turn.note is None and _of(bubble, "id") not in answered
                metadata = {
                    "title": f"Tool · {_of(bubble, 'name')}",
                    "id": _of(bubble, "id"),
                    "status": "pending" if busy else "done",
                }
            case "tool_call_result":
                text = _plain(str(_of(bubble, "content")))
                failed = bool(_of(bubble, "is_error"))
                metadata = {"title": "Failed" if failed else "Result", "parent_id": _of(bubble, "id"), "status": "done"}
            case "error":
                text = f'<div class="problem" role="alert">{html.escape(bubble.text)}</div>'
        out.append(_assistant(text, metadata))
    if turn.note is not None and (caption := _caption(turn.note)):
        out.append(_assistant(f'<div class="caption">{caption}</div>', None))
    elif turn.note is None and (waiting or not turn.bubbles):
        dots = '<div class="waiting" aria-label="waiting for the model"><i></i><i></i><i></i></div>'
        why = f'<div class="caption" role="status">{html.escape(waiting)}</div>' if waiting else ""
        out.append(_assistant(dots + why, None))
    return out


def said(entry: Entry) -> str:
    """The text of a user's message, without its attachments."""
    content = _said(entry)
    if content is None or isinstance(content, str):
        return content or ""
    return "\n\n".join(part for part in content if isinstance(part, str))


def _groups(entries: Sequence[Entry]) -> Iterator[list[Entry]]:
    group: list[Entry] = []
    for entry in entries:
        if group and _said(entry) is not None:
            yield group
            group = []
        group.append(entry)
    if group:
        yield group


def _said(entry: Entry) -> Any:
    if isinstance(entry.message, ModelRequest):
        for part in entry.message.parts:
            if isinstance(part, UserPromptPart):
                return part.content
    return None


def _error(note: Note) -> Iterator[Piece]:
    if note.ended in ("error", "limit"):
        yield "error", note.detail


def _user_parts(entry: Entry) -> list[Wire]:
    content = _said(entry)
    parts: list[Wire] = []
    for part in [content] if isinstance(content, str) else content:
        if isinstance(part, str):
            parts.append({"type": "text", "text": part})
        elif isinstance(part, ImageUrl):
            # Relative, because behind a proxy the page may be at a path of its host.
            parts.append({"type": "text", "text": f"![attached picture]({part.url.removeprefix('/')})"})
    return parts


def _assistant(text: str, metadata: Wire | None) -> Wire:
    return {"role": "assistant", "metadata": metadata, "content": [{"type": "text", "text": text}], "options": None}


def _of(bubble: Bubble, key: str) -> Any:
    content = bubble.first.content
    return content[key] if isinstance(content, Mapping) else None


def _code(value: object) -> str:
    return f"```json\n{json.dumps(value, ensure_ascii=False, indent=2, default=str)}\n```"


def _plain(text: str) -> str:
    """A tool's words, shown as they are: a fence longer than any in them keeps them from being markup."""
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}\n{text}\n{fence}"


def _caption(note: Note) -> str:
    """How it ended and its figures, in one line under the answer; "≈" marks what was estimated here."""
    said: list[str] = []
    if note.ended == "cancelled":
        said.append(html.escape(note.detail.removesuffix(".")))
    if note.ended == "length":
        said.append("Cut at the maximum number of tokens")
    if note.ended == "content_filter":
        said.append(html.escape(note.detail.removesuffix(".") or "Withheld by the provider's content filter"))
    if note.left_out:
        said.append(f"{note.left_out} earlier messages no longer fit and were not sent")
    if note.omitted:
        said.append(html.escape(note.omitted.removesuffix(".")))
    timings = note.timings
    if timings is not None and timings.first_token is not None:
        about = "≈ " if timings.estimated else ""
        said.append(f"{timings.first_token:.2f} s to first token")
        said.append(f"{about}{timings.output_tokens} tokens")
        if timings.generating > 0.05 and timings.generated > 1:
            said.append(f"{about}{timings.generated / timings.generating:.0f} tokens/s")
    if note.cost:
        said.append(_dollars(note.cost))
    return " · ".join(said)


def _dollars(cost: float) -> str:
    """Two figures that say something: $1.20, $0.034, $0.00012."""
    digits = 2 if cost >= 0.1 else 1 - math.floor(math.log10(cost))
    return f"${cost:.{digits}f}"
