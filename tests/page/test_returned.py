"""A tool's files are shown, played and saved in its bubble, also after a reload, and only for their owner."""

import re

import pytest
from playwright.sync_api import APIResponse, expect

from tests.conftest import App, Visit, Visitor
from tests.support.making_tools import MADE

CONFIG = '[agent]\ntools = ["tests.support.making_tools:make"]\n'
HEARD = "sound => sound.play().then(() => { sound.pause(); return sound.duration; })"


@pytest.mark.gate("Only their owner sees, plays and saves pictures and sound.")
def test_only_owner_sees_plays_and_saves_media(own: App, visit: Visit) -> None:
    visitor = visit(own.url, phone=True, dark=True)
    visitor.allow_tools()
    visitor.ask("!tool make !text Here they are.")
    urls: list[str] = []
    for reloaded in (False, True):
        picture, sound = visitor.chat.locator('img[src*="media/"]'), visitor.chat.locator("audio[src*='media/']")
        saved = visitor.chat.locator("a[href*='media/']")
        expect(picture).to_have_count(1)
        picture.scroll_into_view_if_needed()
        visitor.page.wait_for_function("image => image.naturalWidth > 0", arg=picture.element_handle())
        assert picture.evaluate("image => [image.naturalWidth, image.naturalHeight]") == [320, 200]
        assert picture.evaluate("image => image.getBoundingClientRect().width") > 150
        sound.evaluate("sound => { sound.muted = true; }")
        assert 0 < sound.evaluate(HEARD) < 60
        expect(saved).to_have_count(2)
        visitor.shot(f"returned{'-again' if reloaded else ''}")
        found = [picture.evaluate("one => one.src"), sound.evaluate("one => one.src")]
        found += [link.evaluate("one => one.href") for link in saved.all()]
        if reloaded:
            assert found == urls
        urls = found
        if not reloaded:
            visitor.page.reload()
            expect(visitor.bubbles.filter(has_text="Here they are.")).to_be_visible()

    def get(who: Visitor, url: str) -> APIResponse:
        return who.page.context.request.get(url)

    assert [get(visitor, url).body() for url in urls] == [one.data for one in MADE.values()]
    stranger = visit(own.url)
    assert [get(stranger, url).status for url in urls] == [404] * len(urls)
    assert not any(one.data in get(stranger, url).body() for url, one in zip(urls, MADE.values(), strict=True))

    for number, (name, one) in enumerate([("report.pdf", MADE["report"]), ("rain.csv", MADE["table"])]):
        with visitor.page.expect_download() as download:
            visitor.chat.locator("a[href*='media/']").nth(number).click()
        assert download.value.path().read_bytes() == one.data
        assert download.value.suggested_filename == name
        expect(visitor.chat.locator("a[href*='media/']").nth(number)).to_contain_text(re.compile(re.escape(name)))
