"""Attached texts: a long pasted text becomes a file, which can be edited."""

from playwright.sync_api import Locator, expect

from tests.conftest import App, Visit, Visitor
from tests.support.scripted_server import Running

SHORT = "s" * 4000
LONG = "\n".join([*(f"line {number} of the log" for number in range(400)), "a long line " * 40])
SIZES = "(pre) => [pre.clientHeight, pre.scrollHeight, pre.clientWidth, pre.scrollWidth]"
SHOWN = "!text Read."


def paste(visitor: Visitor, text: str) -> None:
    """Paste a text into the composer as the keyboard does."""
    visitor.page.evaluate("(text) => navigator.clipboard.writeText(text)", text)
    visitor.box.press("ControlOrMeta+v")


def chips(visitor: Visitor) -> Locator:
    return visitor.page.locator("#composer .open-text")


def dialog(visitor: Visitor) -> Locator:
    return visitor.page.locator("dialog#text-file")


def sent(server: Running) -> str:
    """Return the last message that the model server got, as text."""
    content = server.journal()[-1]["body"]["messages"][-1]["content"]
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content)


def test_long_pasted_text_becomes_a_file(app: App, visit: Visit, model_server: Running) -> None:
    visitor = visit(app.url)
    visitor.box.focus()
    paste(visitor, SHORT)
    expect(visitor.box).to_have_value(SHORT)
    expect(chips(visitor)).to_have_count(0)
    visitor.box.fill(SHOWN)
    paste(visitor, LONG)
    expect(chips(visitor)).to_have_text(["Pasted text 1.txt"])
    paste(visitor, LONG.upper())
    expect(chips(visitor)).to_have_text(["Pasted text 1.txt", "Pasted text 2.txt"])
    expect(visitor.box).to_have_value(SHOWN)
    visitor.box.press("Enter")
    expect(visitor.bubbles.filter(has_text="Read.")).to_be_visible()
    visitor.idle()
    for name, text in (("Pasted text 1.txt", LONG), ("Pasted text 2.txt", LONG.upper())):
        assert f"{name}:\n" in sent(model_server)
        assert text in sent(model_server)
    expect(visitor.page.locator("#chats .title")).to_have_text(SHOWN)
    visitor.shot("pasted-title")
    expect(chips(visitor)).to_have_count(0)
    quoted = visitor.mine.locator("pre code").first
    height, whole, width, widest = quoted.evaluate(SIZES)
    assert 240 < height < 300, "about 12 lines"
    assert whole > 5000
    assert widest == width, "long lines are broken"
    expect(quoted).to_have_attribute("tabindex", "0")  # the keyboard can scroll it
    paste(visitor, LONG)
    expect(chips(visitor)).to_have_text(["Pasted text 1.txt"])


def test_edited_text_is_sent(app: App, visit: Visit, model_server: Running) -> None:
    """With the keyboard alone."""
    visitor = visit(app.url)
    page = visitor.page
    visitor.box.fill(SHOWN)
    paste(visitor, LONG)
    paste(visitor, LONG.upper())
    expect(chips(visitor)).to_have_count(2)
    chips(visitor).first.focus()
    page.keyboard.press("Enter")
    area = dialog(visitor).get_by_role("textbox", name="Pasted text 1.txt")
    expect(area).to_be_focused()
    expect(area).to_have_value(LONG)
    page.keyboard.type("The beginning is new. ")
    page.keyboard.press("Control+Enter")
    expect(dialog(visitor)).to_be_hidden()
    expect(visitor.box).to_be_focused()
    chips(visitor).first.click()
    expect(area).to_have_value("The beginning is new. " + LONG)
    page.keyboard.type("Never saved. ")
    page.keyboard.press("Escape")
    expect(dialog(visitor)).to_be_hidden()
    expect(chips(visitor)).to_have_text(["Pasted text 1.txt", "Pasted text 2.txt"])
    visitor.box.press("Enter")
    expect(visitor.bubbles.filter(has_text="Read.")).to_be_visible()
    visitor.idle()
    assert "The beginning is new. line 0" in sent(model_server)
    assert "Never saved." not in sent(model_server)
    assert sent(model_server).count("line 7 of the log") == 1
    assert LONG.upper() in sent(model_server)


def test_file_is_shown_by_the_name_it_was_given(app: App, visit: Visit, model_server: Running) -> None:
    visitor = visit(app.url)
    names = ["notes <b>&.txt", "void.txt"]
    visitor.attach((names[0], b"Buy milk."), (names[1], b""))
    expect(chips(visitor)).to_have_text(names)
    handled = [f"{names[0]}: will be sent as text", f"{names[1]}: will be sent as text, but it is empty"]
    expect(visitor.page.locator("#attached li")).to_have_text(handled)
    chips(visitor).first.click()
    expect(dialog(visitor).get_by_role("heading")).to_have_text(names[0])
    expect(dialog(visitor).get_by_role("textbox")).to_have_value("Buy milk.")
    dialog(visitor).get_by_role("button", name="Cancel").click()
    visitor.ask(SHOWN)
    assert f"{names[0]}:\n```\nBuy milk.\n```" in sent(model_server)
    for _ in range(2):
        full = visitor.mine.get_by_role("group", name=names[0])
        expect(full).to_contain_text("Buy milk.")
        with visitor.page.expect_download() as saved:
            full.get_by_role("button", name=f"Save as {names[0]}").click()
        assert saved.value.path().read_text() == "Buy milk."
        assert names[0] in full.evaluate("pre => getComputedStyle(pre, '::before').content")
        expect(visitor.mine.get_by_text("void")).to_have_text(f"{names[1]}: sent as text, but it is empty")
        expect(visitor.mine.locator("pre")).to_have_count(1)
        expect(visitor.mine.locator("b")).to_have_count(0)
        visitor.shot("given-names")
        visitor.reload()
