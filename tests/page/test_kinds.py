"""Each message of the chat says what it shows, so that no rule of the page makes Chromium look into the answers."""

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.conftest import App, Visitor
from tests.support.asking_tools import ASKING_CONFIG

pytestmark = pytest.mark.browser

Visit = Callable[..., Visitor]
WATCH = """() => {
  const selectors = { part: ".seam", steps: ".thought-group", question: ".asking", problem: ".problem",
    file: ":scope > .edit-textarea", caption: ".caption:not([role])" };
  window.wrong = [];
  window.seen = new Set();
  const look = () => {
    for (const message of document.querySelectorAll("#chat .message > .message")) {
      const kind = Object.keys(selectors).find((kind) => message.querySelector(selectors[kind]));
      if (kind) window.seen.add(kind);
      const said = message.dataset.kind;
      if (said !== kind) window.wrong.push([message.textContent.slice(0, 40), said, kind]);
    }
    for (const turn of document.querySelectorAll("#chat .bot.message")) {
      const hasParts = Boolean(turn.querySelector(".seam"));
      if (turn.hasAttribute("data-parts") !== hasParts) window.wrong.push(["a turn", hasParts]);
    }
    requestAnimationFrame(look);
  };
  look();
}"""
"""Compares, before each frame, what each message says with what it shows."""
ANCHORS = r"""() => {
  const found = [];
  const anchors = (selector) => [...selector.matchAll(/(?::(?:not|is|where)\()?:has\(/g)].map(({ index }) => {
    const before = selector.slice(0, index);
    let depth = 0, at = before.length; // where the selector begins to which :has() belongs
    for (; at && !(depth === 0 && /[,(]/.test(before[at - 1])); at--) depth += { ")": 1, "(": -1 }[before[at - 1]] ?? 0;
    return before.slice(at).trim();
  });
  const walk = (rules) => {
    for (const { selectorText, media, cssRules } of rules) {
      if (media && !matchMedia(media.mediaText).matches) continue;
      for (const anchor of selectorText?.includes(":has(") ? anchors(selectorText) : []) {
        const elements = anchor ? [...document.querySelectorAll(anchor)] : [];
        if (elements.some((element) => element.querySelector(".bot .message-content"))) found.push(selectorText);
      }
      walk(cssRules ?? []);
    }
  };
  for (const { cssRules, href } of document.styleSheets) if (!href || href.startsWith(location.origin)) walk(cssRules);
  return found;
}"""
"""The rules with `:has()` that look through the text of an answer on the page."""
LONG = "\\n\\n".join("word " * 150 for _ in range(9))


@pytest.fixture(scope="module")
def own(start_app: Callable[..., App]) -> App:
    return start_app(ASKING_CONFIG)


def test_messages_say_what_they_show_in_each_frame(own: App, visit: Visit, tmp_path: Path) -> None:
    visitor = visit(own.url)
    visitor.allow_tools()
    visitor.page.evaluate(WATCH)
    visitor.ask(f"!reasoning Hmm. !tool calculate {{}} !pace 4000 !text {LONG}")
    visitor.ask("!status 401")
    visitor.page.get_by_role("button", name="New chat").first.click()
    (tmp_path / "notes.txt").write_text("Some words.")
    visitor.page.locator("#composer input[type=file]").set_input_files(tmp_path / "notes.txt")
    expect(visitor.page.locator("#attached")).to_contain_text("notes.txt")
    visitor.say('!tool send {"to": "Ann", "text": "Hi!"} !text Done.')
    expect(visitor.chat.locator(".asking")).to_be_visible()
    visitor.chat.get_by_role("button", name="Edit").click()
    expect(visitor.chat.get_by_role("textbox").first).to_be_visible()
    visitor.chat.get_by_role("button", name="Cancel").click()
    for row in visitor.page.locator("#chats li").get_by_role("link").all()[::-1]:
        row.click()
        expect(row).to_have_attribute("aria-current", "page")
        expect(visitor.chat.locator(".caption, .problem, .asking").first).to_be_visible()
    assert set(visitor.page.evaluate("[...window.seen]")) == {"part", "steps", "question", "problem", "file", "caption"}
    assert visitor.page.evaluate("window.wrong") == []


def test_growing_text_makes_chromium_search_no_answer(own: App, visit: Visit) -> None:
    visitor = visit(own.url)
    visitor.allow_tools()
    visitor.say("!reasoning Hmm. !tool calculate {} !pace 4000 !stall-after 600")
    expect(visitor.chat.get_by_text("word599")).to_be_visible()
    assert visitor.page.evaluate(ANCHORS) == []
    visitor.page.add_style_tag(content="#chat .bot.message > .message:not(:has(.seam)) { color: inherit; }")
    assert len(visitor.page.evaluate(ANCHORS)) == 1, "this search finds such a rule"
    visitor.page.get_by_role("button", name="Stop").click()
    visitor.idle()
