"""Texts of models request nothing with the visitor's cookie, and do nothing to the page."""

# ruff: noqa: E501

from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Page, Request, expect

from agent.files.store import ROUTE
from agent.i18n.translator import ENGLISH
from agent.rendering.html import source_item
from agent.rendering.markdown import to_blocks
from agent.rendering.sources import Source
from agent.web.chat.turns import file_block
from tests.conftest import App, Visit, Visitor, in_module
from tests.support.hostile_texts import HOSTILE

LATER_PICTURE = """() => new Promise((done) => {
  const picture = new Image();
  picture.onload = picture.onerror = () => setTimeout(done);
  picture.src = "/mark.svg?later";
})"""
"""Waits for a picture that is requested after those of the texts."""
ICONS = ("/mark.svg", "/favicon.ico")
URLS = (
    *("/logout", "logout", "./conversations", "/gradio_api/config", "gradio_api/../conversations?x=1", "\\\\logout"),
    *("/%6cogout", "//HOST/healthz", "http://HOST/readyz", "HTTP://HOST/own-data", "/media/../healthz"),
    *("/media/%2e%2e/healthz", "/media/AAAAAAAAAAAAAAAAAAAAAA.png", "media/other.png?name=x", "/assets/../healthz"),
    *("data:image/svg+xml,%3Csvg%20xmlns='http://www.w3.org/2000/svg'/%3E", "data:text/html,hello"),
    *("blob:http://HOST/1", "javascript:window.broken=1"),
    *("http://elsewhere.invalid/leak.png", "//elsewhere.invalid/leak.png"),
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


MORE = (
    "<math><annotation-xml encoding='text/html'><img src='/LEAK' onerror='window.broken=1'></annotation-xml></math>",
    "<math><semantics><annotation-xml encoding='application/xhtml+xml'><style>*{all:unset}</style></annotation-xml></semantics></math>",
    "<math><mglyph src='/LEAK'/><style><img src=/LEAK onerror=window.broken=1></style></math><mtext><table><mglyph><style>",
    "$$\\begin{aligned}\\href{/LEAK}{x}&\\url{/LEAK}\\\\</math><img src=/LEAK>&\\text{</mtext><script>window.broken=1</script>}\\end{aligned}$$",
    "$\\text{<img src=/LEAK onerror=window.broken=1>} \\unicode{x3c} \\require{html} \\style{position:fixed}{x} \\color{url(/LEAK)}{x}$",
    "\\[\\def\\a{\\a\\a}\\a \\rule{999999em}{999999em} \\kern{-9999em} x\\]",
    "[a](javascript:window.broken=1) [b](JaVaScRiPt&colon;window.broken=1) [c](java\tscript:window.broken=1) [d](vbscript:x) [e](file:///etc/passwd)",
    "[a](\x01javascript:window.broken=1) [b]( javascript:window.broken=1) <javascript:window.broken=1> [c](view-source:/LEAK) [d](intent://x#Intent;end)",
    "[x]: javascript:window.broken=1\n\n[x] [y][x] ![z][x]",
    "![x](/LEAK) ![x](http://elsewhere.invalid/leak.png) ![x](data:image/svg+xml,<svg onload=window.broken=1>) ![x](//elsewhere.invalid/leak)",
    '[x](data:image/png;base64,AAAA"onmouseover=window.broken=1) ![" onerror=window.broken=1 x="](https://elsewhere.invalid/leak.png)',
    '[link](https://a.invalid/?q="onmouseover=window.broken=1) https://a.invalid/"onmouseover=window.broken=1 <https://a.invalid/\'onclick=window.broken=1>',
    '```"><img src=/LEAK onerror=window.broken=1>\nx\n```',
    "```html' onmouseover='window.broken=1\n</code></pre><img src=/LEAK>\n```",
    "~~~x\" style=\"position:fixed;inset:0\n</code></pre><div style='position:fixed;inset:0'>cover</div>\n~~~",
    '| <img src=/LEAK> | a |\n|---|:-:" style="position:fixed|\n| <script>window.broken=1</script> | `</td>` <td onclick=x> |',
    "<details open ontoggle=window.broken=1><summary onclick=window.broken=1>s</summary>x</details>",
    "<details>\n<summary><img src=/LEAK></summary>\n\n<iframe src=/LEAK></iframe>\n\n</details>",
    "<br onclick=window.broken=1> <sub onmouseover=window.broken=1>x</sub> <kbd style='position:fixed;inset:0'>cover</kbd> <sup><script>window.broken=1</script></sup>",
    "- [ ] <input type=image src=/LEAK>\n- [x\"onfocus=window.broken=1 autofocus] x\n1. <li style='position:fixed'>cover</li>",
    "[^1]: <img src=/LEAK>\n\nx[^1] <a id=composer name=composer>x</a> <img name=body id=chat src=/LEAK>",
    "<div class='transcript-frame to-end' data-action=retry data-turn=x id=composer style='position:fixed;inset:0;z-index:9'>cover</div>",
    "<!--><img src=/LEAK>--> <![CDATA[><img src=/LEAK>]]> <?x ><img src=/LEAK>?> <!doctype html><html onload=window.broken=1><body background=/LEAK>",
    "&lt;img src=/LEAK onerror=window.broken=1&gt; &#60;script&#62;window.broken=1&#60;/script&#62; \\<img src=/LEAK>",
    "{\ufdd01.1 javascript:window.broken=1\ufdd1 {\ufdd01 /LEAK\ufdd1 \ufdd2 \ufdd3",
)
AROUND = (
    "{}",
    "text {} text",
    "# {}",
    "> {}",
    "- {}",
    "1. {}",
    "**{}**",
    "[{}](https://example.invalid)",
    "| a |\n|---|\n| {} |",
    "x[^2]\n\n[^2]: {}",
    "<details>\n<summary>{}</summary>\n\n{}\n\n</details>",
    "```html\n{}",
    "<math>{}</math>",
    "$x {} y$",
)
"""The places of these texts in an answer."""
ACTIVE = """() => {
  const chat = document.querySelector("#chat .transcript"), all = [...chat.querySelectorAll("*")];
  const mine = (one) => one.closest("[data-own], footer") || one.matches(".part") || !one.closest(".part, summary");
  const names = (one) => [...one.attributes].map(({ name }) => name);
  const texts = all.filter((one) => !mine(one));
  const covers = texts.filter((one) => !["static", "relative"].includes(getComputedStyle(one).position));
  const box = document.querySelector("#composer textarea").getBoundingClientRect();
  return {
    elements: [...new Set(texts.map(({ localName }) => localName))],
    attributes: [...new Set(texts.filter((one) => one instanceof HTMLElement).flatMap(names))],
    formulas: [...new Set(texts.filter((one) => !(one instanceof HTMLElement)).flatMap(names))],
    schemes: [...new Set(texts.map((one) => one.getAttribute("href")).filter(Boolean).map((url) => url.replace(/:[^]*/, "")))],
    covers: covers.map(({ outerHTML }) => outerHTML.slice(0, 200)),
    isReached: Boolean(document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 2).closest("#composer")),
    broken: window.broken, path: location.pathname,
  };
}"""
ELEMENTS = (
    "p br strong em s del code pre span a ul ol li blockquote h1 h2 h3 h4 h5 h6 hr table thead tbody tr th td "
    "input sub sup kbd details summary button img audio bdi q"
)
MATHS = (
    "math mrow mi mn mo mtext mspace msup msub msubsup mfrac msqrt mroot mover munder munderover mtable mtr mtd "
    "mstyle mpadded mphantom menclose mmultiscripts mprescripts none merror"
)
ATTRIBUTES = (
    "dir class href rel target start type checked disabled open role aria-label tabindex style title value "
    "download src alt controls data-language data-bare data-source data-passage"
)


@pytest.mark.gate("No text that a model writes acts on the page.")
def test_hostile_texts_only_show(app: App, visit: Visit) -> None:
    """500 texts, drawn as the server renders them, in the page with its policy."""
    visitor = visit(app.url, fresh=True)
    page, asked = visitor.page, list[str]()
    visitor.ask("!text Hello.")
    page.on("request", lambda request: asked.append(request.url))
    texts = [around.replace("{}", text) for text in HOSTILE + MORE for around in AROUND]
    texts = [text.replace("LEAK", f"leak{number}") for number, text in enumerate(texts)]
    assert len(texts) > 500
    turns = list[Any]()
    for number, text in enumerate(texts):
        name, source = text[:120], Source(1, text, passages=[text])
        bubbles = [("output_text", to_blocks(text))]
        if number % len(AROUND) == 0:
            bubbles += [
                (
                    "user",
                    [*to_blocks(text, is_typed=True), file_block(f"{ROUTE}AAAAAAAAAAAAAAAAAAAAAA.pdf", ENGLISH, name)],
                ),
                ("reasoning", to_blocks(text)),
                ("sources", [source_item(source, ENGLISH, opens=True)]),
            ]
        shown = [{"kind": kind, "state": "done", "blocks": blocks, "title": text} for kind, blocks in bubbles]
        turns.append({"id": f"t{number}", "is_running": False, "bubbles": shown, "caption": ""})
    path = urlsplit(page.url).path
    page.evaluate(f"(turns) => {in_module('shared', 'module.shown.transcript.show(turns)')}", turns)
    expect(visitor.chat.locator(".turn")).to_have_count(len(texts))
    page.evaluate("document.querySelectorAll('#chat details').forEach((one) => one.open = true)")
    page.evaluate("document.querySelectorAll('#chat .turn').forEach((one) => one.style.contentVisibility = 'visible')")
    page.evaluate(LATER_PICTURE)
    found = page.evaluate(ACTIVE)
    assert {*found["elements"]} <= {*ELEMENTS.split(), *MATHS.split()}
    assert {*found["attributes"]} <= {*ATTRIBUTES.split()}
    assert [
        one for one in found["formulas"] if one.startswith("on") or one.split(":")[-1] in ("href", "src", "style")
    ] == []
    assert {*found["schemes"]} <= {"http", "https", "mailto", "data", "media/"}
    assert [found["covers"], found["isReached"], found["broken"], found["path"]] == [[], True, None, path]
    assert [url for url in asked if not url.endswith((*ICONS, "?later"))] == []
