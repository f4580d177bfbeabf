"""Undo puts a message back into the composer as it was typed and attached, and what it hides can be shown again."""

from collections.abc import Callable

import pytest
from playwright.sync_api import Locator, expect

from tests.conftest import App, Visitor
from tests.support import media_files
from tests.support.documents import pdf
from tests.support.scripted_server import Config, Running, running

pytestmark = pytest.mark.browser

Visit = Callable[..., Visitor]
SEES = "Qwen/Qwen3-VL-8B-Instruct"
NOTE = {"name": "note.txt", "mimeType": "text/plain", "buffer": b"Buy milk.\nBuy bread.\n"}
REPORT = {"name": "report.pdf", "mimeType": "application/pdf", "buffer": pdf(["The rent is 900."])}
PICTURE = {"name": "red.png", "mimeType": "image/png", "buffer": media_files.picture("PNG")}


def attach(visitor: Visitor, *files: dict[str, object]) -> None:
    visitor.page.locator("#composer input[type=file]").set_input_files(list(files))  # pyright: ignore[reportArgumentType]
    expect(visitor.page.locator("#attached li")).to_have_count(len(files))


def undo(visitor: Visitor) -> None:
    before = visitor.mine.count()
    visitor.chat.get_by_role("button", name="Undo").click()
    expect(visitor.box).to_be_focused()
    expect(visitor.mine).to_have_count(before - 1)
    visitor.idle()


def thumbnails(visitor: Visitor) -> Locator:
    return visitor.page.locator("#composer .file")


def content(server: Running, at: int = -1) -> object:
    return server.journal()[at]["body"]["messages"][-1]["content"]


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


def test_edit_of_a_file_alone_keeps_the_file(app: App, visit: Visit, model_server: Running) -> None:
    visitor = visit(app.url)
    attach(visitor, NOTE)
    visitor.box.press("Enter")
    expect(visitor.caption).to_be_visible()
    visitor.idle()
    visitor.chat.get_by_role("button", name="Edit").click()
    area = visitor.chat.locator(".edit textarea")
    expect(area).to_have_value("")
    expect(area).to_have_attribute("aria-description", "1 file stays with this message")
    expect(visitor.chat.get_by_text("1 file stays with this message")).to_be_visible()
    expect(visitor.mine.get_by_role("group", name="note.txt")).to_be_visible()
    visitor.shot("edited-file-alone")
    before = len(model_server.journal())
    area.fill("What is missing?")
    visitor.chat.get_by_role("button", name="Send").click()
    model_server.wait_for(lambda journal: len(journal) > before)
    sent = str(content(model_server, before))
    assert "What is missing?" in sent
    assert "Buy bread." in sent


def test_second_undo_replaces_the_first(app: App, visit: Visit) -> None:
    visitor = visit(app.url)
    visitor.ask("first")
    visitor.ask("second")
    undo(visitor)
    expect(visitor.box).to_have_value("second")
    undo(visitor)
    expect(visitor.box).to_have_value("first")


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


def test_version_that_was_taken_back_is_shown_again(app: App, visit: Visit) -> None:
    visitor = visit(app.url)
    visitor.ask("Cat")
    visitor.ask("More")
    visitor.chat.get_by_role("button", name="Edit").first.click()
    visitor.chat.locator(".edit textarea").fill("Dog")
    visitor.chat.get_by_role("button", name="Send").click()
    expect(visitor.mine).to_have_text(["Dog"])
    visitor.idle()
    visitor.chat.get_by_role("button", name="Previous version of your message").click()
    expect(visitor.mine).to_have_text(["Cat", "More"])
    for _ in range(2):  # the same again, because it is the newest branch only the first time
        undo(visitor)
        undo(visitor)
        expect(visitor.box).to_have_value("Cat")
        visitor.page.locator("#hidden").get_by_role("button").click()
        expect(visitor.mine).to_have_text(["Cat", "More"])
        expect(visitor.box).to_have_value("")
        expect(visitor.page.locator("#hint")).to_have_text("")


def test_files_of_a_message_that_is_shown_again_leave_the_box(app: App, visit: Visit) -> None:
    visitor = visit(app.url)
    attach(visitor, NOTE)
    visitor.ask("Read it")
    visitor.chat.get_by_role("button", name="Undo").click()
    expect(visitor.mine).to_have_count(0)
    visitor.idle()
    expect(thumbnails(visitor)).to_have_count(1)
    visitor.reload()
    expect(thumbnails(visitor)).to_have_count(1)
    visitor.box.press("End")
    visitor.box.press_sequentially(" and a draft")
    visitor.page.locator("#hidden").get_by_role("button").click()
    expect(visitor.mine.filter(has_text="Read it")).to_be_visible()
    expect(thumbnails(visitor)).to_have_count(0)
    expect(visitor.box).to_have_value("and a draft")
