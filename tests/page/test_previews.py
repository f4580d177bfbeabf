"""Diagrams, pictures and pages that a model writes as code are shown in a frame that reaches nothing of the page."""

import json

import pytest
from playwright.sync_api import Dialog, Page, Request, expect

from tests.conftest import App, Visit
from tests.peers.axe import violations

DIAGRAM = "```mermaid\\ngraph TD\\nA[Start] --> B[Goal]\\n```"
ESCAPES = {
    "cookie": "document.cookie = 'a=b'",
    "storage": "localStorage.setItem('a', 'b')",
    "session": "sessionStorage.setItem('a', 'b')",
    "database": "indexedDB.open('a')",
    "page": "parent.document.title",
    "top": "top.location.href",
    "popup": "if (open('about:blank')) 0; else throw 0",
    "request": "await fetch('ADDRESS/leak')",
    "script": "await import('ADDRESS/assets/leak.js')",
    "worker": "await new Promise((_, no) => new Worker('ADDRESS/leak.js').onerror = no)",
    "picture": "await new Promise((_, no) => Object.assign(new Image(), {onerror: no, src: 'ADDRESS/leak.png'}))",
    "socket": "await new Promise((_, no) => new WebSocket('ws://127.0.0.1:9/leak').onerror = no)",
    "top address": "top.location = 'ADDRESS/leak'",
}
"""Scripts that try to reach something. Each must fail."""
TRY = """
const failed = [];
const late = () => new Promise((done) => setTimeout(done, 9000));
const ended = (name, work) => Promise.race([work.catch(() => failed.push(name)), late()]);
(async () => {
  for (const [name, code] of Object.entries(ALL)) {
    await ended(name, new Function(`return (async () => { ${code} })()`)());
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


def leaks_of(page: Page) -> list[str]:
    """Return the list to which each leak is added: a request that no policy of the frame has stopped."""
    sent = list[str]()

    def add(request: Request) -> None:
        if "leak" in request.url and request.failure != "csp":
            sent.append(request.url)

    for event in ("requestfinished", "requestfailed"):
        page.context.on(event, add)  # pyright: ignore[reportArgumentType, reportCallIssue]
    return sent


@pytest.mark.gate("A diagram is drawn, and its code can be read.")
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_diagram_is_drawn_and_can_be_code(app: App, visit: Visit, dark: bool) -> None:
    visitor = visit(app.url, dark=dark, phone=dark)
    page = visitor.page
    visitor.ask(f"!text First:\\n\\n{DIAGRAM}\\n\\nThen:\\n\\n```mermaid\\nno diagram\\n```\\n\\nEnd.")
    first, second = visitor.bubbles.locator("pre").all()
    drawn = first.frame_locator("iframe:not(.next)").locator("svg")
    expect(drawn).to_contain_text("Start")
    expect(first.locator("code")).to_be_hidden()
    visitor.shot(f"diagram-{'dark-phone' if dark else 'light'}")
    assert not violations(page)
    first.get_by_role("button", name="Preview").click()
    expect(first.locator("code")).to_be_visible()
    expect(first.locator("iframe")).to_have_count(0)
    first.get_by_role("button", name="Preview").click()
    expect(drawn).to_contain_text("Goal")
    expect(second.get_by_role("status")).to_contain_text("No diagram type detected")
    expect(second.locator("code")).to_be_visible()


@pytest.mark.gate("A page that a model writes reaches nothing of the visitor.")
def test_page_in_a_preview_reaches_nothing(app: App, visit: Visit) -> None:
    visitor = visit(app.url)
    page, sent = visitor.page, leaks_of(visitor.page)
    code = TRY.replace("ALL", json.dumps({name: one.replace("ADDRESS", app.url) for name, one in ESCAPES.items()}))
    visitor.ask(fenced("html", f"<body><script>{code}</script>".replace("\n", " ")))
    block = visitor.bubbles.locator("pre")
    block.get_by_role("button", name="Preview").click()
    expect(block.frame_locator("iframe").locator("body")).to_have_text(",".join(ESCAPES))
    assert sent == []
    assert page.context.pages == [page]


@pytest.mark.parametrize(
    "way", ["location = '/leak'", "location = 'http://127.0.0.1:9/leak'", "document.forms[0].submit()"]
)
def test_preview_that_leaves_its_page_is_closed(app: App, visit: Visit, way: str) -> None:
    visitor = visit(app.url)
    form = "<form action='/leak' method='post'></form>"
    visitor.ask(fenced("html", f"{form}<button onclick='{way.replace(chr(39), chr(34))}'>Go</button><b>here</b>"))
    block = visitor.bubbles.locator("pre")
    block.get_by_role("button", name="Preview").click()
    frame = block.frame_locator("iframe")
    frame.get_by_role("button", name="Go").click()
    if "forms" in way:
        expect(frame.locator("b")).to_have_text("here")
    else:
        expect(block.get_by_role("status")).to_contain_text("it left its page")
        expect(block.locator("code")).to_be_visible()


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
