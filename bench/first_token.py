"""The time from Enter to the request at the model server, and from its first token to the page, step by step.

A visitor in Chromium types short prompts, each sent with Enter, after 0, 40 and 400 earlier turns. A program sends the
same event without a browser, which separates the page's share from the server's. 0 turns means: each message begins a
new chat. The first messages are warm-ups, and the very first of a process is shown on its own.

    python -m bench.first_token [--turns 0,40,400] [--rounds 10] [--wait 0.5] [--only page|raw]
"""

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from playwright.sync_api import Page

from bench.attack.client import Client
from bench.page import browser_page, open_chat
from bench.preload import preload, visitor_cookie
from bench.process import ROOT, started, wait_until_up
from bench.run import Bench, scripted, wait_for_past
from tests.support.ports import free_port

WARM_UPS = 3
WAIT_S = 20.0
OWNER = "bench-visitor"

# Notes on the page when Enter was pressed, when the request left, and when the answer's first word became visible. The
# clock is Date.now(), as in bench.page.
WATCH = """
() => {
  const bench = (window.bench = {});
  window.addEventListener("keydown", (event) => {
    if (event.key !== "Enter") return;
    Object.assign(bench, { enter: Date.now(), offset: Date.now() - performance.now(), left: 0, seen: 0 });
  }, true);
  new PerformanceObserver((all) => {
    for (const entry of all.getEntries()) {
      if (!/\\/conversations(\\/\\w+\\/messages)?$/.test(entry.name) || bench.left || !bench.enter) continue;
      const left = bench.offset + entry.requestStart;
      if (left >= bench.enter - 1) bench.left = left;
    }
  }).observe({ type: "resource" });
  new MutationObserver(() => {
    if (!bench.enter || bench.seen) return;
    const turn = [...document.querySelectorAll("#chat .turn")].at(-1);
    const has = (part, text) => turn?.querySelector(part)?.textContent.includes(text);
    if (has(".mine", bench.mark) && has(".answer", "word")) bench.seen = Date.now();
  }).observe(document.querySelector("#chat"), { childList: true, subtree: true, characterData: true });
}
"""


@dataclass(frozen=True, slots=True)
class Sent:
    """One message: epoch ms of each step, and the CPU ms of the app from the arrival to the request to the model.

    `enter` is the key press, or the call of the program. `left` and `seen` exist on a page only.
    """

    steps: dict[str, float]
    cpu: float


@dataclass(frozen=True, slots=True)
class Place:
    """A running app with its earlier turns, and its model server."""

    bench: Bench
    url: str
    log: Path
    cookie: tuple[str, str]
    turns: int
    wait: float

    def timed(self, number: int) -> dict[str, tuple[float, float]]:
        """Return the steps of the message with this number: epoch ms and CPU ms of the app."""
        lines = [line.split() for line in self.log.read_text(errors="replace").splitlines()]
        marks = [line[2:] for line in lines if line[:2] == ["bench", str(number)]]
        return {step: (float(epoch_ms), float(cpu_ms)) for step, epoch_ms, cpu_ms in marks}

    def sent(self, number: int, after: int, **noted: float) -> Sent:
        """Return the message with this number, whose request the model server got after the line `after`."""
        last = "frame" if "seen" in noted else "leaves"
        wait_until(lambda: last in self.timed(number))
        marks, line = self.timed(number), self.ended(after)
        steps = noted | {step: mark[0] for step, mark in marks.items()}
        steps |= {"model": line["at"]["epoch_ms"], "first": line["first"]["epoch_ms"]}
        return Sent(steps, marks["leaves"][1] - marks["join"][1])

    def last(self) -> int:
        """Return the id of the model server's last request."""
        return max((line["id"] for line in self.bench.journal(0)), default=0)

    def ended(self, after: int) -> dict[str, Any]:
        """Return the model server's first request after `after`, once it has been answered."""
        wait_until(lambda: any(line["ended"] for line in self.bench.journal(after)))
        return self.bench.journal(after)[0]


def wait_until(holds: Callable[[], bool]) -> None:
    """Return when it holds. Raises TimeoutError."""
    until = time.monotonic() + WAIT_S
    while not holds():
        if time.monotonic() > until:
            raise TimeoutError("a message did not arrive")
        time.sleep(0.02)


@contextmanager
def place(bench: Bench, turns: int, wait: float) -> Generator[Place]:
    """Start the app with a conversation of `turns` turns."""
    port, data = free_port(), Path(tempfile.mkdtemp(dir=bench.folder))
    if turns:
        asyncio.run(preload(data, OWNER, turns))
    env = {"GRADIO_SERVER_PORT": str(port), "SWITCHBOARD_DATA": str(data), "SWITCHBOARD_OFFLINE": "1"}
    env |= {"VLLM_BASE_URL": bench.base_url, "PYTHONPATH": str(ROOT)}
    url, log = f"http://127.0.0.1:{port}/", data / "app.log"
    with started([sys.executable, "-m", "bench.timed_app"], log, env) as child:
        wait_until_up(child, url, log, 60)
        yield Place(bench, url, log, visitor_cookie(data, OWNER), turns, wait)


def prompt(number: int, wait: float) -> str:
    """Return a prompt that no other round has. Its answer takes a second, so that the page reads it while it runs."""
    return f"!wait {wait} !tokens 40 @40 !text r{number}"


def on_page(here: Place, rounds: int) -> list[Sent]:
    """Send the messages in Chromium."""
    with browser_page() as page:
        name, value = here.cookie
        page.context.add_cookies([{"name": name, "value": value, "url": here.url}])
        box = open_chat(page, here.url, 60)
        wait_for_past(page, here.turns)
        page.wait_for_timeout(4000)  # the app imports its provider some time after the page is ready
        page.evaluate(WATCH)
        sent: list[Sent] = []
        for number in range(rounds):
            if not here.turns and number:
                page.locator("#new").click()
                page.locator("#chat .turn").first.wait_for(state="detached")
            after = here.last()
            page.evaluate("(mark) => (window.bench.mark = mark)", prompt(number, here.wait))
            box.press_sequentially(prompt(number, here.wait), delay=15)
            box.press("Enter")
            wait_until(lambda: page.evaluate("window.bench.seen && window.bench.left") > 0)
            noted = page.evaluate("({ enter: window.bench.enter, left: window.bench.left, seen: window.bench.seen })")
            sent.append(here.sent(number, after, **noted))
            settle(page)
        return sent


def settle(page: Page) -> None:
    """Wait until the page has finished with the answer."""
    page.locator("#composer .submit-button").wait_for(state="visible")
    page.wait_for_timeout(300)


def by_program(here: Place, rounds: int) -> list[Sent]:
    """Send the same messages without a browser."""
    sent: list[Sent] = []
    with Client(here.url) as client:
        client.http.cookies = httpx.Cookies([here.cookie])
        time.sleep(4)
        chat = client.http.get("/conversations/current").json()["id"] if here.turns else ""
        for number in range(rounds):
            after, enter = here.last(), time.time() * 1000
            client.read(client.send(prompt(number, here.wait), chat).raise_for_status())
            sent.append(here.sent(number, after, enter=enter))
            time.sleep(0.3)
    return sent


WAYS = {"page": on_page, "raw": by_program}
COLUMNS = (
    ("Enter to the POST", "enter", "left"),
    ("to the app", "left", "join"),
    ("to the handler", "join", "handler"),
    ("to the stored message", "handler", "stored"),
    ("to the call of the model", "stored", "leaves"),
    ("to the model server", "leaves", "model"),
    ("Enter to the model server", "enter", "model"),
    ("first token to the run", "first", "text"),
    ("to the page's answer", "stored", "told"),
    ("to the stream's request", "told", "asked"),
    ("to the text on its way", "text", "frame"),
    ("to the page", "frame", "seen"),
    ("first token to the page", "first", "seen"),
)


def row(way: str, turns: int, sent: Sequence[Sent]) -> str:
    """Return a row of the table: the median and the worst of each step after the warm-ups, in ms."""
    cells: list[str] = []
    for _, start, end in COLUMNS:
        each = [one.steps[end] - one.steps[start] for one in sent if start in one.steps and end in one.steps]
        counted = each[WARM_UPS:]
        cells.append(f"{statistics.median(counted):.0f} ({max(counted):.0f})" if counted else "")
    cpu = statistics.median(one.cpu for one in sent[WARM_UPS:])
    first = sent[0].steps["model"] - sent[0].steps["enter"]
    return "| " + " | ".join([str(turns), way, *cells, f"{cpu:.0f}", f"{first:.0f}"]) + " |"


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description="The time from Enter to the request at the model server.")
    parser.add_argument("--turns", default="0,40,400", help="comma-separated")
    parser.add_argument("--rounds", type=int, default=10, help="besides the warm-ups")
    parser.add_argument("--wait", type=float, default=0.0, help="seconds until the model's first token")
    parser.add_argument("--only", choices=list(WAYS))
    given = parser.parse_args()
    names = ["turns", "by", *(name for name, _, _ in COLUMNS), "app CPU", "first message"]
    print("ms: median (worst)\n\n| " + " | ".join(names) + " |\n" + "|---" * len(names) + "|")
    with tempfile.TemporaryDirectory() as folder, scripted(Path(folder)) as bench:
        for turns in map(int, given.turns.split(",")):
            for way in [given.only] if given.only else WAYS:
                with place(bench, turns, given.wait) as here:
                    print(row(way, turns, WAYS[way](here, given.rounds + WARM_UPS)), flush=True)


if __name__ == "__main__":
    main()
