"""Measures a visit in Chromium: what the page loads, and the time until it shows something and takes text.

`python -m bench.visit` opens the page as new visitors and prints the medians of five visits. It exits with 1 if the
page has become more than a tenth heavier than it was at first. Times depend on the machine: `--against FOLDER` measures
another checkout of this project as well, in turns, and exits with 1 if a row is more than a tenth above that of it.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, CDPSession, Page, sync_playwright

from bench.page import GRADIO, open_chat
from bench.process import ROOT, CpuMeter, started, wait_until_up
from bench.run import READY_S, scripted
from tests.support.chromium import launch
from tests.support.ports import free_port

VISITS, SETTLE_MS = 5, 2500
ABOVE = 1.1
"""The most that a row may be, as a multiple of its start."""
START = {"loaded": 652.0, "unpacked": 1829.0, "requests": 91.0}
"""The load of a visit at commit 10c2a00 of 23 November 2026. Other rows of that commit depend on the machine."""
ROWS = {
    "loaded": "page weight, KB",
    "unpacked": "the same unpacked, KB",
    "requests": "requests",
    "again": "page weight of the next visit, KB",
    "painted": "first paint, ms",
    "typed": "until one can type, ms",
    "script": "scripts in the browser, ms",
    "tasks": "main thread of the browser, ms",
    "server": "CPU time of the server, ms",
}
GOALS = {"loaded": 300, "requests": 45, "typed": 450}
Visit = dict[str, float]


@dataclass(slots=True)
class _Loaded:
    """The load of a page since it was opened."""

    requests: int = 0
    bytes: int = 0
    unpacked: int = 0

    def watch(self, cdp: CDPSession) -> None:
        def asked(event: dict[str, Any]) -> None:
            self.requests += not event["request"]["url"].startswith(("data:", "blob:"))

        def ended(event: dict[str, Any]) -> None:
            self.bytes += int(event["encodedDataLength"])

        def got(event: dict[str, Any]) -> None:
            self.unpacked += int(event["dataLength"])

        cdp.on("Network.requestWillBeSent", asked)
        cdp.on("Network.loadingFinished", ended)
        cdp.on("Network.dataReceived", got)
        cdp.send("Network.enable")


@dataclass(slots=True)
class _App:
    """A running app, with its visits so far."""

    url: str
    meter: CpuMeter
    visits: list[Visit] = field(default_factory=list[Visit])

    def medians(self) -> Visit:
        """Return the median of each row. The first visit only warms the app up."""
        return {name: statistics.median(visit[name] for visit in self.visits[1:]) for name in ROWS}


def visit(app: _App, browser: Browser) -> Visit:
    """Open the page as a new visitor, and once more."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    try:
        page = context.new_page()
        cdp, loaded = context.new_cdp_session(page), _Loaded()
        loaded.watch(cdp)
        cdp.send("Performance.enable", {"timeDomain": "threadTicks"})
        before, begun = app.meter.seconds(), time.monotonic()
        typed = _type(page, app.url, begun)
        first = asdict(loaded)
        metrics = {one["name"]: one["value"] for one in cdp.send("Performance.getMetrics")["metrics"]}
        server = app.meter.seconds() - before
        painted = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
        _type(page, app.url, time.monotonic())
        return {
            "loaded": first["bytes"] / 1000,
            "unpacked": first["unpacked"] / 1000,
            "requests": first["requests"],
            "again": (loaded.bytes - first["bytes"]) / 1000,
            "painted": painted,
            "typed": typed,
            "script": metrics["ScriptDuration"] * 1000,
            "tasks": metrics["TaskDuration"] * 1000,
            "server": server * 1000,
        }
    finally:
        context.close()


def _type(page: Page, url: str, begun: float) -> float:
    """Open the page and type. Return the ms from `begun` until that, once everything is loaded."""
    open_chat(page, url, READY_S, GRADIO).fill("x")
    typed = (time.monotonic() - begun) * 1000
    page.wait_for_timeout(SETTLE_MS)
    return typed


@contextmanager
def running(project: Path, base_url: str, folder: Path) -> Generator[_App]:
    """Start the app of a checkout of this project."""
    port, data = free_port(), Path(tempfile.mkdtemp(dir=folder))
    env = {"VLLM_BASE_URL": base_url, "GRADIO_SERVER_PORT": str(port), "SWITCHBOARD_DATA": str(data)}
    url, log = f"http://127.0.0.1:{port}/", data / "log"
    with started([sys.executable, str(project / "app.py")], log, {**env, "SWITCHBOARD_OFFLINE": "1"}) as child:
        wait_until_up(child, url, log, READY_S)
        time.sleep(3.5)  # the app imports its provider some time after it is ready
        yield _App(url, CpuMeter(child))


def table(ours: Visit, start: Visit) -> str:
    """Return the rows as Markdown. `start` may lack some."""
    lines = [f"| {'a first visit':34} | now | start | goal |", "|---|---|---|---|"]
    for name, title in ROWS.items():
        before = f"{start[name]:.0f}" if name in start else ""
        lines.append(f"| {title:34} | {ours[name]:.0f} | {before} | {GOALS.get(name, '')} |")
    return "\n".join(lines)


def above(ours: Visit, start: Visit) -> list[str]:
    """Return the titles of the rows that are too far above their start."""
    return [ROWS[name] for name, value in start.items() if ours[name] > value * ABOVE]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print. Return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--against", type=Path, metavar="FOLDER", help="another checkout, measured in turns with this")
    parser.add_argument("--visits", type=int, default=VISITS)
    given = parser.parse_args(arguments)
    with (
        tempfile.TemporaryDirectory() as folder,
        scripted(Path(folder)) as bench,
        sync_playwright() as playwright,
        running(ROOT, bench.base_url, Path(folder)) as ours,
    ):
        browser, start = launch(playwright.chromium), dict(START)
        if given.against is None:
            for _ in range(given.visits + 1):
                ours.visits.append(visit(ours, browser))
        else:
            with running(given.against.resolve(), bench.base_url, Path(folder)) as other:
                for _ in range(given.visits + 1):
                    for one in (ours, other):
                        one.visits.append(visit(one, browser))
                start = other.medians()
        browser.close()
        now = ours.medians()
    print(table(now, start))
    for title in (heavier := above(now, start)):
        print(f"More than a tenth above the start: {title}", file=sys.stderr)
    return int(bool(heavier))


if __name__ == "__main__":
    sys.exit(main())
