"""The results of the bench, as values and as a markdown page. Measures nothing."""

import os
import platform
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer of the model server: its script, its tokens, and the earlier turns of its conversation.

    It is measured `rounds` times.
    """

    script: str
    tokens: int
    turns: int = 0
    rounds: int = 3

    @property
    def prompt(self) -> str:
        """The message that asks for it."""
        return f"!{self.script} {self.tokens} @200"

    @property
    def name(self) -> str:
        """The name in the table."""
        kind = {"tokens": "plain", "markdown": "Markdown"}[self.script]
        return f"{kind}, {self.tokens:,} tokens" + (f", {self.turns} turns" if self.script == "tokens" else "")


ANSWERS = (
    Answer("tokens", 1000, 0),
    Answer("tokens", 1000, 40),
    Answer("tokens", 1000, 400),
    Answer("markdown", 4000),
    Answer("markdown", 16000, rounds=1),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One contender and one answer. Times are in ms unless named otherwise.

    If `complete` is False, the time limit came first. Then `last` is the current delay of the next token, and costs per
    token are lower bounds (all were sent, not all were shown).
    """

    app: str
    answer: Answer
    complete: bool = True
    request: float | None = None
    first: float | None = None
    last: float | None = None
    gap: float | None = None
    browser_ms: float | None = None
    cpu_ms: float | None = None
    received: float | None = None
    rss_mb: float | None = None
    up_s: float | None = None
    note: str = ""


COLUMNS = (
    ("Enter to request ms", "request", ".0f"),
    ("first token ms", "first", ".0f"),
    ("last token ms", "last", ".0f"),
    ("worst gap ms", "gap", ".0f"),
    ("browser ms/token", "browser_ms", ".2f"),
    ("app CPU ms/token", "cpu_ms", ".3f"),
    ("bytes/token", "received", ".0f"),
    ("RSS MB", "rss_mb", ".0f"),
    ("up s", "up_s", ".1f"),
)
GOALS = (
    ("request", ANSWERS[0], 12),
    ("request", ANSWERS[2], 15),
    *(("first", answer, 17) for answer in ANSWERS),
    *(("browser_ms", answer, 0.15) for answer in ANSWERS),
    *(("cpu_ms", answer, 0.12) for answer in ANSWERS),
    ("gap", ANSWERS[4], 17),
)
"""What the app should reach on a quiet machine: a figure, the answer, and the most that it should be."""
BOUNDED = frozenset({"last", "browser_ms", "cpu_ms"})


def middle(results: Sequence[Result]) -> Result:
    """Merge several rounds into one row: each figure is the median of the available values."""
    if len(results) == 1:
        return results[0]
    figures: dict[str, float | None] = {}
    for _, name, _ in COLUMNS:
        values = [value for result in results if (value := getattr(result, name)) is not None]
        figures[name] = statistics.median(values) if values else None
    notes = [result.note for result in results if result.note]
    complete = all(result.complete for result in results)
    return replace(results[0], complete=complete, note="; ".join(notes), **figures)


def report(results: Sequence[Result]) -> str:
    """Return the page that is printed and saved."""
    python = f"{platform.python_implementation()} {platform.python_version()}"
    head = f"""# Bench

{python}, {os.cpu_count()} cores, 200 tokens a second. Enter to request: from the key press until the model server has
the request. First and last token: from when the server sends it until it is in the page. Worst gap: the longest time in
which the page's event loop did one thing. Browser: the page's main thread. App CPU: all threads and children. Reader: a
process that only reads the stream, for each token. Each figure of ours and of the reader is the median of three rounds,
at 16,000 tokens, for the naive page (`gr.ChatInterface`) and for Open WebUI it is of one round. Each page has answered
once before.
"""
    return "\n".join([head, table(results)]).strip() + "\n"


def table(results: Sequence[Result]) -> str:
    """Return the results in markdown, each with its CPU as a multiple of the reader's for the same answer."""
    floor = {result.answer: result.cpu_ms for result in results if result.app == "reader"}
    names = ["answer", "app", *(name for name, _, _ in COLUMNS), "CPU / reader", "note"]
    rows = [names, ["---"] * len(names)]
    for result in results:
        bound = "" if result.complete else ">= "
        cells = [_cell(getattr(result, name), form, bound if name in BOUNDED else "") for _, name, form in COLUMNS]
        ratio = _ratio(result.cpu_ms, floor.get(result.answer))
        rows.append([result.answer.name, result.app, *cells, _cell(ratio, ".2f", bound), result.note])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def against_goals(results: Sequence[Result]) -> str:
    """Return the figures of ours that have a goal, in Markdown."""
    found = {result.answer.name: result for result in results if result.app == "ours"}
    forms = {name: (title, form) for title, name, form in COLUMNS}
    rows = ["| ours | now | goal | |", "|---|---|---|---|"]
    for name, answer, goal in GOALS:
        if (result := found.get(answer.name)) and (value := getattr(result, name)) is not None:
            title, form = forms[name]
            is_reached = value <= goal and result.complete
            rows.append(f"| {title}: {answer.name} | {value:{form}} | {goal} | {'' if is_reached else 'missed'} |")
    return "\n".join(rows)


def _ratio(above: float | None, below: float | None) -> float | None:
    return above / below if above is not None and below else None


def _cell(value: float | None, form: str, bound: str) -> str:
    return "" if value is None else f"{bound}{value:{form}}"
