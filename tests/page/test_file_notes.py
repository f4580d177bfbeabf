"""The notes on attached files: one for all files with the same reason, and never at the cost of the box."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from playwright.sync_api import Locator, expect

from tests.conftest import App, Visitor, becomes
from tests.support import media_files

pytestmark = pytest.mark.browser

Visit = Callable[..., Visitor]
SENTENCE = (
    "Qwen3-8B cannot see pictures. Remove the {count} pictures, choose a model that can, or turn on "
    '"Extract text from images and audio" in the settings.'
)
IS_SEEN = """(one) => [...one.getClientRects()].every(({ left, right, top, bottom }) => {
  const at = [[(left + right) / 2, top + 3], [left + 3, (top + bottom) / 2], [(left + right) / 2, bottom - 3]];
  return top >= 0 && bottom <= innerHeight && at.every(([x, y]) => one.contains(document.elementFromPoint(x, y)));
})"""
"""True if nothing covers an element, and the window has all of it."""


def attach(visitor: Visitor, folder: Path, names: Sequence[str], data: bytes | None = None) -> None:
    files = [folder / name for name in names]
    for file in files:
        file.write_bytes(media_files.picture("PNG") if data is None else data)
    visitor.page.locator("#composer input[type=file]").set_input_files(files)


def pictures(count: int) -> list[str]:
    return [f"holiday in the mountains {number}.png" for number in range(1, count + 1)]


def is_seen(part: Locator) -> None:
    becomes(True, lambda: part.evaluate(IS_SEEN))


@pytest.mark.parametrize(
    ("width", "height", "dark", "count"),
    [(390, 844, True, 10), (640, 400, False, 10)],
    ids=["dark-phone", "zoomed"],
)
def test_many_refused_pictures_have_one_note(
    app: App, visit: Visit, tmp_path: Path, width: int, height: int, dark: bool, count: int
) -> None:
    visitor = visit(app.url, dark=dark)
    visitor.page.set_viewport_size({"width": width, "height": height})
    attach(visitor, tmp_path, pictures(count))
    notes = visitor.page.locator("#attached li.refused")
    expect(notes.locator("span")).to_have_text([SENTENCE.format(count=count)])
    expect(notes.get_by_role("button")).to_have_count(3)
    expect(visitor.page.locator("#composer .file")).to_have_count(count)
    is_seen(visitor.box)
    is_seen(visitor.submit)
    is_seen(notes.locator("span"))
    visitor.shot(f"many-refused-{width}x{height}-{dark}")
    visitor.say("What is there?")
    expect(visitor.hint).to_contain_text("The reason is above the box.")  # it has the note's words
    is_seen(visitor.box)
    is_seen(notes.locator("span"))


def test_many_notes_leave_the_box_in_view(app: App, visit: Visit, tmp_path: Path) -> None:
    visitor = visit(app.url)
    attach(visitor, tmp_path, [f"notes on a long way {number}.txt" for number in range(16)], b" ")
    notes = visitor.page.locator("#attached li")
    expect(notes.filter(has_text="will be sent as text")).to_have_count(16)
    for width, height in ((390, 844), (1280, 800)):
        visitor.page.set_viewport_size({"width": width, "height": height})
        is_seen(visitor.box)
        notes.last.scroll_into_view_if_needed()
        is_seen(notes.last)
        is_seen(visitor.box)
        visitor.shot(f"many-notes-{width}")


def test_zoomed_page_shows_why_a_file_is_refused(app: App, visit: Visit, tmp_path: Path) -> None:
    visitor = visit(app.url)
    visitor.page.set_viewport_size({"width": 640, "height": 400})  # a screen of 1280x800 at 200 %
    visitor.ask("!text " + "One more line of an answer.  \n" * 30)
    attach(visitor, tmp_path, ["view.png"])
    note = visitor.page.locator("#attached li.refused")
    expect(note.locator("span")).to_contain_text('Remove "view.png"')
    visitor.say("What is there?")
    expect(visitor.hint).to_contain_text("The reason is above the box.")
    visitor.shot("zoomed-refusal")
    is_seen(note.locator("span"))
    for button in note.get_by_role("button").all():
        is_seen(button)
    is_seen(visitor.box)
