"""The results of the bench, as values and as a markdown page. Measures nothing."""

import os
import platform
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

TOKENS = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One contender at one length of history. Times are in ms unless named otherwise.

    If `complete` is False, the time limit came first. Then the lags cover only the visible tokens, `lag_last` is the
    current delay of the next token, and costs per token are lower bounds (all were sent, not all were shown).
    """

    app: str
    turns: int
    complete: bool = True
    shown: int = TOKENS
    lag_last: float | None = None
    lag_median: float | None = None
    lag_painted: float | None = None
    browser_ms: float | None = None
    cpu_ms: float | None = None
    idle_percent: float | None = None
    rss_mb: float | None = None
    up_s: float | None = None
    ready_s: float | None = None
    note: str = ""


COLUMNS = (
    ("lag last ms", "lag_last", ".0f"),
    ("painted ms", "lag_painted", ".0f"),
    ("lag median ms", "lag_median", ".0f"),
    ("browser ms/token", "browser_ms", ".2f"),
    ("app CPU ms/token", "cpu_ms", ".3f"),
    ("idle CPU %", "idle_percent", ".1f"),
    ("RSS MB", "rss_mb", ".0f"),
    ("up s", "up_s", ".1f"),
    ("ready s", "ready_s", ".1f"),
)
COMPARED = tuple(column for column in COLUMNS if column[1] not in ("idle_percent", "rss_mb", "up_s", "ready_s"))
BOUNDED = frozenset({"lag_last", "lag_painted", "lag_median", "cpu_ms"})


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
    shown = min(result.shown for result in results)
    return replace(results[0], complete=complete, shown=shown, note="; ".join(notes), **figures)


def report(results: Sequence[Result], prompt: str) -> str:
    """Return the page that is printed and saved."""
    python = f"{platform.python_implementation()} {platform.python_version()}"
    head = f"""# Bench

`{prompt}`, {python}, {os.cpu_count()} cores. Lag: from the server's send to the token in the DOM, at the last token,
there to the frame that shows it (painted), and as the median of every fiftieth. Browser: the page's main thread. App
CPU: all threads and children, the idle share included. Reader: a
process that only reads the stream, for each token. Each figure of ours and of the reader is the
median of three rounds; the naive page is measured once and given 30 s.
"""
    return "\n".join([head, table(results), "", comparison(results)]).strip() + "\n"


def table(results: Sequence[Result]) -> str:
    """Return the results in markdown, each with its CPU as a multiple of the reader's at the same turn count."""
    floor = {result.turns: result.cpu_ms for result in results if result.app == "reader"}
    names = ["turns", "app", *(name for name, _, _ in COLUMNS), "CPU / reader", "note"]
    rows = [names, ["---"] * len(names)]
    for result in results:
        bound = "" if result.complete else ">= "
        cells = [_cell(getattr(result, name), form, bound if name in BOUNDED else "") for _, name, form in COLUMNS]
        ratio = _ratio(result.cpu_ms, floor.get(result.turns))
        rows.append([str(result.turns), result.app, *cells, _cell(ratio, ".2f", bound), result.note])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def comparison(results: Sequence[Result]) -> str:
    """Return the factors by which the naive page costs more than ours."""
    by = {(result.app, result.turns): result for result in results}
    lines: list[str] = []
    for (app, turns), naive in by.items():
        ours = by.get(("ours", turns))
        if app != "naive" or not ours or not ours.complete:
            continue
        ratios = [(name, _ratio(getattr(naive, field), getattr(ours, field))) for name, field, _ in COMPARED]
        factors = ", ".join(f"{name} x{_cell(ratio, '.1f', '')}" for name, ratio in ratios)
        lines.append(f"- naive / ours at {turns} turns: {factors}{'' if naive.complete else ' or more'}")
    return "\n".join(lines)


def _ratio(above: float | None, below: float | None) -> float | None:
    return above / below if above is not None and below else None


def _cell(value: float | None, form: str, bound: str) -> str:
    return "" if value is None else f"{bound}{value:{form}}"
