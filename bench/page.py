"""A chat page in Chromium: types a prompt and records when tokens of the answer become visible, and what that costs."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from playwright.sync_api import CDPSession, ConsoleMessage, Locator, Page, sync_playwright

from tests.support.chromium import launch

# Watches the chat for the scripted server's tokens `word0`, `word1`, ... It inspects only the end of the nodes in a
# mutation, so that watching costs the same in every contender. The clock is Date.now(), because it is the system clock,
# as on the server; performance.timeOrigin was read when the browser started. It reports through console messages,
# because a page that is behind answers no question until it has caught up, and the time limit would not hold. A timer
# of 10 ms notes the longest time in which the page's event loop did nothing else.
WATCH = """
([every, last, root]) => {
  let top = -1, ticked = 0, gap = 0;
  const tick = () => {
    const now = performance.now();
    if (ticked) gap = Math.max(gap, now - ticked - 10);
    ticked = now;
  };
  window.worstGap = () => (tick(), gap);
  const say = (what, value) => console.debug(`bench ${what} ${value}`);
  const note = (text, now) => {
    const start = text ? text.lastIndexOf("word") : -1;
    const found = start < 0 ? -1 : parseInt(text.slice(start + 4), 10);
    if (!(found > top)) return;
    for (let n = top + 1; n <= found; n++) {
      if (n === 0 || (n + 1) % every === 0 || n === last) say(n + 1, now);
    }
    top = found;
    if (top === last) requestAnimationFrame(() => setTimeout(() => say("painted", Date.now())));
  };
  addEventListener("keydown", ({ key }) => {
    if (key !== "Enter" || ticked) return;
    say("enter", Date.now());
    tick();
    setInterval(tick, 10);
  }, true);
  new MutationObserver(records => {
    const now = Date.now();
    for (const record of records) {
      if (record.type === "characterData") note(record.target.data, now);
      else for (const node of record.addedNodes) note(node.textContent, now);
    }
  }).observe(document.querySelector(root), { childList: true, subtree: true, characterData: true });
}
"""
END_MS = 1500
"""Work of the page after the last token is part of the cost of an answer."""
WARM_UP, WARMED_UP = "!text Ready.", "Ready."


@dataclass(frozen=True, slots=True)
class Place:
    """CSS selectors of a page: of the conversation, of the text box, and of a button that closes a greeting, or ""."""

    chat: str
    box: str
    greeting: str = ""


GRADIO = Place("#chat", "#composer textarea")
OPEN_WEBUI = Place("body", "#chat-input", "text=Okay, Let's Go!")


@dataclass(frozen=True, slots=True)
class Seen:
    """The times at which tokens became visible, in epoch milliseconds by token count (the first, and every tenth).

    `enter` is when Enter was pressed, and `gap` the longest time in which the page's event loop did one thing.
    `main_ms` is the CPU time of the page's main thread, as DevTools counts it if the page still answered. `received` is
    the bytes that the page got meanwhile.
    """

    shown: int
    at: dict[int, float]
    enter: float
    gap: float | None
    main_ms: float
    received: int
    watched_s: float
    ended: float


@contextmanager
def browser_page() -> Iterator[Page]:
    """Open a page in a separate browser: the system's Chromium, else Playwright's."""
    with sync_playwright() as playwright:
        browser = launch(playwright.chromium)
        try:
            yield browser.new_page(viewport={"width": 1280, "height": 900})
        finally:
            browser.close()


def open_chat(page: Page, url: str, seconds: float, place: Place = GRADIO) -> Locator:
    """Load the page. Return its text box as soon as it accepts text."""
    page.set_default_timeout(seconds * 1000)
    page.goto(url, wait_until="commit")
    box = page.locator(place.box)
    box.wait_for(state="visible")
    if place.greeting:
        page.locator(place.greeting).click()
    until = time.monotonic() + seconds
    while not box.is_editable():
        if time.monotonic() > until:
            raise TimeoutError("the text box stays disabled")
        time.sleep(0.02)
    return box


def renderer_clock(page: Page) -> Callable[[], float]:
    """Return a clock of the page's main thread in CPU seconds, read from the system without asking the page."""
    browser = page.context.browser
    assert browser
    processes = browser.new_browser_cdp_session().send("SystemInfo.getProcessInfo")["processInfo"]
    renderers = [process["id"] for process in processes if process["type"] == "renderer"]
    start = {pid: _main_thread(pid) for pid in renderers}
    # A spare renderer can be running; the busiest one is the page.
    return lambda: max((_main_thread(pid) - start[pid] for pid in renderers), default=0.0)


def _main_thread(pid: int) -> float:
    try:
        return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e9
    except OSError:
        return 0.0


def warm_up(page: Page, box: Locator, place: Place = GRADIO) -> None:
    """Let the page and the app answer once, because the first answer of a process is slower."""
    box.fill(WARM_UP)
    box.press("Enter")
    page.locator(place.chat).get_by_text(WARMED_UP, exact=True).last.wait_for(state="visible")
    page.wait_for_timeout(1500)


def ask(
    page: Page,
    box: Locator,
    prompt: str,
    tokens: int,
    *,
    chat: str,
    cap: float,
    clock: Callable[[], float],
    tick: Callable[[], object],
) -> Seen:
    """Send the prompt and watch the element `chat` until the last token is visible or `cap` seconds are over.

    Calls `tick` meanwhile.
    """
    at, noted, received = dict[int, float](), dict[str, float](), 0

    def heard(message: ConsoleMessage) -> None:
        match message.text.split():
            case ["bench", what, value] if what.isdecimal():
                at[int(what)] = float(value)
            case ["bench", what, value]:
                noted[what] = float(value)
            case _:
                pass

    def got(event: dict[str, int]) -> None:
        nonlocal received
        received += event["encodedDataLength"] or event["dataLength"]

    page.on("console", heard)
    page.evaluate(WATCH, [10, tokens - 1, chat])
    cdp = page.context.new_cdp_session(page)
    cdp.on("Network.dataReceived", got)
    cdp.send("Network.enable")
    cdp.send("Performance.enable", {"timeDomain": "threadTicks"})
    before, start = _task_seconds(cdp), time.monotonic()
    clock_before = clock()
    box.fill(prompt)
    box.press("Enter")
    while "painted" not in noted and time.monotonic() - start < cap:
        page.wait_for_timeout(400)
        tick()
    page.wait_for_timeout(END_MS)
    watched, ended = time.monotonic() - start, time.time() * 1000
    main = _task_seconds(cdp) - before if "painted" in noted else clock() - clock_before
    enter, gap = noted.get("enter", 0.0), page.evaluate("window.worstGap()") if "painted" in noted else None
    return Seen(max(at, default=0), at, enter, gap, main * 1000, received, watched, ended)


def _task_seconds(cdp: CDPSession) -> float:
    metrics = cdp.send("Performance.getMetrics")["metrics"]
    return next(metric["value"] for metric in metrics if metric["name"] == "TaskDuration")
