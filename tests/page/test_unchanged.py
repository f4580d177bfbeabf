"""Guards of `unchanged.js` and `idle.js`: each says clearly if Gradio has changed or a workaround can go."""

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import FloatRect, Page, Route, expect

from agent.web.ui.page_head import IDLE
from tests.conftest import App, Visitor, becomes

pytestmark = pytest.mark.browser

Visit = Callable[..., Visitor]
WATCH = """() => {
  window.seen = { directions: 0, restyles: 0, texts: 0, searches: 0 };
  const dir = Object.getOwnPropertyDescriptor(HTMLElement.prototype, "dir");
  Object.defineProperty(HTMLElement.prototype, "dir", {
    ...dir,
    set(value) {
      if (this.isConnected && this.getAttribute("dir") === value) window.seen.directions++;
      dir.set.call(this, value);
    },
  });
  new MutationObserver((all) => {
    window.seen.restyles += all.filter(({ target, oldValue }) => oldValue === target.getAttribute("dir")).length;
  }).observe(document.querySelector("#chat"), { subtree: true, attributeFilter: ["dir"], attributeOldValue: true });
  const match = String.prototype.match;
  String.prototype.match = function (what) {
    if (what instanceof RegExp && what.source === "\\\\$\\\\$") window.seen.searches++;
    return match.call(this, what);
  };
  const replace = String.prototype.replace;
  String.prototype.replace = function (what, ...how) {
    const formula = what instanceof RegExp && what.source.startsWith("\\\\$\\\\$");
    if (formula && this.startsWith("FIRST ") && this.includes("seam")) window.seen.texts++;
    return replace.call(this, what, ...how);
  };
}"""
"""Counts how often Gradio sets a direction that is set, how often that reaches Chromium, how often Gradio looks for
formulas in the first piece of an answer, once it is done, and how often it searches the rest of a text for formulas."""
PLAIN_FORMULAS = """() => {
  const draw = window.live.draw;
  const delimiters = gradio_config.components.map(({ props }) => props.latex_delimiters).find(Boolean);
  const plain = { __type__: "update", latex_delimiters: [...delimiters] };
  window.live.draw = () => draw().map((value) => ({ ...plain, ...(value && { value }) }));
}"""
PLAIN_LISTS = """() => {
  const draw = window.live.draw;
  window.live.draw = () => draw().map((drawn) => drawn.value && [...drawn.value]);
}"""
ANSWER = "\\n\\n".join(["FIRST " * 120, *("word " * 150 for _ in range(7))])


def seen_during_answer(visitor: Visitor, page: Page) -> dict[str, int]:
    """Let an answer of several pieces be written, and return the counts."""
    page.evaluate("window.seen.directions = window.seen.restyles = window.seen.texts = window.seen.searches = 0")
    visitor.say(f"!wait 0.5 !pace 500 !text {ANSWER}")
    page.wait_for_function("window.live.shown[1].length >= 6")
    seen: dict[str, int] = page.evaluate("({ ...window.seen })")
    page.wait_for_function("!window.live.shown[1].length")
    visitor.idle()
    return seen


def test_unchanged_messages_cost_nothing(app: App, visit: Visit) -> None:
    visitor = visit(app.url, fresh=True)
    page = visitor.page
    page.evaluate(WATCH)
    seen = seen_during_answer(visitor, page)
    assert seen["directions"], "Gradio no longer sets a direction that is already set: remove `dir` in unchanged.js."
    assert not seen["restyles"], "Gradio sets the direction of messages in another way: adapt `dir` in unchanged.js."
    assert seen["texts"], "Gradio looks for formulas in another way: adapt this test."
    assert seen["texts"] <= 2, "Gradio copies messages in another way: adapt `Messages` in unchanged.js."
    assert not seen["searches"], "Gradio searches for formulas in another way: adapt `Delimiters` in unchanged.js."
    page.evaluate(PLAIN_FORMULAS)
    seen = seen_during_answer(visitor, page)
    assert seen["searches"], (
        "Gradio no longer searches for formulas at each block: remove `Delimiters` in unchanged.js."
    )
    page.evaluate(PLAIN_LISTS)
    seen = seen_during_answer(visitor, page)
    assert seen["texts"] > 2, "Gradio no longer reads unchanged texts again: remove `Messages` in unchanged.js."


COUNT_FRAMES = """(() => {
  const request = window.requestAnimationFrame;
  window.asked = 0;
  window.requestAnimationFrame = (callback) => {
    window.asked++;
    return request(callback);
  };
})()"""
FRAMES = """() => new Promise((done) => {
  const before = window.asked;
  setTimeout(() => done(window.asked - before), 500);
})"""
"""The frames that scripts ask for in half a second, of about 30."""


def test_idle_page_asks_for_no_frames(app: App, visit: Visit) -> None:
    visitor = visit(app.url, fresh=True)
    page = visitor.page
    page.add_init_script(COUNT_FRAMES)
    visitor.reload()
    becomes(0, lambda: page.evaluate(FRAMES))

    def without_idle(route: Route) -> None:
        response = route.fetch()
        route.fulfill(response=response, body=response.text().replace(IDLE, ""))

    page.route(app.url, without_idle)
    page.route("**/c/*", without_idle)
    visitor.reload()
    least = min(page.evaluate(FRAMES) for _ in range(6))
    assert least > 10, "Gradio's loading screen ends its loop: remove idle.js."


HAS_RULES = """() => {
  const found = [], walk = (href, rules) => {
    for (const { selectorText, cssRules } of rules) {
      if (selectorText?.includes(":has(")) found.push([href, selectorText]);
      if (cssRules) walk(href, cssRules);
    }
  };
  for (const { href, cssRules } of document.styleSheets) {
    if (href?.startsWith(location.origin) && !href.includes("/assets/page-")) walk(href, cssRules); // that one is ours
  }
  return found;
}"""
"""The selectors of Gradio with `:has()`, and their sheets."""
SIMPLIFIED = (".sidebar-parent:has", ".bot:has(.table-wrap", ".bot:has(.model3D", ".bot:not(:has(.table-wrap)) td")


def test_change_makes_chromium_search_no_ancestor(app: App, visit: Visit) -> None:
    page = visit(app.url).page
    left = page.evaluate(HAS_RULES)
    assert all(selector.endswith(":not(:has(> :not(.hidden)))") for _sheet, selector in left), left
    sheets: list[str] = page.evaluate("[...document.styleSheets].flatMap(({ href }) => href ?? [])")
    text = re.sub(r"\.svelte-\w+", "", "".join(page.request.get(sheet).text() for sheet in sheets))
    for selector in SIMPLIFIED:
        assert selector in text, f"Gradio has no rule with {selector}: adapt unchanged.js."


def test_open_settings_leave_room_for_the_chat(app: App, visit: Visit) -> None:
    visitor = visit(app.url)
    page, settings = visitor.page, visitor.page.locator("#settings")
    expect(page.locator("html")).to_have_attribute("data-chat", "empty")  # the composer has moved to the middle
    wide = page.locator("#dock").bounding_box()
    visitor.open_settings()
    becomes(True, lambda: is_beside(page.locator("#dock").bounding_box(), settings.bounding_box()))
    expect(page.locator("#bar")).to_have_css("padding-inline-end", "12px")
    visitor.close_settings()
    becomes(wide, lambda: page.locator("#dock").bounding_box())


def is_beside(left: FloatRect | None, right: FloatRect | None) -> bool:
    """Tell whether the first box ends before the second one begins."""
    assert left
    assert right
    return left["x"] + left["width"] <= right["x"]


COUNT_COPIES = """() => {
  const copy = window.structuredClone;
  window.copied = 0;
  window.structuredClone = (value, ...how) => {
    if (typeof value === "string" && value.includes("said earlier")) window.copied++;
    return copy(value, ...how);
  };
}"""


def test_events_copy_no_message_of_the_chat(app: App, visit: Visit) -> None:
    """Gradio copies all values of each component whose progress it could show, several times for each event."""
    visitor = visit(app.url, fresh=True)
    visitor.ask("!text said earlier")
    visitor.page.evaluate(COUNT_COPIES)
    visitor.ask("!text later")
    assert not visitor.page.evaluate("window.copied")
    visitor.page.evaluate("structuredClone('said earlier')")
    assert visitor.page.evaluate("window.copied") == 1
