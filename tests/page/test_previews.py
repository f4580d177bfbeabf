"""The artifact that code of an answer makes is shown beside the chat, in a frame that reaches nothing of the page."""

import json
from uuid import uuid4

import pytest
from playwright.sync_api import Dialog, Locator, Request, expect

from tests.conftest import App, Visit, Visitor
from tests.peers.axe import violations
from tests.support.scripted_server import Running
from tests.support.traffic import leaks_of

DIAGRAM = "```mermaid\\ngraph TD\\nA[Start] --> B[Goal]\\n```"
ESCAPES = {
    "cookie": "document.cookie = 'a=b'",
    "storage": "localStorage.setItem('a', 'b')",
    "session": "sessionStorage.setItem('a', 'b')",
    "database": "indexedDB.open('a')",
    "cache": "await caches.open('a')",
    "service worker": "await navigator.serviceWorker.register('ADDRESS/leak.js')",
    "page": "parent.document.title",
    "function of the page": "parent.fetch('ADDRESS/leak')",
    "top": "top.location.href",
    "top address": "top.location = 'ADDRESS/leak'",
    "popup": "if (open('ADDRESS/leak')) 0; else throw 0",
    "request": "await fetch('ADDRESS/leak')",
    "events": "await new Promise((_, no) => new EventSource('ADDRESS/leak').onerror = no)",
    "socket": "await new Promise((_, no) => new WebSocket('ws://127.0.0.1:9/leak').onerror = no)",
    "script": "await import('ADDRESS/assets/leak.js')",
    "worker": "await new Promise((_, no) => new Worker('ADDRESS/leak.js').onerror = no)",
    "worker of a text": "await worker(`fetch('ADDRESS/leak').then(() => postMessage(1), () => postMessage(0))`)",
    "picture": "await loads('img', { src: 'ADDRESS/leak.png' })",
    "sound": "await loads('audio', { src: 'ADDRESS/leak.mp3' })",
    "style sheet": "await loads('link', { rel: 'stylesheet', href: 'ADDRESS/leak.css' })",
    "style": "await stopped(() => document.head.append(made('style', { textContent: `@import 'ADDRESS/leak.css'` })))",
    "background": "await stopped(() => (document.body.style.background = `url('ADDRESS/leak.png')`))",
    "font": "await new FontFace('leak', `url('ADDRESS/leak.woff')`).load()",
    "frame": "await stopped(() => document.body.append(made('iframe', { src: 'ADDRESS/leak' })))",
    "object": "await stopped(() => document.body.append(made('object', { data: 'ADDRESS/leak' })))",
    "base": "await stopped(() => document.head.append(made('base', { href: 'ADDRESS/leak/' })))",
    "clipboard": "await navigator.clipboard.readText()",
    "camera": "await navigator.mediaDevices.getUserMedia({ video: true })",
    "place": "await new Promise((yes, no) => navigator.geolocation.getCurrentPosition(yes, no))",
    "full screen": "await document.body.requestFullscreen()",
}
"""Scripts that try to reach something. Each must fail."""
SILENT = {
    "dialog": "alert('leak')",
    "beacon": "navigator.sendBeacon('ADDRESS/leak')",
    "form": "made('form', { action: 'ADDRESS/leak', method: 'post' }).requestSubmit()",
    "form in the top": "made('form', { action: 'ADDRESS/leak', target: '_top' }).submit()",
    "link in the top": "made('a', { href: 'ADDRESS/leak', target: '_top' }).click()",
    "link in a new page": "made('a', { href: 'ADDRESS/leak', target: '_blank' }).click()",
    "download": "made('a', { href: 'data:text/plain,leak', download: 'leak.txt' }).click()",
    "prefetch": "made('link', { rel: 'prefetch', href: 'ADDRESS/leak' })",
    "leaving by a form": "made('form', { action: 'ADDRESS/leak', method: 'post' }).submit()",
    "leaving": "location = 'ADDRESS/leak'",
    "leaving for a file": "location = 'data:text/html,leak'",
}
"""What fails without a word. Each is tried with a click of the reader, which allows more than a script alone."""
HELPERS = """
const made = (tag, given) => document.body.appendChild(Object.assign(document.createElement(tag), given));
const loads = (tag, given) => new Promise((yes, no) => made(tag, { ...given, onload: yes, onerror: no }));
const stopped = (act) => new Promise((_, no) => {
  addEventListener('securitypolicyviolation', no, { once: true });
  act();
});
const worker = (code) => new Promise((yes, no) => {
  new Worker(URL.createObjectURL(new Blob([code]))).onmessage = ({ data }) => (data ? yes() : no());
});
"""
TRY = """
const failed = [];
const late = () => new Promise((done) => setTimeout(done, 9000));
const ended = (name, work) => Promise.race([work.catch(() => failed.push(name)), late()]);
(async () => {
  for (const [name, code] of Object.entries(ALL)) {
    const tried = new Function("made", "loads", "stopped", "worker", `return (async () => { ${code} })()`);
    await ended(name, tried(made, loads, stopped, worker));
  }
  document.title = "done";
  document.body.textContent = failed.join();
})();
"""


HOSTILE = [
    'graph TD\\nA["<img src=ADDRESS/leak1 onerror=alert(1)>"] --> B',
    "graph TD\\nA --> B\\nclick A call alert()\\nclick B href `javascript:alert(2)`",
    "%%{init: {`securityLevel`: `loose`, `themeCSS`: `* { background: url(ADDRESS/leak3) }`}}%%\\ngraph TD\\nA --> B",
    "graph TD\\nA --> B\\nstyle A fill:url(ADDRESS/leak4)",
    'graph TD\\nA@{ img: "ADDRESS/leak5", label: "a" } --> B',
    "sequenceDiagram\\nAlice->>Bob: <script>alert(6)</script><img src=ADDRESS/leak6>",
    "classDiagram\\nclass A\\nlink A `ADDRESS/leak7` `a`\\ncallback A `alert`",
]
"""Diagrams that try to run a script, to load something or to make Mermaid less strict. ` is a double quote."""


def fenced(language: str, code: str) -> str:
    """Return the message to which the scripted model answers with this code."""
    return f"!text Here:\\n\\n```{language}\\n{code}\\n```\\n\\nEnd."


def opened(visitor: Visitor, *, number: int = -1) -> Locator:
    """Open the panel for a block of code. Return the panel."""
    visitor.bubbles.locator("pre").nth(number).get_by_role("button", name="Preview").click()
    panel = visitor.page.locator(".artifact")
    expect(panel).to_be_visible()
    return panel


@pytest.mark.gate("A diagram is drawn, and its code can be read.")
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_diagram_is_drawn_and_can_be_code(app: App, visit: Visit, dark: bool) -> None:
    visitor = visit(app.url, dark=dark, phone=dark)
    page = visitor.page
    visitor.ask(f"!text First:\\n\\n{DIAGRAM}\\n\\nThen:\\n\\n```mermaid\\nno diagram\\n```\\n\\nEnd.")
    first, second = visitor.bubbles.locator("pre").all()
    expect(first.frame_locator("iframe:not(.next)").locator("svg")).to_contain_text("Start")
    expect(first.locator("code")).to_be_hidden()
    visitor.shot(f"diagram-{'dark-phone' if dark else 'light'}")
    assert not violations(page)
    expect(second.get_by_role("status")).to_contain_text("No diagram type detected")
    expect(second.locator("code")).to_be_visible()
    panel = opened(visitor, number=0)
    expect(panel.frame_locator("iframe:not(.next)").locator("svg")).to_contain_text("Goal")
    panel.get_by_role("tab", name="Code").click()
    expect(panel.locator(".listing")).to_contain_text("A[Start] --> B[Goal]")


@pytest.mark.gate("A page that a model writes reaches nothing of the visitor.")
def test_page_in_a_preview_reaches_nothing(app: App, visit: Visit) -> None:
    visitor = visit(app.url)
    page, sent = visitor.page, leaks_of(visitor.page)
    code = HELPERS + TRY.replace(
        "ALL", json.dumps({name: one.replace("ADDRESS", app.url) for name, one in ESCAPES.items()})
    )
    visitor.ask(fenced("html", f"<body><script>{code}</script>".replace("\n", " ")))
    panel = opened(visitor)
    expect(panel.frame_locator("iframe:not(.next)").locator("body")).to_have_text(",".join(ESCAPES))
    assert sent == []
    assert page.context.pages == [page]


def test_silent_escapes_of_a_preview_reach_nothing(app: App, visit: Visit) -> None:
    visitor = visit(app.url, fresh=True)
    page, sent, seen = visitor.page, leaks_of(visitor.page), list[str]()
    for event in ("dialog", "download"):
        page.on(event, lambda happened: seen.append(str(happened)))  # pyright: ignore[reportArgumentType, reportCallIssue]
    ways = {name: one.replace("ADDRESS", app.url) for name, one in SILENT.items()}
    for name, code in ways.items():
        script = f"{HELPERS} const go = () => {{ {code}; made('b', {{ textContent: 'tried' }}); }};".replace("\n", " ")
        visitor.ask(fenced("html", f"<body><script>{script}</script><button onclick='go()'>{name}</button>"))
        panel = opened(visitor)
        frame = panel.frame_locator("iframe:not(.next)")
        frame.get_by_role("button", name=name, exact=True).click()
        said = panel.get_by_role("status")
        if "leaving" in name:
            expect(said).to_contain_text("it left its page")
        else:
            expect(frame.locator("b")).to_have_text("tried")
            assert "left" not in said.inner_text(), name
        panel.get_by_role("button", name="Close").click()
    assert (sent, seen) == ([], [])
    assert page.context.pages == [page]
    assert page.url.startswith(app.url)


def test_endless_loop_in_a_preview_can_be_closed(app: App, visit: Visit) -> None:
    visitor = visit(app.url)
    loop = (
        "let n = 0; setInterval(() => { parent.postMessage({ error: `tick ${++n}` }, `*`); if (n > 4) for (;;); }, 20)"
    )
    visitor.ask(fenced("html", f"<b>Busy</b><script>{loop}</script>"))
    panel = opened(visitor)
    expect(panel.get_by_role("status")).to_contain_text("tick 4")
    visitor.ask("!text Still here.")
    panel.get_by_role("button", name="Close").click()
    expect(panel).to_have_count(0)


def test_loop_at_the_start_leaves_the_page_usable(app: App, visit: Visit) -> None:
    visitor = visit(app.url)
    visitor.ask(fenced("html", "<b>Busy</b><script>for (;;);</script>"))
    panel = opened(visitor)
    expect(panel.locator("iframe:not(.next)")).to_be_attached()  # it is shown although it never ends loading
    panel.get_by_role("tab", name="Code").click()
    expect(panel.locator(".listing")).to_contain_text("for (;;)")
    visitor.ask("!text Still here.")
    panel.get_by_role("button", name="Close").click()


@pytest.mark.gate("An artifact is shown beside the chat, with its versions, and the model is asked to fix its errors.")
def test_artifact_follows_its_versions_and_is_fixed(app: App, visit: Visit) -> None:
    visitor = visit(app.url)
    page = visitor.page
    visitor.ask(fenced('html title="Clock"', "<h1>Clock</h1>\\n<script>\\nmissing()\\n</script>"))
    panel = opened(visitor)
    expect(panel.get_by_role("heading", name="Clock")).to_be_visible()
    expect(panel.frame_locator("iframe:not(.next)").locator("h1")).to_have_text("Clock")
    status = panel.get_by_role("status")
    expect(status).to_contain_text("missing is not defined (line 3)")
    assert not violations(page)
    visitor.box.fill("my draft")
    status.get_by_role("button", name="Fix this error").click()
    expect(visitor.mine.last).to_contain_text("The preview of Clock reports:")
    expect(visitor.mine.last).to_contain_text("ReferenceError: missing is not defined (line 3)")
    expect(visitor.box).to_have_value("my draft")
    visitor.idle()
    visitor.box.fill("")
    visitor.ask(fenced('html title="Clock"', "<h1>Clock</h1>\\n<b>Noon</b>"))
    expect(panel.frame_locator("iframe:not(.next)").locator("b")).to_have_text("Noon")
    expect(panel.locator(".count")).to_have_text("2/2")
    expect(status).to_be_empty()
    panel.get_by_role("tab", name="Changes").click()
    expect(panel.locator("ins")).to_have_text(["+ <b>Noon</b>"])
    expect(panel.locator("del")).to_have_text(["- <script>", "- missing()", "- </script>"])
    panel.get_by_role("button", name="Previous version").click()
    expect(panel.frame_locator("iframe:not(.next)").locator("b")).to_have_count(0)
    expect(panel.get_by_role("button", name="Next version")).to_be_focused()
    page.keyboard.press("Escape")
    expect(panel).to_have_count(0)
    expect(visitor.bubbles.locator("pre").first.get_by_role("button", name="Preview")).to_be_focused()


def test_code_grows_and_the_page_is_shown_at_its_end(app: App, visit: Visit, model_server: Running) -> None:
    visitor = visit(app.url)
    name = uuid4().hex
    visitor.say(f"!text ```html\\n<p>one</p>\\n !tokens 2 hold 1 {name} !text \\n<b>two</b>\\n```\\n")
    panel = opened(visitor)
    expect(panel.locator(".listing")).to_contain_text("<p>one</p>")
    expect(panel.get_by_role("tab", name="Code")).to_have_attribute("aria-selected", "true")
    panel.get_by_role("tab", name="Preview").click()
    expect(panel.frame_locator("iframe:not(.next)").locator("p")).to_have_text("one")
    panel.get_by_role("tab", name="Code").click()
    model_server.release(name)
    expect(panel.locator(".listing")).to_contain_text("<b>two</b>")
    panel.get_by_role("tab", name="Preview").click()
    expect(panel.frame_locator("iframe:not(.next)").locator("b")).to_have_text("two")


def test_preview_follows_the_code_unless_a_tab_was_chosen(app: App, visit: Visit, model_server: Running) -> None:
    visitor = visit(app.url)
    name = uuid4().hex
    visitor.say(f"!text ```html\\n<p>one</p>\\n !tokens 2 hold 1 {name} !text \\n<b>two</b>\\n```\\n")
    panel = opened(visitor)
    expect(panel.get_by_role("tab", name="Code")).to_have_attribute("aria-selected", "true")
    model_server.release(name)
    expect(panel.get_by_role("tab", name="Preview")).to_have_attribute("aria-selected", "true")
    expect(panel.frame_locator("iframe:not(.next)").locator("b")).to_have_text("two")


def test_growing_markdown_is_code_and_rendered_at_its_end(app: App, visit: Visit, model_server: Running) -> None:
    visitor = visit(app.url)
    name, asked = uuid4().hex, list[Request]()
    visitor.page.on("request", lambda request: asked.append(request) if "/markdown" in request.url else None)
    visitor.say(f"!text ```markdown\\n# One\\n !tokens 2 hold 1 {name} !text \\n# Two\\n```\\n")
    panel = opened(visitor)
    expect(panel.locator(".listing")).to_contain_text("# One")
    expect(panel.get_by_role("tab", name="Code")).to_have_attribute("aria-selected", "true")
    assert not asked
    model_server.release(name)
    expect(panel.get_by_role("heading", name="Two")).to_be_visible()
    assert len(asked) == 1


def test_phone_shows_failures_in_the_panel(app: App, visit: Visit) -> None:
    visitor = visit(app.url, phone=True)
    visitor.page.route("**/markdown*", lambda route: route.abort())
    visitor.ask(fenced("markdown", "# Plan"))
    panel = opened(visitor)
    expect(panel.get_by_role("status")).not_to_be_empty()
    expect(panel.get_by_role("heading", name="Plan")).to_have_count(0)
    panel.get_by_role("button", name="Copy the code").click()
    expect(panel.get_by_role("status")).to_have_text("Copied")


def test_what_was_not_loaded_is_reported(app: App, visit: Visit) -> None:
    visitor = visit(app.url)
    visitor.ask(fenced("html", "<b>Shown</b><script src='https://cdn.example/leak.js'></script>"))
    panel = opened(visitor)
    expect(panel.get_by_role("status")).to_contain_text(
        "cdn.example/leak.js was not loaded, because a preview has no network"
    )
    expect(panel.frame_locator("iframe:not(.next)").locator("b")).to_have_text("Shown")


def test_picture_document_and_chart_are_shown(app: App, visit: Visit) -> None:
    visitor = visit(app.url)
    chart = {
        "data": {"values": [{"a": "Oslo", "b": 3}]},
        "mark": "bar",
        "encoding": {"x": {"field": "a"}, "y": {"field": "b", "type": "quantitative"}},
    }
    visitor.ask(fenced("svg", "<svg viewBox='0 0 90 30'><text y='20'>Flag</text></svg>"))
    expect(opened(visitor).frame_locator("iframe:not(.next)").get_by_text("Flag")).to_be_visible()
    visitor.ask(fenced("markdown", "# Plan\\n\\n- one\\n- [two](https://a.example)"))
    panel = opened(visitor)
    expect(panel.get_by_role("heading", name="Plan")).to_be_visible()
    expect(panel.get_by_role("link", name="two")).to_have_attribute("target", "_blank")
    visitor.ask(fenced("vega-lite", json.dumps(chart)))
    panel = opened(visitor)
    expect(panel.frame_locator("iframe:not(.next)").locator("svg")).to_contain_text("Oslo")
    assert panel.locator("iframe:not(.next)").get_attribute("sandbox") == ""


def test_table_is_sorted_and_plotted(app: App, visit: Visit) -> None:
    visitor = visit(app.url)
    visitor.ask(fenced("csv", "city,people\\nOslo,700\\nRome,2800\\nBern,130"))
    panel = opened(visitor)
    expect(panel.get_by_role("img", name="Plot of people")).to_be_visible()
    cities = panel.locator("tbody tr > :first-child")
    panel.get_by_role("button", name="people").click()
    expect(cities).to_have_text(["Bern", "Oslo", "Rome"])
    panel.get_by_role("button", name="people").press("Enter")
    expect(cities).to_have_text(["Rome", "Oslo", "Bern"])
    expect(panel.locator("th", has_text="people")).to_have_attribute("aria-sort", "descending")
    assert not violations(visitor.page)


def test_artifact_is_saved_and_copied(app: App, visit: Visit) -> None:
    visitor = visit(app.url)
    visitor.ask(fenced('html title="My / clock"', "<b>Noon</b>"))
    panel = opened(visitor)
    with visitor.page.expect_download() as download:
        panel.get_by_role("button", name="Save as My clock.html").click()
    assert download.value.suggested_filename == "My clock.html"
    assert download.value.path().read_text() == "<b>Noon</b>\n"
    panel.get_by_role("button", name="Copy the code").click()
    assert visitor.page.evaluate("navigator.clipboard.readText()") == "<b>Noon</b>\n"


def test_artifact_covers_a_phone(app: App, visit: Visit) -> None:
    visitor = visit(app.url, phone=True, dark=True)
    page = visitor.page
    visitor.ask(fenced('svg title="Flag"', "<svg viewBox='0 0 90 30'><text y='20'>Flag</text></svg>"))
    panel = opened(visitor)
    assert panel.bounding_box() == {"x": 0, "y": 0, "width": 390, "height": 844}
    expect(panel.frame_locator("iframe:not(.next)").get_by_text("Flag")).to_be_visible()
    assert not violations(page)
    panel.get_by_role("tab", name="Preview").press("ArrowRight")
    expect(panel.get_by_role("tab", name="Code")).to_be_focused()
    for _ in range(20):
        page.keyboard.press("Tab")
        assert page.evaluate(
            "document.activeElement === document.body || Boolean(document.activeElement.closest('.artifact'))"
        )
    panel.get_by_role("button", name="Close").click()
    visitor.ask("!text Still here.")


def test_artifact_is_closed_with_its_chat(app: App, visit: Visit) -> None:
    visitor = visit(app.url)
    visitor.ask(fenced("html", "<b>one</b>"))
    visitor.page.locator("#new button").click()
    expect(visitor.mine).to_have_count(0)
    visitor.ask(fenced("html", "<b>two</b>"))
    panel = opened(visitor)
    visitor.page.go_back()
    expect(visitor.bubbles.locator("code").first).to_have_text("<b>one</b>\n")
    expect(panel).to_have_count(0)


def test_hostile_diagrams_only_show(app: App, visit: Visit) -> None:
    visitor = visit(app.url)
    page, sent, dialogs = visitor.page, leaks_of(visitor.page), list[str]()

    def close(dialog: Dialog) -> None:
        dialogs.append(dialog.message)
        dialog.dismiss()

    page.on("dialog", close)
    for text in HOSTILE:
        visitor.ask(fenced("mermaid", text.replace("`", '"').replace("ADDRESS", app.url)))
        block = visitor.bubbles.locator("pre").last
        block.scroll_into_view_if_needed()
        expect(block.locator("iframe:not(.next), .note:not([hidden])")).to_have_count(1)
        for node in block.frame_locator("iframe").locator(".node, .actor").all()[:2]:
            node.click(force=True)
    assert (sent, dialogs) == ([], [])
