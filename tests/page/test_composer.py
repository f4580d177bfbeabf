"""The composer keeps what is typed or attached while a message is being sent, and its buttons stay in their places."""

from collections.abc import Callable

import pytest
from playwright.sync_api import Route, expect

from tests.conftest import App, Visitor

pytestmark = pytest.mark.browser

Visit = Callable[..., Visitor]


@pytest.mark.gate("What is typed while a message is sent stays.")
def test_input_while_sending_stays(app: App, visit: Visit) -> None:
    visitor = visit(app.url, fresh=True)
    files = visitor.page.locator("#composer").get_by_role("listitem", name="File thumbnail")
    held: list[Route] = []
    visitor.ask("!text First.")

    def hold(route: Route) -> None:
        if "!text Second." in (route.request.post_data or "") and not held:
            held.append(route)
        else:
            route.continue_()  # other events of the page, such as the list of chats after the first answer

    visitor.page.route("**/queue/join*", hold)
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
    clip = visitor.page.locator("#composer .upload-button")
    files = visitor.page.locator("#composer .thumbnail-item")
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
