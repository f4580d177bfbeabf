"""Many visitors at once, each on the page's own path: send a message through the queue, then read the event stream.

Every visitor has a cookie and a page session, as a browser has them, and has loaded the page before. The model server,
the app and this client run on one machine. It ends only processes that it started, within 12 minutes.

    python -m bench.load [--row ours:100] [--row ours:100:500] [--row ours:64:0:140] [--row naive:20] [--profile FILE]

A row is the app, its visitors, the pages that are open beside them and do nothing, and the tokens a second of each
answer (30). Each answer takes ten seconds.
"""

import argparse
import asyncio
import json
import os
import re
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import psutil

from bench.page_client import NaivePage, OurPage, PageConfig
from bench.process import ROOT, CpuMeter, OutOfTime, bounded, started, wait_until_up
from tests.support.ports import free_port

RATE, IDEAL_S = 30, 10
"""The tokens a second of an answer, unless the row names others, and the seconds in which all of them are sent."""
ARRIVAL_S = 2.0
"""Seconds over which the visitors send their messages, because a hundred people never press Enter in one moment."""
LIMIT_S, ROW_S = 720, 150.0
OPEN_AT_ONCE = 8
"""Pages that are loaded at once."""
TOKEN = re.compile(r"word(\d+)")
ROWS = ("ours:20", "ours:50", "ours:100", "ours:200", "ours:100:500", "ours:64:0:140", "naive:20", "naive:100")
PAGES = {"ours": OurPage, "naive": NaivePage}
HERE = Path(__file__).resolve().parent


@dataclass
class Visit:
    """The visit of one person. Times are in epoch seconds. `at` has the arrival of each token's number."""

    number: int
    page: OurPage | NaivePage
    rate: int = RATE
    sent: float = 0.0
    at: dict[int, float] = field(default_factory=dict[int, float])
    ended: float = 0.0
    failure: str = ""

    @property
    def prompt(self) -> str:
        """The message, which names the visitor in the server's journal."""
        return f"!tokens {self.tokens} @{self.rate} visitor-{self.number}-"

    @property
    def tokens(self) -> int:
        """The tokens of the answer."""
        return self.rate * IDEAL_S

    async def make(self, start: float) -> None:
        """Send the message at `start` and read the answer to its end. Notes a failure instead of raising."""
        try:
            await asyncio.sleep(max(0.0, start - time.time()))
            self.sent = time.time()
            async with aclosing(self.page.ask(self.prompt)) as frames:
                async for frame in frames:
                    now = time.time()
                    for number in TOKEN.findall(frame):
                        self.at.setdefault(int(number), now)
            self.ended = time.time()
            await self.page.finish()
            if len(self.at) != self.tokens:
                self.failure = f"{len(self.at)} of {self.tokens} tokens"
        except Exception as error:
            self.failure = f"{type(error).__name__}: {error}"[:200]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The figures of one load. Times are in ms. The CPU is that of the app, from the first message to the last end.

    `cores` are the processor cores that were busy meanwhile: for the app, the model server and this client.
    """

    app: str
    visitors: int
    idle: int
    rate: int = RATE
    finished: int = 0
    first_p50: float | None = None
    first_p95: float | None = None
    delay_p50: float | None = None
    delay_p95: float | None = None
    slowest: float | None = None
    cpu_ms: float | None = None
    cores: str = ""
    open_ms: float | None = None
    rss_mb: float | None = None
    note: str = ""


COLUMNS = (
    ("app", "app", ""),
    ("visitors", "visitors", ""),
    ("idle pages", "idle", ""),
    ("tokens/s each", "rate", ""),
    ("finished", "finished", ""),
    ("first token p50 ms", "first_p50", ".0f"),
    ("p95", "first_p95", ".0f"),
    ("delay of a token p50 ms", "delay_p50", ".0f"),
    ("p95", "delay_p95", ".0f"),
    ("slowest / ideal", "slowest", ".2f"),
    ("app CPU ms/token", "cpu_ms", ".2f"),
    ("cores: app, model, visitors", "cores", ""),
    ("app CPU ms/page load", "open_ms", ".0f"),
    ("RSS MB", "rss_mb", ".0f"),
    ("note", "note", ""),
)


def table(rows: Sequence[Row]) -> str:
    """Return the rows in markdown."""
    lines = [[name for name, _, _ in COLUMNS], ["---"] * len(COLUMNS)]
    for row in rows:
        values = [(getattr(row, name), form) for _, name, form in COLUMNS]
        lines.append(["" if value is None else f"{value:{form}}" for value, form in values])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def percentile(values: Sequence[float], share: float) -> float | None:
    """Return the value that this share of all values does not exceed, in milliseconds."""
    ranked = sorted(values)
    return 1000 * ranked[min(len(ranked) - 1, int(share * len(ranked)))] if ranked else None


def figures(visits: Sequence[Visit], sent: dict[int, dict[int, float]]) -> dict[str, Any]:
    """Return the times of a load. `sent` has the times at which the server sent tokens, by visitor and number."""
    done = [one for one in visits if not one.failure]
    first = [min(one.at.values()) - one.sent for one in visits if one.at]
    delays = [
        one.at[number] - at for one in visits for number, at in sent.get(one.number, {}).items() if number in one.at
    ]
    failures = sorted({one.failure for one in visits if one.failure})
    return {
        "finished": len(done),
        "first_p50": 1000 * statistics.median(first) if first else None,
        "first_p95": percentile(first, 0.95),
        "delay_p50": 1000 * statistics.median(delays) if delays else None,
        "delay_p95": percentile(delays, 0.95),
        "slowest": max(one.ended - one.sent for one in done) / IDEAL_S if done else None,
        "note": "; ".join(failures[:2]),
    }


def sent_times(base_url: str) -> dict[int, dict[int, float]]:
    """Return when the model server sent tokens, by the visitor in the prompt."""
    with urlopen(f"{base_url.removesuffix('/v1')}/journal?bodies=1&after=0", timeout=60) as answer:
        lines = json.load(answer)["requests"]
    times: dict[int, dict[int, float]] = {}
    for line in lines:
        found = re.search(r"visitor-(\d+)-", json.dumps(line))
        if found:
            times[int(found[1])] = {mark["n"] - 1: mark["epoch_ms"] / 1000 for mark in line["marks"]}
    return times


class Load:
    """One load of one running app."""

    def __init__(
        self, name: str, url: str, meter: CpuMeter, model: CpuMeter, visitors: int, idle: int, rate: int
    ) -> None:
        self._name, self._url, self._meter, self._model = name, url, meter, model
        self._visitors, self._idle, self._rate = visitors, idle, rate
        self.visits: list[Visit] = []
        self.open_s = self.cpu_s = 0.0
        self.cores = ""

    async def run(self, *, profile: bool) -> None:
        """Open all pages, then let the visitors send their messages within `ARRIVAL_S` seconds."""
        config = await PageConfig.read(self._url)
        pages = [PAGES[self._name](self._url, config) for _ in range(self._visitors + self._idle)]
        before, gate = self._meter.seconds(), asyncio.Semaphore(OPEN_AT_ONCE)

        async def open_(page: OurPage | NaivePage) -> None:
            async with gate:
                await page.open()

        try:
            await asyncio.gather(*map(open_, pages))
            await asyncio.sleep(1)
            self.open_s = (self._meter.seconds() - before) / len(pages)
            self.visits = [Visit(number, page, self._rate) for number, page in enumerate(pages[: self._visitors])]
            self._toggle(profile)
            before, start = self._used(), time.time() + 0.5
            apart = ARRIVAL_S / self._visitors
            await asyncio.gather(*(one.make(start + apart * one.number) for one in self.visits))
            spent = [after - one for one, after in zip(before, self._used(), strict=True)]
            self.cpu_s, seconds = spent[0], time.time() - start
            self.cores = ", ".join(f"{one / seconds:.2f}" for one in spent)
            self._toggle(profile)
        finally:
            for page in pages:
                await page.close()

    def _used(self) -> tuple[float, ...]:
        """Return the CPU seconds so far of the app, the model server and this process."""
        return self._meter.seconds(), self._model.seconds(), time.process_time()

    def _toggle(self, profile: bool) -> None:
        if profile:
            os.kill(self._meter.child.pid, signal.SIGUSR1)


def measure(app: str, visitors: int, idle: int, rate: int, profile: str) -> Row:
    """Start the model server and the app anew, and measure one load."""
    with tempfile.TemporaryDirectory() as name:
        folder, ports = Path(name), [free_port(), free_port()]
        base_url, url = f"http://127.0.0.1:{ports[0]}/v1", f"http://127.0.0.1:{ports[1]}"
        env = {
            "VLLM_BASE_URL": base_url,
            "GRADIO_SERVER_PORT": str(ports[1]),
            "SWITCHBOARD_DATA": str(folder / "data"),
            "SWITCHBOARD_OFFLINE": "1",
        }
        command = [sys.executable, "app.py"]
        if app == "naive":
            command = [sys.executable, "-m", "bench.naive", "--base-url", base_url, "--port", str(ports[1])]
        elif profile:
            env |= {"BENCH_PROFILE": profile, "PYTHONPATH": str(ROOT)}
            command = [sys.executable, "-m", "bench.profiled_app"]
        model = [sys.executable, "-m", "tests.support.scripted_server", "--port", str(ports[0])]
        with (
            started(model, folder / "model.log") as server,
            started(command, folder / "app.log", env) as child,
        ):
            wait_until_up(server, f"http://127.0.0.1:{ports[0]}/health", folder / "model.log", 20)
            wait_until_up(child, url, folder / "app.log", 60)
            time.sleep(4)  # the app imports its provider some time after it is up
            (meter := CpuMeter(child)).wait_until_idle()
            load = Load(app, url, meter, CpuMeter(server), visitors, idle, rate)
            note = ""
            try:
                asyncio.run(asyncio.wait_for(load.run(profile=bool(profile) and app != "naive"), ROW_S))
            except TimeoutError:
                note = f"stopped after {ROW_S:.0f} s"
            times = figures(load.visits, sent_times(base_url))
            rss = psutil.Process(child.pid).memory_info().rss / 2**20
    return Row(
        app=app,
        visitors=visitors,
        idle=idle,
        rate=rate,
        cpu_ms=1000 * load.cpu_s / (visitors * rate * IDEAL_S) or None,
        cores=load.cores,
        open_ms=1000 * load.open_s,
        rss_mb=rss,
        **times | {"note": "; ".join(filter(None, (note, times["note"])))},
    )


def parsed(row: str) -> tuple[str, int, int, int]:
    """Return the app, the visitors, the idle pages and the rate of a row. Raises ValueError."""
    app, visitors, idle, rate = [*row.split(":"), *("", "0", str(RATE))[row.count(":") :]][:4]
    if app not in PAGES:
        raise ValueError(f"no such app: {app}")
    return app, int(visitors), int(idle), int(rate)


def main() -> None:
    """Measure and print a table. All rows together are also saved."""
    parser = argparse.ArgumentParser(description="Many visitors at once, on the page's own path.")
    parser.add_argument("--row", action="append", type=parsed, help="app:visitors:idle pages:tokens a second")
    parser.add_argument("--profile", default="", help="file for the stacks of our app, see bench.profiled_app")
    given = parser.parse_args()
    rows: list[Row] = []
    with suppress(OutOfTime), bounded(LIMIT_S):
        for app, visitors, idle, rate in given.row or map(parsed, ROWS):
            print(f"{app}, {visitors} visitors, {idle} idle pages, {rate} tokens/s ...", file=sys.stderr, flush=True)
            rows.append(measure(app, visitors, idle, rate, given.profile))
            print(table(rows[-1:]).splitlines()[-1], file=sys.stderr, flush=True)
    print(table(rows))
    if not given.row:
        (HERE / "load.md").write_text(table(rows))


if __name__ == "__main__":
    main()
