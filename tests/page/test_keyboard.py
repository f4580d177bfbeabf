"""The page without a mouse or a screen: keys, input methods, the order of the focus, axe, and announcements."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, expect

from tests.conftest import App, Visitor
from tests.peers.axe import grave
from tests.support.scripted_server import Running

pytestmark = pytest.mark.browser

Visit = Callable[..., Visitor]


def asked(server: Running) -> list[str]:
    """Return the users' messages in the newest request."""
    messages = server.journal()[-1]["body"]["messages"]
    return [message["content"] for message in messages if message["role"] == "user"]


# Keys


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
        visitor.say("!tokens 9000 @150")
        expect(visitor.stop).to_be_visible()
        visitor.box.fill("!text Three.")
        visitor.box.press("Enter")
        visitor.shot("phone-queue")
        visitor.page.get_by_role("button", name="Send after this answer").tap()
        expect(visitor.page.locator("#queued")).to_contain_text("!text Three.")
        visitor.page.locator("#queued").get_by_role("button", name="Undo").tap()
        expect(visitor.page.locator("#hint")).to_have_text("Your message is in the box again.")
        expect(visitor.box).to_be_focused()
        visitor.stop.tap()
        visitor.idle()
        visitor.box.fill("!text Four.")
        visitor.box.press("Control+Enter")
        expect(visitor.mine.last).to_contain_text("Four.")
        visitor.idle()
        visitor.chat.get_by_role("button", name="Edit").last.tap()
        area = visitor.chat.get_by_role("textbox")
        area.fill("!text Five.")
        area.press("Enter")
        expect(area).to_have_value("!text Five.\n")


def compose(cdp: Any, text: str) -> None:
    """Type as an input method does while a word is being composed."""
    cdp.send("Input.imeSetComposition", {"text": text, "selectionStart": len(text), "selectionEnd": len(text)})


def enter(cdp: Any, code: int) -> None:
    """Press Enter while a word is composed, as browsers report it: some systems send its own code, others 229."""
    key = {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": code}
    cdp.send("Input.dispatchKeyEvent", {"type": "keyDown", "text": "\r", "unmodifiedText": "\r", **key})
    cdp.send("Input.dispatchKeyEvent", {"type": "keyUp", **key})


@pytest.mark.parametrize("code", [13, 229])
def test_enter_during_composition_sends_nothing(app: App, visit: Visit, model_server: Running, code: int) -> None:
    visitor = visit(app.url, fresh=True)
    before = len(model_server.journal())
    visitor.box.focus()
    cdp: Any = visitor.page.context.new_cdp_session(visitor.page)
    compose(cdp, "にほん")
    expect(visitor.box).to_have_value("にほん")
    enter(cdp, code)
    visitor.page.wait_for_timeout(500)  # nothing must happen in this time
    expect(visitor.mine).to_have_count(0)
    expect(visitor.box).to_have_value("にほん")
    cdp.send("Input.insertText", {"text": "日本"})
    expect(visitor.box).to_have_value("日本")
    visitor.box.press("Enter")
    expect(visitor.caption).to_be_visible()
    assert len(model_server.journal()) == before + 1
    assert asked(model_server) == ["日本"]
    visitor.idle()
    visitor.box.press("ArrowUp")
    area = visitor.chat.get_by_role("textbox")
    expect(area).to_be_focused()
    compose(cdp, "ご")
    enter(cdp, code)
    visitor.page.wait_for_timeout(500)
    expect(area).to_have_value("日本ご")
    assert len(model_server.journal()) == before + 1


SAFARI_ENTER = """(field) => {
  const heard = [], listen = ({ type }) => heard.push(type);
  field.dispatchEvent(new CompositionEvent("compositionend", { bubbles: true, data: "日本" }));
  for (const [kind, keyCode] of [["keydown", 229], ["keypress", 13]]) {
    field.addEventListener(kind, listen);
    const enter = { key: "Enter", code: "Enter", keyCode, bubbles: true, cancelable: true };
    field.dispatchEvent(new KeyboardEvent(kind, enter));
    field.removeEventListener(kind, listen);
  }
  return heard;
}"""
"""Safari has ended the composition when it reports the Enter that did so. Returns what listeners of the field hear."""


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
        assert field.evaluate(SAFARI_ENTER) == []
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
    assert [field.evaluate(SAFARI_ENTER) for field in fields] == [[]] * len(fields)
    expect(visitor.mine).to_have_count(1)
    expect(page.locator("#max-tokens").get_by_role("alert")).to_be_empty()


def test_up_edits_the_last_message(app: App, visit: Visit, model_server: Running) -> None:
    visitor = visit(app.url)
    visitor.ask("first")
    visitor.ask("secnod")
    area = visitor.chat.get_by_role("textbox")
    visitor.box.fill("half")
    visitor.box.press("ArrowUp")
    expect(area).to_have_count(0)  # the typed text is kept
    visitor.box.fill("")
    visitor.box.press("ArrowUp")
    expect(area).to_be_focused()
    expect(area).to_have_value("secnod")
    area.press("Escape")
    expect(area).to_have_count(0)
    expect(visitor.box).to_be_focused()
    visitor.box.press("ArrowUp")
    expect(area).to_be_focused()
    area.fill("second, better")
    area.press("Enter")
    expect(visitor.mine.last).to_have_text("second, better")
    model_server.wait_for(lambda journal: "second, better" in str(journal[-1]["body"]))
    assert asked(model_server) == ["first", "second, better"]
    visitor.idle()


def test_typing_without_focus_goes_into_the_box(app: App, visit: Visit) -> None:
    visitor = visit(app.url)
    page = visitor.page
    help_ = page.get_by_role("dialog", name="Keyboard shortcuts")
    visitor.examples.first.click()
    expect(visitor.caption).to_be_visible()
    visitor.idle()
    page.evaluate("document.activeElement.blur()")  # as after a click on a button that is disabled or removed then
    page.keyboard.type("A follow-up? Yes.")
    expect(visitor.box).to_have_value("A follow-up? Yes.")
    expect(help_).to_be_hidden()
    visitor.box.fill("")
    visitor.open_models()
    page.keyboard.press("Escape")
    expect(page.locator("#model-button")).to_be_focused()
    page.keyboard.type("More.")
    expect(visitor.box).to_have_value("More.")
    search = page.get_by_role("searchbox", name="Search chats")
    search.focus()
    page.keyboard.type("ships")
    expect(search).to_have_value("ships")
    expect(visitor.box).to_have_value("More.")
    search.fill("")
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("?")
    expect(help_).to_be_visible()


def test_shortcuts_are_listed(app: App, visit: Visit) -> None:
    visitor = visit(app.url)
    listed = visitor.page.get_by_role("dialog", name="Keyboard shortcuts")
    visitor.page.get_by_role("button", name="Keyboard shortcuts").click()
    expect(listed).to_be_visible()
    rows = listed.evaluate(
        "(list) => [...list.querySelectorAll('dt')].map((dt) => dt.innerText + ': ' + dt.nextSibling.innerText)"
    )
    assert "Shift + Enter: New line" in rows
    assert "/: In an empty box: saved prompts" in rows
    assert "? Ctrl + /: Show this list" in rows
    visitor.shot("shortcuts")
    sides = "(one) => [one.getBoundingClientRect().right, one.closest('dialog').getBoundingClientRect().right]"
    button, dialog = listed.get_by_role("button", name="Close").evaluate(sides)
    assert 0 < dialog - button < 30, "on the side where other dialogs have it"
    listed.get_by_role("button", name="Close").click()
    expect(listed).to_be_hidden()
    visitor.say("!tokens 4000 @100")
    expect(visitor.chat).to_contain_text("word9")
    visitor.box.fill("half a question")
    visitor.box.press("Control+/")
    expect(listed).to_be_visible()
    visitor.page.keyboard.press("Escape")
    expect(listed).to_be_hidden()
    expect(visitor.stop).to_be_visible()  # Escape closes only the list
    expect(visitor.box).to_have_value("half a question")
    visitor.box.press("?")
    expect(listed).to_be_hidden()
    visitor.page.keyboard.press("Escape")
    expect(visitor.caption).to_contain_text("Stopped")


# The page at rest

STILL = "!document.getAnimations().some((one) => one.effect.getTiming().iterations !== Infinity)"


# The order of the focus

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


def walk(visitor: Visitor, steps: int, last: str = "submit-button") -> list[str]:
    """Press Tab from the top of the page to the element named `last`. Return the names of the elements.

    Each one must be visibly focused.
    """
    visitor.page.evaluate(TO_THE_TOP)
    names: list[str] = []
    for _ in range(steps):
        visitor.page.keyboard.press("Tab")
        at = visitor.page.evaluate(FOCUSED)
        assert at["visible"], names
        assert at["seen"], names
        names.append(at["name"])
        if at["name"] == last:
            return names
    raise AssertionError(names)


COMPOSER = ["textbox", "attach-button", "switch Reasoning", "switch Tools", "model-button", "submit-button"]


def test_tab_order_follows_layout(app: App, visit: Visit) -> None:
    visitor = visit(app.url)
    expect(visitor.examples).to_have_count(4)
    expect(visitor.page.locator(":root[data-chat=empty]")).to_have_count(1)
    names = walk(visitor, 22, last="examples")
    assert names[:4] == ["chats"] * 4  # temporary chat, search, import, export
    assert names[4:8] == ["chats-toggle", "new", "help", "settings"]
    assert names[8:14] == COMPOSER
    assert names[14:] == ["examples"]
    for _ in range(3):
        visitor.page.keyboard.press("Tab")
        assert visitor.page.evaluate(FOCUSED)["name"] == "examples"
    visitor.ask("!reasoning Because. !text Here is why.")
    visitor.page.wait_for_function(STILL)
    names = walk(visitor, 25)
    assert names[-6:] == COMPOSER
    # Reasoning shows its duration from a tenth of a second.
    assert [re.sub(r"\s+[\d.]+ s$", "", name) for name in names if name.startswith("chat ")] == [
        "chat Conversation",
        "chat Copy message",
        "chat Edit",
        "chat Reasoning",
        "chat Copy message",
        "chat Retry",
        "chat Undo",
        "chat Branch from here into a new chat",
    ]


RING = """() => {
  const at = document.activeElement, style = getComputedStyle(at), box = at.getBoundingClientRect();
  const wide = style.outlineStyle === "none" ? 0 : parseFloat(style.outlineWidth) + parseFloat(style.outlineOffset);
  const ring = { left: box.left - wide, right: box.right + wide, top: box.top - wide, bottom: box.bottom + wide };
  const cuts = [];
  for (let around = at.parentElement; around && around.id !== "settings"; around = around.parentElement) {
    if (getComputedStyle(around).overflowX === "visible") continue;
    const edge = around.getBoundingClientRect();
    const outside = [edge.left - ring.left, ring.right - edge.right, edge.top - ring.top, ring.bottom - edge.bottom];
    if (Math.max(...outside) > 0.5) cuts.push(around.className);
  }
  return [at.ariaLabel || at.tagName, cuts, Boolean(at.closest("#settings"))];
}"""
"""Returns the name of what has the focus, and the classes of the elements that cut its ring."""


def test_rings_in_the_settings_are_whole(app: App, visit: Visit) -> None:
    visitor = visit(app.url)
    visitor.open_settings()
    visitor.page.get_by_label("System prompt").fill("Be brief.")
    resets = 0
    for _ in range(30):
        name, cuts, is_inside = visitor.page.evaluate(RING)
        if not is_inside:
            break
        assert cuts == [], name
        if name.startswith("Reset"):
            resets += 1
            visitor.shot(f"ring-{resets}")
        visitor.page.keyboard.press("Tab")
    assert resets == 2, "of the system prompt and of the temperature"


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


# Checks by a machine


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


# Names


# Announcements

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
