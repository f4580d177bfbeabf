"""What is kept about the visitor, in the settings: the summary, the download, and the deletion of everything."""

import json
import re

from playwright.sync_api import expect

from tests.conftest import App, Visit, becomes


def test_visitor_deletes_everything(app: App, visit: Visit) -> None:
    visitor = visit(app.url, phone=True, dark=True)
    page = visitor.page
    visitor.ask("!text Yes. Quizzaciously")
    expect(page).to_have_url(re.compile("/c/"))
    visitor.open_settings()
    kept, state = page.locator("#own-data"), page.locator("#own-data").get_by_role("status")
    expect(state).to_have_text(re.compile(r"Chats: 1, messages: 2, files: 0, together [\d.]+ kB\."))
    with page.expect_download() as every:
        kept.get_by_role("button", name="Download everything").click()
    assert "Quizzaciously" in json.dumps(json.loads(every.value.path().read_text()))
    kept.scroll_into_view_if_needed()
    visitor.shot("own-data-dark-phone")
    drop = kept.get_by_role("button", name="Delete everything")
    asked = page.get_by_role("dialog", name="Delete everything")
    drop.focus()
    page.keyboard.press("Enter")
    expect(asked).to_be_visible()
    expect(asked).to_contain_text("saved prompts")
    expect(asked.get_by_role("button", name="Cancel")).to_be_focused()
    visitor.shot("own-data-ask-dark-phone")
    page.keyboard.press("Escape")
    expect(asked).to_be_hidden()
    expect(state).to_have_text(re.compile("Chats: 1"))
    prompt, numbers = page.get_by_label("System prompt"), page.locator("#settings input[type=number]")
    usual = prompt.input_value()
    assert [one.input_value() for one in numbers.all()] == ["0.7", ""]
    for field, value in ((prompt, "Be brief."), (numbers.first, "0.3"), (numbers.last, "64")):
        field.fill(value)
        field.blur()
    tools, extract = page.locator("#tools input"), page.locator("#extract-text input")
    tools.check()
    extract.check()
    visitor.close_settings()
    visitor.choose("openai:gpt-6-luna")
    expect(page.locator("#about")).to_contain_text("Luna")
    visitor.box.fill("A draft")
    page.evaluate("localStorage.setItem('prompts', JSON.stringify([{ name: 'Mine', text: 'My prompt' }]))")
    visitor.open_settings()
    drop.click()
    asked.get_by_role("button", name="Delete everything").click()
    expect(state).to_have_text("Nothing is kept any more: 0 chats, 0 messages, 0 files.")
    expect(page).not_to_have_url(re.compile("/c/"))
    expect(page.locator("#chats li")).to_have_count(0)
    becomes([], lambda: page.get_by_text("Quizzaciously").evaluate_all("all => all.map((one) => one.outerHTML)"))
    expect(page.locator("#model-button")).to_have_text("Qwen3-8B")
    expect(visitor.box).to_have_value("")
    assert page.evaluate("localStorage.getItem('prompts')") is None
    assert "draft" not in page.evaluate("sessionStorage.getItem('drafts') ?? ''")
    expect(prompt).to_have_value(usual)
    assert [one.input_value() for one in numbers.all()] == ["0.7", ""]
    assert not tools.is_checked()
    assert not extract.is_checked()
    visitor.shot("own-data-gone-dark-phone")
    becomes([], lambda: app.files_with("Quizzaciously"))  # it is wiped in steps
    visitor.close_settings()
    visitor.ask("!text Yes. Another one")
    visitor.open_settings()
    expect(state).to_have_text(re.compile("Chats: 1, messages: 2"))
