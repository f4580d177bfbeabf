"""The composer keeps what is typed or attached while a message is being sent, and its buttons stay in their places."""

from collections.abc import Callable

import pytest
from playwright.sync_api import Route, expect

from tests.conftest import App, Visitor
from tests.support.scripted_server import Running

pytestmark = pytest.mark.browser

Visit = Callable[..., Visitor]


@pytest.mark.gate("What is typed while a message is sent stays.")
def test_input_while_sending_stays(app: App, visit: Visit) -> None:
    visitor = visit(app.url, fresh=True)
    files = visitor.page.locator("#composer").locator(".file")
    held: list[Route] = []
    visitor.ask("!text First.")

    def hold(route: Route) -> None:
        if "!text Second." in (route.request.post_data or "") and not held:
            held.append(route)
        else:
            route.continue_()  # other events of the page, such as the list of chats after the first answer

    visitor.page.route("**/conversations/**", hold)
    visitor.say("!text Second.")
    visitor.wait_for_requests(held)
    visitor.box.press_sequentially(" And a third")
    visitor.page.locator("#composer input[type=file]").set_input_files(
        [{"name": "more.txt", "mimeType": "text/plain", "buffer": b"more"}]
    )
    expect(files).to_have_count(1)
    held[0].continue_()
    expect(visitor.bubbles.filter(has_text="Second.")).to_have_count(1)
    expect(visitor.box).to_have_value("And a third")
    expect(files).to_have_count(1)
    expect(visitor.mine.last).to_have_text("!text Second.")
    visitor.idle()
    visitor.box.fill("!text Third.")
    visitor.box.press("Enter")
    expect(visitor.bubbles.filter(has_text="Third.")).to_have_count(1)
    expect(visitor.box).to_have_value("")
    expect(files).to_have_count(0)


PLACE = """(clip) => {
  const own = clip.getBoundingClientRect(), dock = document.querySelector("#dock").getBoundingClientRect();
  return [own.left - dock.left, dock.bottom - own.bottom, own.width, own.height].map(Math.round);
}"""


@pytest.mark.parametrize(("phone", "locale"), [(False, "en-US"), (True, "de-DE")])
def test_paper_clip_stays_beside_files(app: App, visit: Visit, phone: bool, locale: str) -> None:
    visitor = visit(app.url, phone=phone, dark=phone, locale=locale)
    clip = visitor.page.locator("#composer .attach-button")
    files = visitor.page.locator("#composer .file")
    visitor.box.fill("A draft, so that the bookmark is there")
    bookmark = visitor.page.locator("#composer .prompts-button")
    before, beside = clip.evaluate(PLACE), bookmark.evaluate(PLACE)
    for number in (1, 2):
        visitor.page.locator("#composer input[type=file]").set_input_files(
            [{"name": f"{number}.txt", "mimeType": "text/plain", "buffer": b"more"}]
        )
        expect(files).to_have_count(number)
        assert clip.evaluate(PLACE) == before
        assert bookmark.evaluate(PLACE) == beside
    visitor.shot(f"clip-{locale}")
    with visitor.page.expect_file_chooser():
        clip.click()


def test_draft_keeps_its_files_over_a_reload(app: App, visit: Visit, model_server: Running) -> None:
    visitor = visit(app.url)
    page = visitor.page
    files = page.locator("#composer").locator(".file")
    names = page.locator("#composer .file .open-text")

    def attach(name: str) -> None:
        page.locator("#composer input[type=file]").set_input_files(
            [{"name": name, "mimeType": "text/plain", "buffer": f"{name} is here".encode()}]
        )
        expect(names.filter(has_text=name)).to_be_visible()

    visitor.ask("!text First.")
    visitor.box.fill("!text Second.")
    attach("one.txt")
    attach("two.txt")
    page.locator("#new").click()
    expect(files).to_have_count(0)
    attach("of the new chat.txt")
    for _ in range(2):  # the draft of the other chat is not seen in between
        visitor.reload()
        expect(names).to_have_text(["of the new chat.txt"])
    page.locator("#chats li").get_by_role("link").click()
    expect(visitor.box).to_have_value("!text Second.")
    expect(names).to_have_text(["one.txt", "two.txt"])
    page.get_by_role("button", name="Remove file: one.txt").click()
    expect(names).to_have_text(["two.txt"])
    visitor.reload()
    expect(names).to_have_text(["two.txt"])
    before = len(model_server.journal())
    visitor.box.press("Enter")
    expect(visitor.bubbles.filter(has_text="Second.")).to_have_count(1)
    visitor.idle()
    expect(files).to_have_count(0)
    said = str(model_server.journal()[before]["body"]["messages"][-1])
    assert "two.txt is here" in said
    assert "one.txt" not in said
    visitor.reload()
    expect(visitor.bubbles.filter(has_text="Second.")).to_have_count(1)
    page.locator("#new").click()
    expect(names).to_have_text(["of the new chat.txt"])
    expect(page.locator("#hint")).to_have_text("")


def test_lost_files_of_a_draft_are_named(start_app: Callable[..., App], visit: Visit) -> None:
    """The files of a draft end with the server, or with their time."""
    own = start_app()
    visitor = visit(own.url)
    visitor.box.fill("A draft")
    visitor.page.locator("#composer input[type=file]").set_input_files(
        [{"name": "one.txt", "mimeType": "text/plain", "buffer": b"one"}]
    )
    expect(visitor.page.locator("#composer .file .open-text")).to_have_text("one.txt")
    for path in own.files_with("one"):
        if path.name == "one.txt":
            path.unlink()
    visitor.reload()
    expect(visitor.page.locator("#hint")).to_have_text("These files of your draft are gone. Attach them again: one.txt")
    expect(visitor.box).to_have_value("A draft")
    expect(visitor.page.locator("#composer .file")).to_have_count(0)
    visitor.ask("!text Hello.")
