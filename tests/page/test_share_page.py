"""The dialog with the links to a chat, and the page of a link as its reader sees it."""

import re

from playwright.sync_api import expect

from tests.conftest import App, Visit, Visitor

READ = "() => navigator.clipboard.readText()"


def share(visitor: Visitor, text: str) -> None:
    row = visitor.page.locator("#chats li").filter(has_text=text)
    row.hover()
    row.get_by_role("button").click()
    visitor.page.get_by_role("menuitem", name="Share", exact=True).click()


def test_owner_shares_and_reader_continues(app: App, visit: Visit) -> None:
    owner = visit(app.url)
    page = owner.page
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    owner.open_settings()
    page.locator("#system textarea").fill("Answer like a pirate.")
    page.keyboard.press("Tab")
    owner.close_settings()
    owner.ask("!text **Quizzaciously** said.\n\n| a | b |\n|---|---|\n| 1 | 2 |")
    share(owner, "Quizzaciously")
    dialog = page.get_by_role("dialog", name="Share this chat")
    expect(dialog).to_contain_text("It never shows API keys.")
    create, state = dialog.get_by_role("button", name="Create link"), dialog.get_by_role("status")
    expect(create).to_be_focused()
    expect(dialog.get_by_role("combobox", name="Expires after")).to_have_value("30")
    owner.shot("share-light")
    dialog.get_by_role("checkbox", name="System prompt").check()
    expect(dialog.locator(".prompt")).to_have_text("Answer like a pirate.")
    dialog.get_by_role("combobox").select_option(label="7 days")
    create.click()
    made = dialog.get_by_role("textbox", name="Link")
    expect(made).to_be_focused()
    expect(made).to_have_accessible_description("Copy the link and send it to your readers: it cannot be shown again.")
    address = made.input_value()
    selected = "(one) => one.value.slice(one.selectionStart, one.selectionEnd)"
    assert made.evaluate(selected) == address
    expect(create).to_be_hidden()
    expect(dialog.get_by_role("group", name="Show also")).to_be_hidden()
    expect(state).to_have_text("Copy the link and send it to your readers: it cannot be shown again.")
    dialog.get_by_role("button", name="Copy", exact=True).click()
    expect(state).to_have_text("Copied. Paste it into a message to your readers: it cannot be shown again.")
    expect(dialog.get_by_role("button", name="Copied", exact=True)).to_be_visible()
    owner.shot("share-made-light")
    assert re.fullmatch(re.escape(app.url) + r"/s/[\w-]{32}", address)
    assert page.evaluate(READ) == address
    [link] = dialog.get_by_role("listitem").all()
    expect(link).to_contain_text("System prompt")
    dialog.get_by_role("button", name="Another link").click()
    expect(create).to_be_focused()
    expect(made).to_be_hidden()
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    owner.ask("!text Later words")

    reader = visit(app.url, fresh=True, dark=True, phone=True)
    reader.page.goto("about:blank")  # the page that was open would report that its stream lost its visitor
    reader.page.context.clear_cookies()
    refused: list[str] = []
    reader.page.on("console", lambda said: refused.append(said.text) if said.type == "error" else None)
    reader.page.goto(address)
    expect(reader.page.locator("strong", has_text="Quizzaciously").last).to_be_visible()
    expect(reader.page.get_by_role("table").last).to_be_visible()
    expect(reader.page.get_by_text("Later words")).to_have_count(0)
    headings = reader.page.get_by_role("heading", level=2)
    expect(headings).to_have_text(["Author of this chat", "Qwen3-8B"])
    reader.page.get_by_text("System prompt").click()
    expect(reader.page.get_by_text("Answer like a pirate.")).to_be_visible()
    assert reader.page.evaluate("document.querySelector('nav img').naturalWidth") > 0
    reader.shot("link-dark-phone")
    assert refused == []
    reader.page.get_by_role("button", name="Continue this chat").click()
    expect(reader.page).to_have_url(re.compile(r"/c/[0-9a-f]{32}$"))
    expect(reader.mine).to_have_count(1)
    reader.idle()
    copy = reader.page.url
    reader.shot("link-copy-dark-phone")
    reader.chat.get_by_role("button", name="Branch from here into a new chat").click()
    expect(reader.page).not_to_have_url(copy)
    expect(reader.page.locator("#chats li")).to_have_count(2)
    expect(reader.mine).to_have_count(1)
    reader.ask("!text And on")
    expect(reader.mine).to_have_count(2)
    expect(owner.mine).to_have_count(2)

    page.goto(address)
    expect(page.get_by_role("heading", level=1)).to_contain_text("Quizzaciously")
    owner.shot("link-light")
    page.go_back()
    share(owner, "Quizzaciously")
    dialog.get_by_role("button", name="Revoke").click()
    expect(state).to_have_text("The link was revoked.")
    expect(dialog.get_by_role("listitem")).to_have_count(0)
    page.goto(address)
    expect(page.get_by_role("heading", level=1)).to_have_text("This link does not work")
    owner.shot("link-gone-light")
