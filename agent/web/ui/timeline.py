"""Puts a row before steps of an answer that follow one another: "Thought 2.7 s · 4 tools · 1 failed".

A step is a thought, or a tool call with its result. The row is a message of its own, so that a step keeps its bubble.
`steps.js` shows and hides the steps of a row.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from agent.i18n import _
from agent.i18n.translator import Translator
from agent.rendering.steps import LEAST_STEPS, steps_name, total_seconds
from agent.web.chat.transcript import Bubble, Turn, call_id

Rendered = tuple[Bubble, dict[str, Any]]
"""A message, and the bubble that it shows."""


def with_timelines(
    messages: Sequence[Rendered], turn: Turn, failed: set[str], translator: Translator
) -> list[dict[str, Any]]:
    """Return the messages with a row before each series of steps.

    `failed` are the ids of the calls that failed. While the turn runs, the last row is open until something follows it.
    """
    out: list[dict[str, Any]] = []
    for is_steps, group in groupby(messages, key=lambda one: "title" in (one[1]["metadata"] or {})):
        steps = list(group)
        if is_steps and _rows(steps) >= LEAST_STEPS:
            row = _row(steps, failed, translator, goes_on=turn.note is None and steps[-1] is messages[-1])
            if row["metadata"]["status"] == "pending":
                row["metadata"] |= duration_so_far(steps[0][0], turn)
            out.append(row)
        out += [message for _bubble, message in steps]
    return out


def duration_so_far(bubble: Bubble, turn: Turn) -> dict[str, Any]:
    """Return the duration before the page began to watch, as metadata. The page counts on from there."""
    before = turn.watched_since - bubble.began
    return {"duration": round(before, 1)} if before >= 0.1 else {}


def _rows(steps: Sequence[Rendered]) -> int:
    """Return the number of steps, without the results that are inside the bubbles of their calls."""
    return sum("parent_id" not in message["metadata"] for _bubble, message in steps)


def _row(steps: Sequence[Rendered], failed: set[str], translator: Translator, *, goes_on: bool) -> dict[str, Any]:
    thoughts = [message for bubble, message in steps if bubble.first.type == "reasoning"]
    calls = {call_id(bubble) for bubble, _message in steps if bubble.first.type != "reasoning"}
    seconds = total_seconds(message["metadata"].get("seconds", 0.0) for message in thoughts)
    lost = len(calls & failed)
    parts = steps_name(0 if goes_on else len(thoughts), len(calls), lost, translator, seconds=seconds)
    if goes_on:
        parts.insert(0, translator(_("Working")))
    shown = [*parts[:-1], f'<span class="some-failed">{parts[-1]}</span>'] if lost else parts
    # Gradio's sanitizer keeps no other attribute than the class. `steps.js` reads the number.
    title = f'<span class="steps of-{_rows(steps)}">{" · ".join(shown)}</span>'
    metadata: dict[str, Any] = {"title": title, "status": "pending" if goes_on else "done", "steps": True}
    # The text is the name of the message for screen readers. `steps.css` hides it below the title.
    content = [{"type": "text", "text": " · ".join(parts)}]
    return {"role": "assistant", "metadata": metadata, "content": content, "options": None}
