"""A document dropped into the page: how it is handled, what the model gets of it, and what the page says was read."""

import json
import re

import pytest
from playwright.sync_api import expect

from tests.conftest import App, Visit
from tests.support.documents import pdf
from tests.support.scripted_server import Config, Running

SERVER = Config(rate=0, max_model_len=8_192)
FILLER = "\n".join(["The committee met and approved the minutes of its last meeting."] * 40)


@pytest.mark.gate("A question about a long document gets the right pages, and the page names them.")
def test_document_is_read_and_its_pages_are_named(own: App, visit: Visit, server: Running) -> None:
    fact = "\nThe rent of the hall is 812 euros."
    report = pdf([f"{FILLER}{fact if n == 7 else ''}" for n in range(1, 42)])
    visitor = visit(own.url)
    visitor.box.fill("!text It is 812. What is the rent of the hall?")
    visitor.attach(("report.pdf", report), ("locked.pdf", pdf(["Secret"], password="p")))
    rows = visitor.page.locator("#attached li")
    expect(rows.nth(0)).to_contain_text("report.pdf: 41 pages, read as text. Too long for")
    expect(rows.nth(1)).to_have_text("locked.pdf is protected by a password. Attach a copy without it.")
    visitor.shot("document-plan")
    visitor.box.press("Enter")
    expect(visitor.hint).to_contain_text("The reason is above the box.")
    expect(visitor.box).to_have_value("!text It is 812. What is the rent of the hall?")
    visitor.page.locator("#composer .file").nth(1).get_by_role("button", name="Remove file").click()
    expect(rows).to_have_count(1)
    visitor.box.press("Enter")
    expect(visitor.bubbles.filter(has_text="It is 812.")).to_be_visible()
    content = json.dumps(server.journal()[-1]["body"]["messages"][-1]["content"])
    assert "[Page 7]" in content
    assert "The rent of the hall is 812 euros." in content

    def shown() -> None:
        title = re.compile(r"Text read from report\.pdf: pages [\d, -]*\b7\b[\d, -]* of 41")
        expect(visitor.mine.locator("summary")).to_have_text(title)
        expect(visitor.chat.locator("footer .caption")).not_to_contain_text("report.pdf")  # it is named once
        expect(visitor.mine.get_by_role("link", name="report.pdf", exact=True)).to_be_visible()

    shown()
    visitor.shot("document-read")
    visitor.open(own.url)
    shown()
    visitor.page.locator("#chats li").hover()
    visitor.page.locator("#chats li").get_by_role("button").click()
    with visitor.page.expect_download() as download:
        visitor.page.get_by_role("menuitem", name="Export as a page").click()
    assert ">report.pdf</a>" in download.value.path().read_text()
