"""`make bench`: our app against the naive page and the bare reader, on one scripted server, at 0, 40 and 400 turns.

It stops within 8 minutes, ends only processes that it started, and writes `results.md` and `results.json` beside it.

    python -m bench.run [--quick] [--only ours|naive|reader] [--turns 0,40]
"""

import argparse
import asyncio
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any
from urllib.request import urlopen

import psutil
from playwright.sync_api import Page

from bench.page import Seen, ask, browser_page, open_chat, renderer_clock
from bench.process import ROOT, CpuMeter, started, wait_until_up
from bench.report import TOKENS, Result, middle, report
from tests.support.ports import free_port

PROMPT = f"!tokens {TOKENS} @200"
LIMIT_S = 475
CAP_S = {"ours": 60.0, "naive": 30.0}
ROUNDS = 3
READY_S = 60.0
HERE = Path(__file__).resolve().parent


@dataclass(frozen=True, slots=True)
class Bench:
    """Resources of all measurements: the server, and a folder that is removed at the end."""

    base_url: str
    folder: Path

    def journal(self, after: int) -> list[dict[str, Any]]:
        """Return the server's journal without the bodies."""
        with urlopen(f"{self.base_url.removesuffix('/v1')}/journal?bodies=0&after={after}", timeout=30) as answer:
            return json.load(answer)["requests"]


def measure_reader(bench: Bench, turns: int) -> Result:
    """Measure the bare reader in a separate process."""
    command = [sys.executable, "-m", "bench.reader", "--base-url", bench.base_url, "--turns", str(turns)]
    done = subprocess.run(
        [*command, "--prompt", PROMPT], cwd=ROOT, capture_output=True, text=True, timeout=90, check=True
    )
    read = json.loads(done.stdout)
    if read["tokens"] != TOKENS:
        raise RuntimeError(f"the reader saw {read['tokens']} tokens")
    return Result(app="reader", turns=turns, cpu_ms=read["cpu_s"] * 1000 / TOKENS)


def measure_naive(bench: Bench, turns: int) -> Result:
    """Measure the naive page. Its earlier turns are the chatbot's initial value."""
    port = free_port()
    command = [sys.executable, "-m", "bench.naive", "--base-url", bench.base_url, "--port", str(port)]
    return measure_app(bench, "naive", turns, [*command, "--turns", str(turns)], port)


def measure_ours(bench: Bench, turns: int) -> Result:
    """Measure our app. It reads its earlier turns from the store: this visitor's latest conversation."""
    from bench.preload import preload, visitor_cookie  # late, because the naive row must run without the app

    port = free_port()
    data = Path(tempfile.mkdtemp(dir=bench.folder))
    cookie = None
    if turns:
        owner = "bench-visitor"
        asyncio.run(preload(data, owner, turns))
        cookie = visitor_cookie(data, owner)
    env = {
        "VLLM_BASE_URL": bench.base_url,
        "GRADIO_SERVER_PORT": str(port),
        "SWITCHBOARD_DATA": str(data),
        "SWITCHBOARD_OFFLINE": "1",
    }
    return measure_app(bench, "ours", turns, [sys.executable, "app.py"], port, env=env, cookie=cookie)


def measure_app(
    bench: Bench,
    app: str,
    turns: int,
    command: Sequence[str],
    port: int,
    *,
    env: dict[str, str] | None = None,
    cookie: tuple[str, str] | None = None,
) -> Result:
    """Start an app, open its page, ask, and compare the server's journal with the times on the page."""
    url, log = f"http://127.0.0.1:{port}/", bench.folder / f"{app}-{turns}.log"
    with browser_page() as page:
        if cookie:
            page.context.add_cookies([{"name": cookie[0], "value": cookie[1], "url": url}])
        begun = time.monotonic()
        with started(command, log, env) as child:
            wait_until_up(child, url, log, READY_S)
            up = time.monotonic() - begun
            box = open_chat(page, url, READY_S)
            wait_for_past(page, turns)
            ready = time.monotonic() - begun
            meter = CpuMeter(child)
            idle = idle_share(meter)
            last = max((line["id"] for line in bench.journal(0)), default=0)
            main_thread = renderer_clock(page)
            before = meter.seconds()
            seen = ask(page, box, PROMPT, TOKENS, cap=CAP_S[app], clock=main_thread, tick=meter.seconds)
            cpu = meter.seconds() - before
            rss = psutil.Process(child.pid).memory_info().rss / 2**20
            line = max(bench.journal(last), key=lambda line: line["sent"], default=None)
    if line is None:
        raise RuntimeError(f"{app} sent no request to the model")
    return Result(
        app=app,
        turns=turns,
        complete=seen.shown == TOKENS,
        shown=seen.shown,
        browser_ms=seen.main_ms / max(seen.shown, 1),
        cpu_ms=cpu * 1000 / TOKENS,
        idle_percent=idle * 100,
        rss_mb=rss,
        up_s=up,
        ready_s=ready,
        note="" if seen.shown == TOKENS else f"{seen.shown} of {TOKENS} shown after {seen.watched_s:.0f} s",
        **lags(seen, line),
    )


def wait_for_past(page: Page, turns: int) -> None:
    """Wait for the newest turn on the page, because a row of 400 turns must not measure an empty page."""
    if turns:
        page.locator("#chat").get_by_role("heading", name=f"Day {turns}", exact=True).wait_for(state="attached")


def idle_share(meter: CpuMeter, seconds: float = 2.0) -> float:
    """Return the CPU share of one core that the app uses while nothing happens, after it has settled."""
    time.sleep(3.5)  # the app imports its provider some time after the page is ready
    before, start = meter.seconds(), time.monotonic()
    time.sleep(seconds)
    return (meter.seconds() - before) / (time.monotonic() - start)


def lags(seen: Seen, line: dict[str, Any]) -> dict[str, float | None]:
    """Return the milliseconds from sending to showing, over every fiftieth token."""
    sent = {mark["n"]: mark["epoch_ms"] for mark in line["marks"]}
    each = [seen.at[n] - at for n, at in sent.items() if n in seen.at]
    waiting = [seen.ended - at for n, at in sent.items() if n not in seen.at]
    return {
        "lag_last": max(waiting) if waiting else each[-1],
        "lag_median": statistics.median(each + waiting),
        "lag_painted": seen.painted - sent[TOKENS] if seen.painted else None,
    }


MEASURES = {"reader": measure_reader, "naive": measure_naive, "ours": measure_ours}


def measure(bench: Bench, app: str, turns: int) -> Result:
    """Measure one cell. A contender that cannot run becomes a row with the reason and does not end the bench."""
    print(f"{app}, {turns} earlier turns ...", file=sys.stderr, flush=True)
    try:
        return MEASURES[app](bench, turns)
    except OutOfTime:
        raise
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        return Result(app=app, turns=turns, complete=False, shown=0, note=f"{type(error).__name__}: {lines[-1][:160]}")


class OutOfTime(BaseException):
    """The bench received a signal to stop, or its 8 minutes are over."""


@contextmanager
def bounded(seconds: int) -> Iterator[None]:
    """Raise OutOfTime in the block after `seconds` or on SIGTERM, so that children are always ended."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise OutOfTime(signal.Signals(number).name)

    for number in (signal.SIGALRM, signal.SIGTERM):
        signal.signal(number, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)


@contextmanager
def scripted(folder: Path) -> Iterator[Bench]:
    """Run the model server in a separate process. Its context is long enough for 400 turns."""
    port, log = free_port(), folder / "server.log"
    command = [sys.executable, "-m", "tests.support.scripted_server", "--port", str(port), "--max-model-len", "1000000"]
    with started(command, log) as child:
        wait_until_up(child, f"http://127.0.0.1:{port}/health", log, 20)
        yield Bench(f"http://127.0.0.1:{port}/v1", folder)


def grouped(results: Sequence[Result]) -> list[list[Result]]:
    """Group the results by contender and length, sorted by turns and contenders."""
    groups: dict[tuple[int, str], list[Result]] = {}
    for result in results:
        groups.setdefault((result.turns, result.app), []).append(result)
    return [groups[key] for key in sorted(groups, key=lambda key: (key[0], list(MEASURES).index(key[1])))]


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description="Our app against the naive page and the bare reader.")
    parser.add_argument("--quick", action="store_true", help="40 turns only")
    parser.add_argument("--only", action="append", choices=list(MEASURES), help="may be given again")
    parser.add_argument("--turns", help="comma-separated, by default 0,40,400")
    given = parser.parse_args()
    turns = [int(n) for n in given.turns.split(",")] if given.turns else [40] if given.quick else [0, 40, 400]
    results: list[Result] = []
    with (
        suppress(OutOfTime),
        bounded(LIMIT_S),
        tempfile.TemporaryDirectory() as folder,
        scripted(Path(folder)) as bench,
    ):
        # Round by round, so that other load on the machine affects all alike. The naive page is too slow for that.
        for number in range(ROUNDS):
            for count in turns:
                for app in given.only or MEASURES:
                    if number == 0 or app != "naive":
                        results.append(measure(bench, app, count))
    results = [middle(same) for same in grouped(results)]
    (HERE / "results.json").write_text(json.dumps([asdict(result) for result in results], indent=1) + "\n")
    (HERE / "results.md").write_text(text := report(results, PROMPT))
    print(text)


if __name__ == "__main__":
    main()
