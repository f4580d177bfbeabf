"""Undo puts a message back into the composer as it was typed and attached, and what it hides can be shown again."""

from collections.abc import Callable

from playwright.sync_api import Locator, expect

from tests.conftest import App, Visit, Visitor
from tests.support import media_files
from tests.support.documents import pdf
from tests.support.scripted_server import Config, Running, running

SEES = "Qwen/Qwen3-VL-8B-Instruct"
NOTE = ("note.txt", b"Buy milk.\nBuy bread.\n")
REPORT = ("report.pdf", pdf(["The rent is 900."]))
PICTURE = ("red.png", media_files.picture("PNG"))


def attach(visitor: Visitor, *files: tuple[str, bytes]) -> None:
    visitor.attach(*files)
    expect(visitor.page.locator("#attached li")).to_have_count(len(files))


def undo(visitor: Visitor) -> None:
    before = visitor.mine.count()
    visitor.chat.get_by_role("button", name="Undo").click()
    expect(visitor.box).to_be_focused()
    expect(visitor.mine).to_have_count(before - 1)
    visitor.idle()


def thumbnails(visitor: Visitor) -> Locator:
    return visitor.page.locator("#composer .file")


def content(server: Running) -> object:
    return server.journal()[-1]["body"]["messages"][-1]["content"]


def test_undo_returns_text_and_files(start_app: Callable[..., App], visit: Visit) -> None:
    with running(Config(models=(SEES,), rate=500.0)) as server:
        visitor = visit(start_app(VLLM_BASE_URL=server.base_url).url)
        attach(visitor, PICTURE, NOTE, REPORT)
        visitor.box.fill("What is this?")
        visitor.box.press("Enter")
        expect(visitor.caption).to_be_visible()
        visitor.idle()
        first = content(server)
        visitor.chat.get_by_role("button", name="Undo").click()
        expect(thumbnails(visitor)).to_have_count(3)
        expect(visitor.box).to_have_value("What is this?")
        expect(thumbnails(visitor).locator("img")).to_have_js_property("complete", True)
        assert thumbnails(visitor).locator("img").evaluate("({ naturalWidth }) => naturalWidth")
        expect(thumbnails(visitor).filter(has_text="note.txt")).to_be_visible()
        expect(visitor.page.locator("#attached")).to_contain_text("report.pdf")
        visitor.shot("undone-files")
        visitor.box.press("Enter")
        expect(visitor.caption).to_be_visible()
        visitor.idle()
        assert content(server) == first
        expect(thumbnails(visitor)).to_have_count(0)


def test_message_that_was_taken_back_is_shown_again(app: App, visit: Visit) -> None:
    visitor = visit(app.url)
    note = visitor.page.locator("#hidden")
    again = note.get_by_role("button", name="Show it again")
    visitor.ask("first")
    visitor.ask("second")
    expect(note).to_have_text("")
    undo(visitor)
    undo(visitor)
    visitor.box.fill("")
    visitor.shot("taken-back")
    visitor.reload()
    expect(note).to_contain_text("A message that you took back is still stored.")
    visitor.box.fill("a draft")
    again.click()
    expect(visitor.mine).to_have_text(["first", "second"])
    expect(note).to_have_text("")
    expect(visitor.box).to_have_value("a draft")
    expect(visitor.box).to_be_focused()
    visitor.box.fill("")
    undo(visitor)
    prompts = visitor.page.get_by_role("button", name="Saved prompts")
    expect(prompts).to_be_visible()
    again.click()
    expect(visitor.mine).to_have_text(["first", "second"])
    expect(visitor.box).to_have_value("")
    expect(prompts).to_have_count(0)  # there is nothing to save
    undo(visitor)
    expect(again).to_be_visible()
    visitor.ask("third")
    expect(note).to_have_text("")
    visitor.reload()
    expect(visitor.mine).to_have_text(["first", "third"])
    expect(note).to_have_text("")
    visitor.page.locator("#new").click()
    expect(visitor.mine).to_have_count(0)
    expect(note).to_have_text("")
