"""Export and import on the page: in the menu of a chat and at the foot of the list."""

import json
import re
import zipfile
from pathlib import Path

import pytest
from playwright.sync_api import Download, expect

from tests.conftest import App, Visit, Visitor

ASKED = {"author": {"role": "user"}, "content": {"content_type": "text", "parts": ["Ships?"]}}
TOLD = {"author": {"role": "assistant"}, "content": {"content_type": "text", "parts": ["They float."]}}
CHATGPT = [
    {
        "title": "About ships",
        "mapping": {"a": {"parent": None, "message": ASKED}, "b": {"parent": "a", "message": TOLD}},
        "current_node": "b",
    }
]


def exported(visitor: Visitor, form: str) -> Download:
    """Export the only chat in this format from its menu."""
    page = visitor.page
    page.locator("#chats li").hover()
    page.locator("#chats li").get_by_role("button").click()
    with page.expect_download() as download:
        page.get_by_role("menuitem", name=form).click()
    return download.value


def another_chat(export: bytes, visitor: Visitor) -> bytes:
    """Return the export of the shown chat as one of a chat that is not here."""
    return export.replace(visitor.page.url.rpartition("/")[2].encode(), b"0" * 32)


@pytest.mark.gate("A chat can be exported and imported.")
def test_chat_is_exported_and_imported_on_the_page(app: App, visit: Visit, tmp_path: Path) -> None:
    visitor = visit(app.url)
    page = visitor.page
    visitor.ask("!reasoning Hm. !text **Bread** and water")
    expect(page.locator("#chats li")).to_have_count(1)
    shown = exported(visitor, "Export as a page")
    assert shown.suggested_filename.endswith(".html")
    assert "<strong>Bread</strong>" in shown.path().read_text()
    assert "0.0 s" not in shown.path().read_text()
    assert "**Bread**" in exported(visitor, "Export as Markdown").path().read_text()
    one = exported(visitor, "Export as JSON").path()
    foot, choose = page.locator("#chats-foot"), page.locator("#chats-foot input")
    with page.expect_download() as every:
        foot.get_by_role("button", name="Export all").click()
    assert len(json.loads(every.value.path().read_text())) == 2
    archive = tmp_path / "export.zip"
    with zipfile.ZipFile(archive, "w") as written:
        written.writestr("conversations.json", another_chat(one.read_bytes(), visitor))
    for count, (file, sentence) in enumerate(((one, "was there already"), (archive, "was imported")), 1):
        choose.set_input_files({"name": "file.json", "mimeType": "application/json", "buffer": file.read_bytes()})
        expect(page.locator("#chats li")).to_have_count(count)
        expect(foot.get_by_role("status")).to_have_text(f"1 chat {sentence}.")
        expect(foot.locator("p.bad")).to_have_count(0)
    expect(foot.get_by_role("progressbar")).to_be_hidden()
    page.locator("#chats li a").first.click()
    expect(visitor.mine).to_have_text(re.compile("Bread"))
    choose.set_input_files({"name": "x.json", "mimeType": "application/json", "buffer": json.dumps(CHATGPT).encode()})
    expect(page.locator("#chats li")).to_have_count(3)
    page.locator("#chats li a").first.click()
    expect(visitor.mine).to_have_text("Ships?")
    visitor.bubbles.first.hover()
    visitor.shot("imported")
    visitor.chat.get_by_role("button", name="Branch from here into a new chat").click()
    expect(page.locator("#chats li .title")).to_have_text(
        ["About ships (2)", "About ships", *map(re.compile, (r"Bread.* \(2\)$", r"Bread[^(]*$"))]
    )
    expect(visitor.chat).to_contain_text("They float.")
    choose.set_input_files({"name": "x.json", "mimeType": "application/json", "buffer": b"[{"})
    expect(foot.get_by_role("status")).to_have_text("The file is damaged or incomplete, so nothing was imported.")
    signs = foot.get_by_role("status").evaluate("(one) => getComputedStyle(one, '::before').maskImage")
    assert signs.startswith("url("), "it looks like what has gone well"
    visitor.shot("import-refused")
    expect(page.locator("#chats li")).to_have_count(4)
    page.locator("#chats li a").last.click()
    expect(foot.get_by_text("nothing was imported")).to_have_count(0)
    page.locator("#new").click()
    choose.set_input_files({"name": "x.json", "mimeType": "application/json", "buffer": b"[{"})
    expect(foot.get_by_role("status")).to_contain_text("nothing was imported")
    page.locator("#new").click()  # once more, though the chat is new already
    expect(foot.get_by_text("nothing was imported")).to_have_count(0)
    choose.set_input_files({"name": "x.json", "mimeType": "application/json", "buffer": b"[{"})
    expect(foot.get_by_role("status")).to_contain_text("nothing was imported")
    visitor.say("!text Hello.")
    expect(foot.get_by_text("nothing was imported")).to_have_count(0)
