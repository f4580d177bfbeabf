"""The cost of a page that is idle or whose answer grows."""

from playwright.sync_api import expect

from tests.conftest import App, Visit, becomes

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


ANCHORS = r"""() => {
  const found = [];
  const anchors = (selector) => [...selector.matchAll(/(?::(?:not|is|where)\()?:has\(/g)].map(({ index }) => {
    const before = selector.slice(0, index);
    let depth = 0, at = before.length; // where the selector begins to which :has() belongs
    for (; at && !(depth === 0 && /[,(]/.test(before[at - 1])); at--) depth += { ")": 1, "(": -1 }[before[at - 1]] ?? 0;
    return before.slice(at).trim().replace(/[>+~]$/, "$& *");
  });
  const walk = (rules) => {
    for (const { selectorText, media, cssRules } of rules) {
      if (media && !matchMedia(media.mediaText).matches) continue;
      for (const anchor of selectorText?.includes(":has(") ? anchors(selectorText) : []) {
        const elements = anchor ? [...document.querySelectorAll(anchor)] : [];
        if (elements.some((element) => element.querySelector(".answer .parts"))) found.push(selectorText);
      }
      walk(cssRules ?? []);
    }
  };
  for (const { cssRules, href } of document.styleSheets) if (!href || href.includes("/assets/page-")) walk(cssRules);
  return found;
}"""
"""The rules with `:has()` that look through the text of an answer on the page."""


def test_growing_text_makes_chromium_search_no_answer(app: App, visit: Visit) -> None:
    visitor = visit(app.url)
    visitor.allow_tools()
    visitor.say("!reasoning Hmm. !tool calculate {} !pace 4000 !stall-after 600")
    expect(visitor.chat.get_by_text("word599")).to_be_visible()
    assert visitor.page.evaluate(ANCHORS) == []
    visitor.page.add_style_tag(content="#chat .bubble:not(:has(table)) { color: inherit; }")
    assert len(visitor.page.evaluate(ANCHORS)) == 1, "this search finds such a rule"
    visitor.page.get_by_role("button", name="Stop").click()
    visitor.idle()
