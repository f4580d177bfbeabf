"""Turns of a conversation as the chatbot's wire messages: pure, and the same live as after a reload.

Gradio is told `postprocess=False`, so what is made here is what the browser gets (shape: gradio's normalised message).
Text travels as a text part, never as a bare string, which Gradio would dedent.
"""

import html
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any

from pydantic_ai.messages import (
    AudioUrl,
    DocumentUrl,
    FilePart,
    ImageUrl,
    ModelMessage,
    ModelRequest,
    UserPromptPart,
)

from agent.history import Entry, Note
from agent.media import ROUTE, called, id_of
from agent.parts import fenced, read_of
from agent.responses import Piece, Response, Stamp, pieces
from agent.sayings import Saying
from agent.ui.asking import ASK_USER, Call, asked, is_question, options, question
from agent.ui.files import shown_file, shown_reading
from agent.ui.formulas import mark_formulas
from agent.ui.titles import call_title, failed_title, failure_reason
from agent.ui.words import ENGLISH, Words

Wire = dict[str, Any]

UNSEEN = repeat(math.inf)
"""When what is read from a store was said: not while anybody looks."""
LOST = "Interrupted: the server went down before the answer was finished."
NO_ENDING = Note(ended="error", detail=LOST, sayings=(Saying("lost"),))


@dataclass(slots=True)
class Bubble:
    """One bubble: its type, its text or its call, and, of a result, which call it belongs to.

    `began` is on the monotonic clock, where it was seen to.
    """

    first: Response
    texts: list[str]
    began: float = math.inf

    @property
    def text(self) -> str:
        """All its deltas joined."""
        return "".join(self.texts)

    @property
    def content(self) -> Any:
        """Its text, or the call or result it shows; of the files of a result, where they are kept."""
        if isinstance(self.first.content, str):
            return self.text
        content = dict(self.first.content)
        if "files" in content:
            kept = [one for one in content["files"] if isinstance(one, ImageUrl | AudioUrl | DocumentUrl)]
            content["files"] = [
                {"url": one.url, "media_type": one.media_type, "name": called(one.identifier, one.media_type)}
                for one in kept
            ]
        return content


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What a user said (None where the history begins in mid-turn) and the bubbles of the answer.

    `note` is how it ended, None while it is still running; `reasoning` the seconds of its reasoning bubbles. `replies`,
    by the ids of the calls that wait for them, are what was said so far to an answer that is suspended; None where it
    asks for nothing (any more). `made` are the ids of the files that the model made. A page that looks at it while it
    is running began to do so at `watched`, on the monotonic clock. `run` is the id of its last run.
    """

    user: Entry | None
    bubbles: Sequence[Bubble]
    note: Note | None
    reasoning: tuple[float, ...] = ()
    replies: Mapping[str, str] | None = None
    made: tuple[str, ...] = ()
    watched: float = 0.0
    run: str = ""

    @property
    def asks(self) -> Call | None:
        """The first call that still waits for somebody's word."""
        waiting = unanswered(self.bubbles) if self.replies is not None else []
        return next((call for call in waiting if call["id"] not in (self.replies or {})), None)


def unanswered(bubbles: Sequence[Bubble]) -> list[Call]:
    """The calls without a result."""
    answered = {_of(bubble, "id") for bubble in bubbles if bubble.first.type == "tool_call_result"}
    return [one.content for one in bubbles if one.first.type == "tool_call" and _of(one, "id") not in answered]


def fold(bubbles: list[Bubble], responses: Iterable[Response], said_at: Iterable[float] = UNSEEN) -> None:
    """Add responses to the bubbles they belong to: the flag alone decides."""
    for response, at in zip(responses, said_at, strict=False):
        text = response.content if isinstance(response.content, str) else ""
        if response.is_type_switched:
            bubbles.append(Bubble(response, [text], at))
        else:
            bubbles[-1].texts.append(text)


def turns(
    entries: Sequence[Entry], *, running: str | None = None, replies: Mapping[str, str] | None = None
) -> list[Turn]:
    """Stored entries as turns. A turn without an ending was lost, unless it is the one of the run named `running`.

    `replies` are those to the last turn, which may be suspended.
    """
    out: list[Turn] = []
    groups = list(_groups(entries))
    for group in groups:
        user = group[0] if is_prompt(group[0]) else None
        stamp, bubbles = Stamp(), list[Bubble]()
        for entry in group:
            fold(bubbles, map(stamp, pieces(entry.message)))
        # One that was suspended and resumed has two runs, and ended with the last.
        ends = {entry.note.run_id: entry.note for entry in group if entry.note.ended}
        last = group[-1].note.run_id
        note = ends.get(last, None if last == running else NO_ENDING)
        if note is not None:
            fold(bubbles, map(stamp, _error(note)))
        open_ = group is groups[-1] and note is not None and note.ended == "suspended"
        seconds = [one for end in ends.values() if end.timings for one in end.timings.reasoning]
        out.append(
            Turn(
                user=user,
                bubbles=bubbles,
                note=note,
                reasoning=tuple(seconds),
                replies=(replies or {}) if open_ else None,
                made=made(entry.message for entry in group),
                run=last,
            )
        )
    return out


def made(messages: Iterable[ModelMessage], conversation: str = "") -> tuple[str, ...]:
    """The ids of the files that the model made since the last prompt, in messages as they are stored, or in a run's."""
    found: list[str] = []
    for part in (part for message in messages for part in message.parts):
        if isinstance(part, UserPromptPart):
            found.clear()
        elif isinstance(part, FilePart):
            found.append(id_of(conversation, part.content) if part.content.data else part.content.identifier)
    return tuple(found)


def wire(turn: Turn, waiting: str = "", words: Words = ENGLISH) -> list[Wire]:
    """The messages of one turn; `waiting` says why nothing comes at the moment, while it runs."""
    out: list[Wire] = []
    if turn.user is not None:
        untyped = not isinstance(_first_part(turn.user), str)
        out.append(_user(_user_parts(turn.user, words), {"id": turn.user.id, "untyped": untyped}))
    seconds = list(turn.reasoning)
    unsaid = {call["id"] for call in unanswered(turn.bubbles)}
    failures = _failures(turn)
    replies, asks = turn.replies or {}, turn.asks
    near: set[str] = set()  # calls whose result can be shown inside of them: nobody spoke in between
    for number, bubble in enumerate(turn.bubbles):
        running = turn.note is None and number == len(turn.bubbles) - 1
        match bubble.first.type:
            case "output_text":
                out.append(_assistant(mark_formulas(bubble.text), None))
            case "reasoning":
                metadata: Wire = {"title": words("reasoning"), "status": "pending" if running else "done"}
                if running:
                    metadata |= _going_on(bubble, turn)
                if seconds and not running:
                    metadata["duration"] = round(seconds.pop(0), 1)
                out.append(_assistant(mark_formulas(bubble.text), metadata))
            case "tool_call" if is_question(bubble.content):
                if bubble.content != asks:  # which is asked at the end
                    out.append(_assistant(_question(bubble.content), None))
                if (id_ := bubble.content["id"]) in replies:
                    near.clear()
                    out.append(_user([{"type": "text", "text": replies[id_]}]))
            case "tool_call":
                id_, name = bubble.content["id"], bubble.content["name"]
                near.add(id_)
                busy = turn.note is None and id_ in unsaid
                title = call_title(name, failures.get(id_), words)
                metadata = {"title": title, "id": id_, "status": "pending" if busy else "done"}
                if busy:
                    metadata |= _going_on(bubble, turn)
                out.append(_assistant(_code(bubble.content["arguments"]), metadata))
            case "tool_call_result" if bubble.content["name"] == ASK_USER and not bubble.content["is_error"]:
                near.clear()
                out.append(_user([{"type": "text", "text": str(bubble.content["content"])}]))
            case "tool_call_result":
                title = failed_title(words("failed")) if bubble.content["is_error"] else words("result")
                metadata = {"title": title, "status": "done"}
                if bubble.content["id"] in near:
                    metadata["parent_id"] = bubble.content["id"]
                text, files = str(bubble.content["content"]), bubble.content.get("files", ())
                if text or not files:
                    out.append(_assistant(fenced(text), metadata))
                if files:  # beside the fold, where they are seen without opening it
                    near.clear()
                    out += [_assistant(shown_file(one["url"], words, one["name"]), None) for one in files]
            case "error":
                why = (words.said(turn.note.sayings) if turn.note else "") or bubble.text
                out.append(_assistant(f'<div class="problem" role="alert">{html.escape(why)}</div>', None))
    out += [_assistant(shown_file(ROUTE + id_, words), None) for id_ in turn.made]
    if asks is not None:
        out.append({**_assistant(asked(asks, words), None), "options": options(asks, turn.run, words) or None})
    elif turn.note is not None and (caption := _caption(turn.note, words)):
        out.append(_assistant(f'<div class="caption">{caption}</div>', None))
    elif turn.note is None and (waiting or not turn.bubbles):
        dots = f'<div class="waiting" role="img" aria-label="{words("waiting")}"><i></i><i></i><i></i></div>'
        why = f'<div class="caption" role="status">{html.escape(waiting)}</div>' if waiting else ""
        out.append(_assistant(dots + why, None))
    return out


def _failures(turn: Turn) -> dict[str, str]:
    """Why calls of the turn failed, by their ids; "" for one that has no result and gets none any more."""
    results = [bubble.content for bubble in turn.bubbles if bubble.first.type == "tool_call_result"]
    reasons = {one["id"]: failure_reason(str(one["content"])) for one in results if one["is_error"]}
    lost = unanswered(turn.bubbles) if turn.note is not None and turn.replies is None else []
    return {call["id"]: "" for call in lost} | reasons


def _going_on(bubble: Bubble, turn: Turn) -> Wire:
    """For how long it had been going on when the page began to look; the page counts on from there by itself."""
    before = turn.watched - bubble.began
    return {"duration": round(before, 1)} if before >= 0.1 else {}


def said(entry: Entry) -> str:
    """The text of a user's message, without its attachments."""
    content = _said(entry)
    if content is None or isinstance(content, str):
        return content or ""
    return "\n\n".join(part for part in content if isinstance(part, str))


def _groups(entries: Sequence[Entry]) -> Iterator[list[Entry]]:
    group: list[Entry] = []
    for entry in entries:
        if group and is_prompt(entry):
            yield group
            group = []
        group.append(entry)
    if group:
        yield group


def is_prompt(entry: Entry) -> bool:
    """Whether it is a message of the visitor."""
    return _said(entry) is not None


def _first_part(entry: Entry) -> object:
    content = _said(entry)
    return content if isinstance(content, str) else next(iter(content), None)


def _said(entry: Entry) -> Any:
    if isinstance(entry.message, ModelRequest):
        for part in entry.message.parts:
            if isinstance(part, UserPromptPart):
                return part.content
    return None


def _error(note: Note) -> Iterator[Piece]:
    if note.ended in ("error", "limit"):
        yield "error", note.detail


def _user_parts(entry: Entry, words: Words) -> list[Wire]:
    content = _said(entry)
    parts: list[Wire] = []
    for part in [content] if isinstance(content, str) else content:
        if isinstance(part, str):
            parts.append({"type": "text", "text": part})
        elif isinstance(part, ImageUrl | AudioUrl | DocumentUrl):
            parts.append({"type": "text", "text": shown_file(part.url, words)})
        elif read := read_of(part):
            parts.append({"type": "text", "text": shown_reading(read, words)})
    return parts


def _user(parts: list[Wire], metadata: Wire | None = None) -> Wire:
    """A message of the visitor. Gradio hands its metadata to the page's script, which addresses it by the id in it."""
    return {"role": "user", "metadata": metadata, "content": parts, "options": None}


def _question(call: Call) -> str:
    return f'<div class="asked">{html.escape(question(call))}</div>'


def _assistant(text: str, metadata: Wire | None) -> Wire:
    return {"role": "assistant", "metadata": metadata, "content": [{"type": "text", "text": text}], "options": None}


def _of(bubble: Bubble, key: str) -> Any:
    content = bubble.first.content
    return content[key] if isinstance(content, Mapping) else None


def _code(value: object) -> str:
    return f"```json\n{json.dumps(value, ensure_ascii=False, indent=2, default=str)}\n```"


def _caption(note: Note, words: Words) -> str:
    """How it ended and its figures, in one line under the answer; "≈" marks what was estimated here."""
    said: list[str] = []
    if note.ended == "cancelled":
        said.append(html.escape((words.said(note.sayings) or note.detail).rstrip(".。")))
    if note.ended == "length":
        said.append(words("cut"))
    if note.ended == "content_filter":
        said.append(html.escape(note.detail.removesuffix(".") or words("withheld")))
    if note.left_out:
        said.append(words("left_out", count=note.left_out))
    if note.omitted:
        said.append(html.escape((words.said(note.omitted_sayings) or note.omitted).rstrip(".。")))
    timings = note.timings
    if timings is not None and timings.queued >= 1:
        said.append(words("queued", seconds=f"{timings.queued:.0f}"))
    if timings is not None and timings.first_token is not None:
        about = "≈ " if timings.estimated else ""
        said.append(words("first_token", seconds=f"{timings.first_token:.2f}"))
        said.append(about + words("tokens", count=timings.output_tokens))
        if timings.generating > 0.05 and timings.generated > 1:
            said.append(about + words("rate", count=f"{timings.generated / timings.generating:.0f}"))
    if note.cost:
        said.append(_dollars(note.cost))
    return " · ".join(said)


def _dollars(cost: float) -> str:
    """Two figures that say something: $1.20, $0.034, $0.00012."""
    digits = 2 if cost >= 0.1 else 1 - math.floor(math.log10(cost))
    return f"${cost:.{digits}f}"
