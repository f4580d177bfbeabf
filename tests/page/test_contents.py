"""What a model writes requests nothing with the visitor's cookie, and a diagram only draws."""

# ruff: noqa: E501

import json
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Page, Request, expect

from tests.conftest import App, Visitor

pytestmark = pytest.mark.browser

Visit = Callable[..., Visitor]
LATER_PICTURE = """() => new Promise((done) => {
  const picture = new Image();
  picture.onload = picture.onerror = () => setTimeout(done);
  picture.src = "/mark.svg?later";
})"""
"""Waits for a picture that is requested after those of the texts."""
ICONS = ("/mark.svg", "/favicon.ico")
URLS = (
    "/logout",
    "logout",
    "./conversations",
    "/gradio_api/config",
    "gradio_api/../conversations?x=1",
    "\\\\logout",
    "/%6cogout",
    "//HOST/healthz",
    "http://HOST/readyz",
    "HTTP://HOST/own-data",
    "/media/../healthz",
    "/media/%2e%2e/healthz",
    "/media/AAAAAAAAAAAAAAAAAAAAAA.png",
    "media/other.png?name=x",
    "/assets/../healthz",
    "data:image/svg+xml,%3Csvg%20xmlns='http://www.w3.org/2000/svg'/%3E",
    "data:text/html,hello",
    "blob:http://HOST/1",
    "javascript:window.broken=1",
    "http://elsewhere.invalid/leak.png",
    "//elsewhere.invalid/leak.png",
)
FORMS = (
    "![x](URL)",
    "![x](<URL> 'title')",
    "[![x](URL)](https://example.org)",
    "- item ![x](URL)",
    "> ![x](URL)",
    "| a |\\n|---|\\n| ![x](URL) |",
    "# ![x](URL)",
    "![x][NAME]\\n\\n[NAME]: URL",
    "![NAME][]\\n\\n[NAME]: <URL>",
    "![NAME]\\n\\n[NAME]: URL 'title'",
    "<img src='URL'> <img srcset='URL 1x'>",
    "<video src='URL' poster='URL'></video> <input type=image src='URL'> <p style='background:url(URL)'>x</p>",
    "```mermaid\\n<img src='URL'></div><img src='URL' onerror='window.broken=1'><svg><image href='URL'/></svg>\\n```",
)


def requests_of(page: Page) -> list[str]:
    """Return a list, to which each further request for a picture, sound or route is added that leaves the browser."""
    out: list[str] = []

    def add(request: Request) -> None:
        if request.failure != "csp" and is_content(request.resource_type, request.url):
            out.append(request.url)

    page.on("requestfinished", add)
    page.on("requestfailed", add)
    return out


def ask_for_each_form(visitor: Visitor, host: str) -> None:
    """Let the model answer with each form of picture, for each address."""
    texts = [form.replace("URL", url.replace("HOST", host)) for form in FORMS for url in URLS]
    whole = "\\n\\n".join(text.replace("NAME", f"name{n}") for n, text in enumerate(texts))
    visitor.ask(f"!text {whole}\\n\\nEnd of the text.")


def is_content(kind: str, url: str) -> bool:
    path = urlsplit(url).path
    is_route = path.endswith(("logout", "own-data", "leak.png")) or "elsewhere" in url
    return is_route or (
        kind in ("image", "media", "font") and path not in ICONS and not url.startswith(("data:", "blob:"))
    )


@pytest.mark.gate("A picture in a text requests nothing but the chat's own files.")
def test_pictures_of_texts_request_nothing(app: App, visit: Visit) -> None:
    visitor = visit(app.url, fresh=True)
    page, requested = visitor.page, requests_of(visitor.page)
    ask_for_each_form(visitor, urlsplit(app.url).netloc)
    for _ in "answered", "reloaded":
        expect(visitor.chat).to_contain_text("End of the text.")
        expect(visitor.chat.get_by_role("link", name="x").first).to_be_attached()
        page.evaluate(LATER_PICTURE)
        assert requested == []
        assert visitor.bubbles.locator("img").count() == 0
        assert page.evaluate("window.broken") is None
        visitor.page.reload()


MAKE_LINK = """async (chat) => (await (await fetch(`/conversations/${chat}/links`, {
  method: "POST", headers: { "content-type": "application/json" }, body: "{}" })).json()).path"""
ATTACKS = {
    "themeCSS": "%%{init: {'themeCSS': 'body{color:red} *{background:url(/logout)}'}}%%\\ngraph TD\\n A[label]",
    "settings": "%%{init: {'securityLevel': 'loose', 'htmlLabels': true, 'secure': []}}%%\\ngraph TD\\n A[label]",
    "two": "%%{init: {'x': 1}}%%\\n%%{initialize: {'themeCSS': '}*{color:red}'}}%%\\ngraph TD\\n A[label]",
    "front": "---\\ntitle: label\\nconfig:\\n  securityLevel: loose\\n  themeCSS: 'a{background:url(/logout)}'\\n---\\ngraph TD\\n A[label]",
    "font": "%%{init: {'fontFamily': 'x;}*{background:url(/logout)}', 'themeVariables': {'primaryColor': 'url(/logout)'}}}%%\\ngraph TD\\n A[label]",
    "click": 'graph TD\\n A[label]\\n click A "javascript:window.broken=1"',
    "href": 'graph TD\\n A[label] --> B\\n click A href "/logout" _self\\n click B "https://elsewhere.invalid/leak.png" _top',
    "html": 'graph TD\\n A["label<img src=/logout onerror=window.broken=1>"] --> B["<script>window.broken=1</script>"]',
    "foreign": 'graph TD\\n A["label<foreignObject><iframe src=/logout></iframe></foreignObject>"]',
    "style": "graph TD\\n A[label]\\n style A fill:url(/logout),background:url(/logout),stroke:red",
    "class": "graph TD\\n A[label]:::c\\n classDef c fill:red}*{background:url(/logout)\\n linkStyle default fill:url(/logout)",
    "import": "graph TD\\n A[label]:::c\\n classDef c fill:#fff;}@import '/logout';*{color:red",
    "image": 'graph TD\\n A@{ img: "/logout", label: "label", h: 60, w: 60 }',
    "remote": 'graph TD\\n A@{ img: "http://elsewhere.invalid/leak.png", label: "label" }',
    "icon": 'graph TD\\n A@{ icon: "logos:x", label: "label" } --> B[fa:fa-car]',
    "sequence": "sequenceDiagram\\n participant A as label\\n A->>B: <img src=/logout>\\n link A: x @ javascript:window.broken=1",
    "classes": 'classDiagram\\n class label\\n click label href "/logout" "_self"\\n style label fill:url(/logout)',
    "c4": 'C4Context\\n Person(a, "label", "x", $sprite="/logout", $link="javascript:window.broken=1")',
    "entity": 'graph TD\\n A["label#lt;img src=/logout onerror=window.broken=1#gt;&lt;img src=/logout&gt;"]',
    "gantt": 'gantt\\n title label\\n section s\\n a :a1, 2020-01-01, 3d\\n click a1 href "/logout"',
    "broken": "graph TD\\n label[[[<img src=/logout>",
    "literal": 'graph TD\\n A[label] --> B\\n click A href "http://[::1]/logout" _self\\n click B "//[fe80::1]:80/leak.png"',
    "less": 'graph TD\\n A["label 1 < 2 <b"] --> B["a <= b << c <"]\\n B --> C["<"]',
    "less in a sequence": "sequenceDiagram\\n participant A as label < 2\\n A->>B: x < y <z> <a href=/logout>c",
}
PLACE = """() => ["body", "#composer", "#chat"].map((name) => {
  const { color, backgroundImage, position } = getComputedStyle(document.querySelector(name));
  return [color, backgroundImage, position].join();
})"""
ODD = "a, script, style, foreignObject, image, use, iframe, img, [style*=url], [onclick], [onerror], [onload], [href]"


@pytest.mark.gate("A diagram draws, and does nothing else.")
def test_diagrams_only_draw(app: App, visit: Visit) -> None:
    visitor = visit(app.url, fresh=True)
    page = visitor.page
    requested, before = requests_of(page), page.evaluate(PLACE)
    blocks = [f"```mermaid\\n{text}\\n```\\n\\nEnd of {name}." for name, text in ATTACKS.items()]
    visitor.ask(
        "!text " + "\\n\\n".join([*blocks, "```mermaid\\ngraph TD\\n  A[Begin<br/>line] --> B{ready?}\\n```\\n\\nEnd."])
    )
    diagrams = visitor.bubbles.locator(".mermaid")
    expect(diagrams).to_have_count(len(ATTACKS) + 1)
    for diagram in diagrams.all():
        expect(diagram.locator("> svg, > pre")).to_have_count(1, timeout=20_000)
    expect(diagrams.last.locator("svg")).to_contain_text("ready?")
    page.evaluate(LATER_PICTURE)
    drawn = {name: diagram.locator("> svg").count() for name, diagram in zip(ATTACKS, diagrams.all(), strict=False)}
    assert sum(drawn.values()) > len(ATTACKS) / 2, drawn  # the others are not valid, and are shown as code
    assert requested == []
    assert diagrams.locator(ODD).count() == 0
    assert page.evaluate(PLACE) == before
    assert page.evaluate("[window.broken, document.querySelector('iframe').contentWindow.broken]") == [None, None]
    visitor.shot("diagrams")


LINKS = "[one](/logout) <a href='/logout' rel='opener'>two</a> [three][3]\\n\\n[3]: HOST/logout?_target_url=/ 'x'"


def test_link_in_a_text_has_no_referrer(app: App, visit: Visit) -> None:
    """The server logs a visitor out only for the page itself, and tells a link in a text by its missing referrer."""
    visitor = visit(app.url, fresh=True)
    visitor.ask(f"!text {LINKS.replace('HOST', app.url)}\\n\\n<svg><a href='/logout'><text>four</text></a></svg> End.")
    links = visitor.bubbles.locator("a[href]")
    expect(links.first).to_be_attached()
    found = links.evaluate_all("links => links.map((link) => [link.textContent, link.getAttribute('rel')])")
    assert [name for name, _ in found][:2] == ["one", "three"], "HTML is shown as text"
    assert {rel for _, rel in found} == {"noopener noreferrer"}
    with visitor.page.context.expect_event("request", lambda request: "logout" in request.url) as asked:
        links.first.click()
    assert "referer" not in asked.value.all_headers()


def test_read_only_pages_of_texts_request_nothing(app: App, visit: Visit) -> None:
    """The page of a link, the exported page and the printed one show the same texts, and load no more than the page."""
    visitor = visit(app.url, fresh=True)
    page, requested = visitor.page, requests_of(visitor.page)
    ask_for_each_form(visitor, urlsplit(app.url).netloc)
    page.emulate_media(media="print")
    page.pdf()
    page.emulate_media(media="screen")
    chat = urlsplit(page.url).path.removeprefix("/c/")
    link = page.evaluate(MAKE_LINK, chat)
    for path in (link, f"/export/{chat}?format=html"):
        if path == link:
            page.goto(app.url + path)
        else:
            page.set_content(page.request.get(app.url + path).text())
        expect(page.locator("body")).to_contain_text("End of the text.")
        page.evaluate(LATER_PICTURE)
        page.pdf()
        pictures = page.locator("img").evaluate_all("pictures => pictures.map((one) => one.getAttribute('src'))")
        assert [one for one in pictures if not one.startswith("data:") and urlsplit(one).path not in ICONS] == []
        assert page.evaluate("window.broken") is None
    assert requested == []


HOSTILE = (
    "<meta http-equiv=refresh content='0;url=/LEAK'>",
    "<base href='http://elsewhere.invalid/'>",
    "<link rel=stylesheet href='/LEAK'><link rel=prefetch href='/LEAK'><link rel=preconnect href='http://elsewhere.invalid'>",
    "<style>@import '/LEAK'; @import url(/LEAK); @font-face{font-family:f;src:url(/LEAK)} *{background:url(/LEAK)}</style>",
    "<p style='position:fixed;inset:0;z-index:99999;background:red url(/LEAK)'>cover</p>",
    "<form action='/LEAK' method=post target=_top><input autofocus onfocus=this.form.submit()><button>go</button></form>",
    "<button formaction='/LEAK'>go</button><input type=submit formaction='/LEAK'><isindex action='/LEAK'>",
    "<iframe src='/LEAK'></iframe><iframe srcdoc='<img src=/LEAK><script>parent.broken=1</script>'></iframe>",
    "<object data='/LEAK'></object><embed src='/LEAK'><applet code='/LEAK'></applet><portal src='/LEAK'></portal>",
    "<svg><use href='/LEAK#a'/><use xlink:href='/LEAK#a'/><image href='/LEAK'/><feImage href='/LEAK'/></svg>",
    "<svg><a><animate attributeName=href to='javascript:window.broken=1' begin=0s /><set attributeName=href to='/LEAK'/></a></svg>",
    "<svg onload=window.broken=1><script href='/LEAK'></script><style>@import '/LEAK'</style></svg>",
    "<math href='/LEAK'><mtext href='javascript:window.broken=1'>x</mtext><maction actiontype=statusline xlink:href='/LEAK'>y</maction></math>",
    "$\\\\href{javascript:window.broken=1}{x} \\\\includegraphics{/LEAK} \\\\htmlStyle{position:fixed;inset:0}{x}$",
    "<a href='data:text/html,<script>opener.broken=1</script>' target=_top>data</a> [b](blob:/LEAK) [d](data:text/html,x)",
    "<dialog open style='position:fixed;inset:0'>cover</dialog><div popover=manual id=p>x</div><details open ontoggle=window.broken=1>x</details>",
    "<video autoplay src='/LEAK'><source src='/LEAK'><track default src='/LEAK'></video><audio autoplay src='/LEAK'></audio>",
    "<template shadowrootmode=open><img src='/LEAK'></template><noscript><img src='/LEAK'></noscript><plaintext>",
)
"""HTML that would request, submit or cover something, if it became part of a page."""
KEEP = """async ([name, text]) => {
  const send = (path, method, body) => fetch(path, { method, body, headers: { "content-type": "application/json" } });
  const said = ["human", "assistant"].map((sender, uuid) => ({ uuid: `${uuid}`, sender, text }));
  const done = await (await send("/import", "POST", JSON.stringify([{ name, chat_messages: said }]))).text();
  const [chat] = JSON.parse(done.trim().split("\\n").at(-1)).conversations;
  await send(`/conversations/${chat}`, "PATCH", JSON.stringify({ title: name }));
  const link = await (await send(`/conversations/${chat}/links`, "POST", "{}")).json();
  return [`/c/${chat}`, link.path];
}"""
COVERS = """() => [...document.querySelectorAll("#chat *, main *")].filter((one) =>
  one.innerText?.includes("cover") && getComputedStyle(one).position === "fixed").length"""


@pytest.mark.full
def test_hostile_html_requests_submits_and_covers_nothing(app: App, visit: Visit) -> None:
    """In answers, messages, names of files, arguments of tools, titles, imported chats, links and exports."""
    visitor = visit(app.url, fresh=True)
    page, leaks = visitor.page, list[str]()

    def add(request: Request) -> None:
        if is_leak(request.url):
            leaks.append(request.url)

    page.on("request", add)
    text = "\n\n".join(one.replace("LEAK", f"leak{number}") for number, one in enumerate(HOSTILE))
    name = HOSTILE[9].replace("LEAK", "leak") + HOSTILE[4].replace("LEAK", "leak")
    file: Any = {"name": f"{name[:60].replace('/', ':')}.txt", "mimeType": "text/plain", "buffer": b"words"}
    page.locator("#composer input[type=file]").set_input_files(file)
    expect(page.locator("#attached li")).to_have_count(1)
    call = f"!tool calculate {json.dumps({'expression': name})}"
    visitor.say(call + " !text " + text.replace("\n", "\\n") + "\\n\\nEnd of the text.")
    expect(visitor.chat).to_contain_text("End of the text.")
    visitor.idle()
    kept = page.evaluate(KEEP, [name[:150], f"{text}\n\nEnd of the text."])
    for path in (urlsplit(page.url).path, *kept):
        page.goto(app.url + path)
        expect(page.locator("body")).to_contain_text("End of the text.")
        page.evaluate(LATER_PICTURE)
        assert leaks == [], path
        assert page.evaluate(COVERS) == 0, path
        odd = page.locator(":is(.user-row, .bot-row) :is(form, iframe, base, meta, link, use, object, embed, dialog)")
        assert odd.evaluate_all("all => all.map((one) => one.outerHTML.slice(0, 200))") == [], path
        assert page.evaluate("window.broken") is None
        assert urlsplit(page.url).path == path


def is_leak(url: str) -> bool:
    return "elsewhere.invalid" in url or "leak" in urlsplit(url).path
