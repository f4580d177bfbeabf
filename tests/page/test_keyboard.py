"""The page without a mouse or a screen: keys, input methods, axe, and announcements."""

import re

import pytest
from playwright.sync_api import Browser, Locator, expect

from tests.conftest import App, Visit, Visitor
from tests.peers.axe import grave
from tests.support.scripted_server import Running


def test_enter_breaks_line_on_touch_devices(app: App, browser: Browser, model_server: Running) -> None:
    with browser.new_context(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True) as context:
        visitor = Visitor(context.new_page())
        visitor.open(app.url)
        before = len(model_server.journal())
        visitor.box.type("!text One.")
        visitor.box.press("Enter")
        visitor.box.type("Two")
        expect(visitor.box).to_have_value("!text One.\nTwo")
        visitor.submit.tap()
        expect(visitor.caption).to_be_visible()
        assert len(model_server.journal()) == before + 1


COMPOSED_ENTER = """(field) => {
  const heard = [], listen = ({ type }) => heard.push(type);
  field.dispatchEvent(new CompositionEvent("compositionend", { bubbles: true, data: "日本" }));
  for (const [kind, keyCode, isComposing] of [["keydown", 13, true], ["keydown", 229], ["keypress", 13]]) {
    field.addEventListener(kind, listen);
    const enter = { key: "Enter", code: "Enter", keyCode, isComposing, bubbles: true, cancelable: true };
    field.dispatchEvent(new KeyboardEvent(kind, enter));
    field.removeEventListener(kind, listen);
  }
  return heard;
}"""
"""Presses the Enter that ends a composition, as Chromium and as Safari report it. Returns what the field hears."""


def test_no_field_acts_at_the_enter_that_ends_a_composition(app: App, visit: Visit) -> None:
    visitor = visit(app.url)
    page = visitor.page
    visitor.ask("!text One.")

    def title() -> Locator:
        page.locator("#chats li .more").first.click(force=True)
        page.get_by_role("menuitem", name="Rename").click()
        return page.get_by_role("textbox", name="Title")

    def edit() -> Locator:
        visitor.box.press("ArrowUp")
        return page.locator("#chat").get_by_role("textbox")

    def name_of_prompt() -> Locator:
        visitor.box.fill("/")
        visitor.box.press("Escape")
        page.locator("#composer .prompts-button").click()
        page.get_by_role("button", name="Rename: Greeting").click()
        return page.locator("#prompt-book li").get_by_role("textbox", name="Name")

    def limit() -> Locator:
        visitor.open_settings()
        return page.locator("#max-tokens input")

    page.evaluate("localStorage.setItem('prompts', JSON.stringify([{ name: 'Greeting', text: 'Hello' }]))")
    for open_field, typed in (
        (title, "日本"),
        (edit, "!text 日本"),
        (visitor.open_models, "test"),
        (name_of_prompt, "日本"),
    ):
        field = open_field()
        field.fill(typed)
        assert field.evaluate(COMPOSED_ENTER) == []
        expect(field).to_be_visible()
        expect(field).to_have_value(typed)
        field.press("Enter")  # it saves, sends or chooses
        expect(field).to_be_hidden()
    page.keyboard.press("Escape")
    visitor.idle()
    expect(visitor.mine).to_have_text("!text 日本")
    visitor.box.fill("/")  # its list of prompts is open
    limit().fill("-1")
    fields = page.locator("input:not([type=checkbox], [type=radio], [type=range], [type=file]), textarea").all()
    assert [field.evaluate(COMPOSED_ENTER) for field in fields] == [[]] * len(fields)
    expect(visitor.mine).to_have_count(1)
    expect(page.locator("#max-tokens").get_by_role("alert")).to_be_empty()


STILL = "!document.getAnimations().some((one) => one.effect.getTiming().iterations !== Infinity)"


TO_THE_TOP = "() => { document.body.tabIndex = -1; document.body.focus(); document.body.removeAttribute('tabindex') }"
DRAWN = "new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)))"
"""Waits until the page is drawn as it is now. Nobody presses a key before that."""
FOCUSED = """() => {
  const at = document.activeElement;
  const style = getComputedStyle(at);
  const box = at.getBoundingClientRect();
  const seen = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0;
  return {
    name: at.closest("#settings, #chats, #chats-toggle, #new, #help, #examples")?.id
      ?? (at.closest("#chat") ? "chat " + (at.getAttribute("aria-label") ?? (at.innerText || at.title))
      : at.id || (at.matches("#composer textarea") ? "textbox" : "") || at.className.match(/\\S+-button$/)?.[0]
      || `${at.role ?? at.tagName} ${at.ariaLabel ?? ""}`),
    visible: box.width > 0 && box.height > 0 && box.right > 0 && box.left < innerWidth,
    seen: seen || at.matches("#dock:focus-within textarea"),  // the frame around it darkens
  };
}"""


@pytest.mark.gate("The keyboard is enough for a whole visit.")
def test_whole_visit_by_keyboard(app: App, visit: Visit, model_server: Running) -> None:
    visitor = visit(app.url)
    page, press = visitor.page, visitor.page.keyboard.press

    def to(name: str) -> None:
        for _ in range(30):
            if page.evaluate(FOCUSED)["name"].startswith(name):
                return
            press("Tab")
        raise AssertionError(name)

    page.evaluate(TO_THE_TOP)
    to("settings")
    toggle = page.get_by_role("button", name="Open or close the settings")
    expect(toggle).to_have_attribute("aria-expanded", "false")
    press("Enter")
    expect(toggle).to_have_attribute("aria-expanded", "true")
    expect(page.locator("#system textarea")).to_be_visible()
    expect(page.locator("#system textarea")).to_be_in_viewport(ratio=1)  # Tab skips it until it has slid in
    page.evaluate(DRAWN)
    press("Tab")
    expect(page.locator("#system textarea")).to_be_focused()
    press("ControlOrMeta+a")  # select the default prompt to replace it
    page.keyboard.type("Be brief.")
    press("Escape")
    expect(toggle).to_have_attribute("aria-expanded", "false")
    to("textbox")
    page.keyboard.type("!reasoning Because it is so. !text Yes.")
    press("Enter")
    expect(visitor.caption).to_be_visible()
    visitor.idle()
    assert model_server.journal()[-1]["body"]["messages"][0] == {"role": "system", "content": "Be brief."}
    page.evaluate(TO_THE_TOP)
    page.wait_for_function(STILL)
    to("chat Reasoning")
    for key, is_open in (("Enter", True), ("Enter", False), ("Space", True)):
        press(key)
        expect(visitor.chat.get_by_text("Because it is so.", exact=True)).to_be_visible(visible=is_open)
    to("switch Reasoning")
    press("Space")
    expect(page.get_by_role("switch", name="Reasoning")).to_have_attribute("aria-checked", "false")
    to("model-button")
    press("Enter")
    expect(page.locator("#models").get_by_role("option").nth(1)).to_be_visible()
    press("ArrowDown")
    press("Enter")
    expect(page.locator("#about")).not_to_contain_text("Qwen3-8B")


@pytest.mark.gate("Axe finds no fault in any state of the page.")
def test_axe_finds_nothing_serious_in_any_state(app: App, visit: Visit) -> None:
    visitor = visit(app.url)
    found: dict[str, list[str]] = {}

    def look(state: str, shown: Locator) -> None:
        expect(shown.first).to_be_visible()
        visitor.page.wait_for_function(STILL)
        if grave_ones := grave(visitor.page):
            found[state] = grave_ones

    expect(visitor.page.locator(":root[data-chat=empty]")).to_have_count(1)
    look("empty", visitor.examples)
    visitor.page.get_by_role("button", name="Open or close the settings").click()
    visitor.page.get_by_role("checkbox", name="Tools").check()
    look("settings", visitor.page.get_by_label("System prompt"))
    visitor.page.get_by_role("button", name="Open or close the settings").click()
    visitor.ask(
        "!reasoning Hm. !text # Head\\n\\n**bold** and `code`\\n\\n| a | b |\\n|---|---|\\n| 1 | 2 |\\n\\n"
        '```python\\n# a comment\\ndef f(x: int) -> str: return "x" * 3\\n``` !tool calculate {"expression": "17+25"}'
    )
    for title in visitor.chat.locator("summary:visible").all():
        title.click()
    look("answer", visitor.chat.locator("[data-kind=tool_call] pre"))
    visitor.ask("!status 401")
    look("error", visitor.chat.locator("[data-kind=error]"))
    visitor.say("!tokens 4000 @30")
    look("streaming", visitor.stop)
    visitor.say("A message that waits.")
    look("queued", visitor.page.get_by_role("region", name="Queued"))
    visitor.stop.click()
    visitor.idle()
    visitor.box.fill("")
    visitor.page.locator("#share-chat button").click()
    look("share", visitor.page.get_by_role("dialog", name="Share this chat"))
    visitor.page.keyboard.press("Escape")
    visitor.box.press("ArrowUp")
    look("editing", visitor.chat.get_by_role("textbox"))
    visitor.page.keyboard.press("Escape")
    search = visitor.open_models()
    look("models", visitor.page.locator("#models").get_by_role("option").first)
    search.fill("no such model")
    look("no model", visitor.page.get_by_text("No model in the list has these words."))
    search.fill("gpt-6-luna")
    search.press("Enter")
    look("key", visitor.page.locator("#key-box input"))
    visitor.page.keyboard.press("Control+/")
    look("shortcuts", visitor.page.get_by_role("dialog"))
    assert not found, "\n".join(f"{state}: {line}" for state, lines in found.items() for line in lines)


SENTENCES = ["The first sentence is here.", "Then a second one, with a number: 3.5 metres!", "And is this the last?"]


@pytest.mark.gate("A screen reader hears sentences.")
def test_screen_reader_hears_sentences_not_tokens(app: App, visit: Visit) -> None:
    visitor = visit(app.url)
    expect(visitor.log).to_have_attribute("aria-live", "off")
    spoken = visitor.chat.locator(".said")
    expect(spoken).to_have_attribute("aria-live", "polite")
    visitor.page.evaluate(
        "() => { window.heard = []; new MutationObserver(all => all.forEach(one => one.addedNodes.forEach("
        "node => window.heard.push(node.textContent)))).observe(document.querySelector('.said'), {childList: true}) }"
    )
    visitor.say("!pace 8 !reasoning Let me see. !text " + " ".join(SENTENCES * 3))
    visitor.idle()
    expect(spoken.locator("p").last).to_have_text("Answer ready")
    heard: list[str] = visitor.page.evaluate("window.heard")
    assert heard[0].startswith("Reasoning")
    assert heard.pop() == "Answer ready"
    answer = re.sub(r"^Reasoning( · [\d.]+ s)?", "", " ".join(heard))  # the thought may have ended when it is said
    assert answer.split() == " ".join(SENTENCES * 3).split()
    assert 3 <= len(heard) <= 20, "one line a second at most"
    assert all(line.rstrip().endswith((".", "!", "?")) for line in heard[1:]), heard
    visitor.page.reload()
    expect(visitor.chat).to_contain_text("And is this the last?")
    visitor.page.wait_for_timeout(1500)  # earlier text must not be announced again
    expect(spoken).to_have_text("")
