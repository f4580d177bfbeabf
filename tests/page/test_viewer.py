"""Pictures open in a viewer: zoom, moving, saving, keys, drawing on them. Videos become pictures and a sound."""

from collections.abc import Callable

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.conftest import App, Visit, Visitor, becomes
from tests.support import media_files
from tests.support.scripted_server import Config, Running

WATCHES, HEARS = "Qwen/Qwen3-Omni-30B-A3B-Instruct", "microsoft/Phi-4-multimodal-instruct"
SERVER = Config(models=(HEARS, WATCHES))
CONFIG = '[agent]\ntools = ["tests.support.making_tools:make"]\n'
WIDE, MADE = (1500, 1000), (320, 200)
"""The sizes of the visitor's picture and of the tool's."""


@pytest.fixture
def open_chat(own: App, visit: Visit) -> Callable[..., Visitor]:
    """Open a chat with a picture of the visitor and one of a tool."""

    def open_(**look: bool) -> Visitor:
        visitor = visit(own.url, fresh=True, **look)
        visitor.allow_tools()
        visitor.attach(("wide.png", media_files.picture("PNG", WIDE)))
        expect(visitor.page.locator("#attached, #composer .file").last).to_be_visible()
        visitor.ask("!tool make !text Here they are.")
        expect(pictures(visitor.page)).to_have_count(2)
        return visitor

    return open_


def pictures(page: Page) -> Locator:
    return page.locator('#chat .part img[role="button"]')


def viewer(page: Page) -> Locator:
    return page.get_by_role("dialog", name="Picture", exact=True)


def width(page: Page) -> int:
    return round(viewer(page).locator(".stage img").evaluate("image => image.getBoundingClientRect().width"))


def left(page: Page) -> int:
    return round(viewer(page).locator(".stage img").evaluate("image => image.getBoundingClientRect().left"))


def middle(page: Page) -> tuple[float, float]:
    box = viewer(page).locator(".stage").bounding_box()
    assert box
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


@pytest.mark.gate("A picture of the chat opens in a viewer, and can be enlarged and saved.")
def test_picture_is_enlarged_moved_and_saved(open_chat: Callable[..., Visitor]) -> None:
    page = open_chat().page
    pictures(page).first.click()
    expect(page.locator("dialog[open]")).to_have_count(1)
    room = viewer(page).locator(".stage").evaluate("stage => Math.min(stage.clientWidth, stage.clientHeight * 1.5)")
    becomes(round(room), lambda: width(page))
    page.keyboard.press("1")
    becomes(WIDE[0], lambda: width(page))
    page.keyboard.press("-")
    becomes(WIDE[0] // 1.25, lambda: width(page))
    page.keyboard.press("0")
    becomes(round(room), lambda: width(page))
    viewer(page).get_by_role("button", name="Actual size").click()
    becomes(WIDE[0], lambda: width(page))
    before, (x, y) = left(page), middle(page)
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + 100, y, steps=3)
    page.mouse.up()
    becomes(before + 100, lambda: left(page))
    page.mouse.wheel(0, -200)
    becomes(True, lambda: width(page) > WIDE[0])
    with page.expect_download() as download:
        viewer(page).get_by_role("button", name="Download the picture").click()
    assert download.value.suggested_filename == "wide.png"
    page.keyboard.press("ArrowRight")
    expect(viewer(page)).to_contain_text("2 of 2")
    becomes(MADE[0], lambda: width(page))  # it is not enlarged by itself
    with page.expect_download() as download:
        viewer(page).get_by_role("button", name="Download the picture").click()
    assert download.value.suggested_filename == "chart.png"
    page.keyboard.press("ArrowRight")
    expect(viewer(page)).to_contain_text("1 of 2")
    page.keyboard.press("Escape")
    expect(viewer(page)).to_have_count(0)
    expect(pictures(page).first).to_be_focused()


PIXEL = """async (image, [x, y]) => {
  await image.decode();
  const size = { width: image.naturalWidth, height: image.naturalHeight };
  const canvas = Object.assign(document.createElement("canvas"), size);
  const pen = canvas.getContext("2d");
  pen.drawImage(image, 0, 0);
  return [...pen.getImageData(x * canvas.width, y * canvas.height, 1, 1).data].slice(0, 3);
}"""
"""The colour of a picture at a point, each from 0 to 1."""


@pytest.mark.gate("A picture can be drawn on before it is sent.")
def test_picture_is_drawn_on_before_it_is_sent(own: App, visit: Visit) -> None:
    visitor = visit(own.url, fresh=True)
    page, files = visitor.page, visitor.page.locator("#composer .file")
    visitor.attach(("plan.png", media_files.encoded(media_files.Image.new("RGB", (400, 200), "white"), "PNG")))
    files.locator(".open-picture").click()
    viewer(page).get_by_role("button", name="Draw on the picture").click()
    dialog = page.get_by_role("dialog", name="Draw on the picture")
    room = dialog.locator("canvas").bounding_box()
    assert room
    at = [(room["x"] + x * room["width"], room["y"] + y * room["height"]) for x, y in ((0.25, 0.25), (0.75, 0.25))]

    def pull() -> None:
        page.mouse.move(*at[0])
        page.mouse.down()
        page.mouse.move(*at[1], steps=4)
        page.mouse.up()

    pull()
    dialog.get_by_role("radio", name="blue").check()
    pull()
    dialog.get_by_role("button", name="Undo").click()
    dialog.get_by_role("radio", name="Text").check()
    page.mouse.click(*at[0])
    dialog.get_by_role("textbox").fill("Here")
    page.keyboard.press("Enter")
    dialog.get_by_role("button", name="Attach").click()
    marked = files.filter(has_text="plan-marked.png").locator("img")
    expect(marked).to_be_visible()
    expect(files).to_have_count(1)  # in the place of the other one
    becomes(True, lambda: red(marked.evaluate(PIXEL, [0.6, 0.25])))
    assert marked.evaluate(PIXEL, [0.5, 0.75]) == [255, 255, 255]


def red(pixel: list[int]) -> bool:
    return pixel[0] > 180 and pixel[1] < 90 and pixel[2] < 90


@pytest.mark.gate("A video is sent as pictures with their times, and its sound.")
def test_video_is_sent_as_pictures_and_its_sound(own: App, visit: Visit, server: Running) -> None:
    visitor = visit(own.url, fresh=True)
    page, files = visitor.page, visitor.page.locator("#composer .file")
    clip = media_files.video([(220, 20, 20)] * 2 + [(20, 20, 220)] * 2)
    page.locator("#composer input[type=file]").set_input_files(
        [{"name": "clip.webm", "mimeType": "video/webm", "buffer": clip}]
    )
    expect(page.locator("#hint")).to_have_text("clip.webm is sent as 2 pictures with their times, and its sound.")
    expect(files).to_have_count(3)
    assert [one.split(" (")[0] for one in files.all_inner_texts()] == ["clip 0-01.jpg", "clip 0-03.jpg", "clip.wav"]
    first, second = files.locator("img").all()
    assert red(first.evaluate(PIXEL, [0.5, 0.5]))
    assert red(list(reversed(second.evaluate(PIXEL, [0.5, 0.5]))))
    visitor.ask("!text Seen.")
    assert kinds_sent(server) == ["image_url", "image_url", "input_audio"]
    page.locator("#composer input[type=file]").set_input_files(
        [{"name": "again.webm", "mimeType": "video/webm", "buffer": clip}]
    )
    visitor.ask("!text Seen again.")  # the message waits for its video
    assert kinds_sent(server) == ["image_url", "image_url", "input_audio"]
    expect(files).to_have_count(0)


@pytest.mark.gate("A video is sent whole to a model that takes it, and named to one that does not.")
def test_video_is_sent_whole(own: App, visit: Visit, server: Running) -> None:
    visitor = visit(own.url, fresh=True)
    page, clip = visitor.page, media_files.video([(220, 20, 20)] * 2 + [(20, 20, 220)])
    visitor.choose(f"vllm:{WATCHES}")
    expect(page.locator("#about [data-video]")).to_be_attached()
    page.locator("#composer input[type=file]").set_input_files(
        [{"name": "clip.webm", "mimeType": "video/webm", "buffer": clip}]
    )
    expect(page.locator("#hint")).to_have_text("clip.webm is sent as a whole video.")
    expect(page.locator("#attached li")).to_have_text("clip.webm: sent as a whole video, 3 s")
    visitor.ask("!text Seen.")
    assert kinds_sent(server) == ["video_url"]
    player = visitor.mine.first.locator("video")
    becomes(3, lambda: player.evaluate("(one) => { one.currentTime = 2; return Math.round(one.duration) || 0; }"))
    becomes(True, lambda: player.evaluate("(one) => one.seekable.end(0) > 2 && one.readyState > 1"))
    visitor.shot("video")
    visitor.choose(f"vllm:{HEARS}")
    visitor.ask("!text And now?")
    sent = server.journal()[-1]["body"]["messages"]
    assert "A video was here" in str(sent), "the model that takes none is told"
    assert "video_url" not in str(sent)


def kinds_sent(server: Running) -> list[str]:
    """Return the kinds of the files in the last message to the model."""
    parts = server.journal()[-1]["body"]["messages"][-1]["content"]
    return sorted(part["type"] for part in parts if part["type"] != "text")


def test_video_that_cannot_be_played_is_refused_with_the_text_kept(own: App, visit: Visit) -> None:
    visitor = visit(own.url, fresh=True)
    page = visitor.page
    page.locator("#composer textarea").fill("What happens here?")
    page.locator("#composer input[type=file]").set_input_files(
        [{"name": "clip.mp4", "mimeType": "video/mp4", "buffer": b"\0\0\0\x18ftypmp42"}]
    )
    expect(page.locator("#hint")).to_contain_text("This browser can't play clip.mp4.")
    expect(page.locator("#composer textarea")).to_have_value("What happens here?")
    expect(page.locator("#composer .file")).to_have_count(0)
