"""Order in one chat and in the list: messages are erased, texts found, versions are a tree, and chats have folders."""

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import expect

from tests.conftest import CONFIG, App, Visit
from tests.peers.axe import grave


@pytest.mark.gate("A message is erased with what follows it; a text is found in the chat, and a version in its tree.")
def test_chat_is_searched_shown_as_a_tree_and_cut(app: App, visit: Visit) -> None:
    visitor = visit(app.url)
    page = visitor.page
    for text in ("!text A pear.", "!text An apple.", "!text Plums."):
        visitor.ask(text)
    visitor.chat.get_by_role("button", name="Edit").last.click()
    visitor.chat.locator(".edit textarea").fill("!text Other plums.")
    visitor.chat.get_by_role("button", name="Send").click()
    expect(visitor.chat).to_contain_text("Other plums.")
    visitor.idle()

    def choose(name: str) -> None:
        page.locator("#chats li", has=page.locator("[aria-current]")).hover()
        page.get_by_role("button", name=re.compile("^Options for")).first.click()
        page.get_by_role("menuitem", name=name).click()

    visitor.chat.locator(".turn").nth(1).hover()
    visitor.chat.get_by_role("button", name="Change the answer").nth(1).click()
    answer = page.get_by_role("textbox", name="Change the answer")
    expect(answer).to_have_value("An apple.")
    answer.fill("A **quince**.")
    visitor.shot("order-rewrite")
    assert grave(page) == []
    page.get_by_role("dialog", name="Change the answer").get_by_role("button", name="Save").click()
    expect(visitor.chat.locator(".turn")).to_have_count(2)
    expect(visitor.chat.locator(".turn").last).to_contain_text("Written by you.")
    expect(visitor.chat.locator(".answer strong")).to_have_text("quince")
    visitor.chat.get_by_role("button", name="Previous version of the answer").click()
    expect(visitor.chat).to_contain_text("Other plums.")

    choose("Search in this chat")
    field, bar = page.get_by_role("searchbox", name="Search in this chat"), page.locator("#find")
    field.fill("pear")
    expect(bar).to_contain_text("1 of 2")
    field.press("Enter")
    expect(bar).to_contain_text("2 of 2")
    expect(visitor.chat.locator(".mine[data-found]")).to_contain_text("A pear.")
    visitor.shot("order-find")
    assert grave(page) == []
    field.press("Escape")
    expect(bar).to_be_hidden()
    choose("Versions of this chat")
    dialog = page.get_by_role("dialog", name="Versions of this chat")
    expect(dialog.locator("li")).to_have_count(5)
    expect(dialog.locator("[aria-current]")).to_contain_text("Other plums.")
    visitor.shot("order-tree")
    assert grave(page) == []
    dialog.get_by_role("button", name=re.compile("^!text Plums")).click()
    expect(visitor.chat.locator(".turn").last).to_contain_text("1/2")
    visitor.chat.locator(".turn").nth(1).hover()
    visitor.chat.get_by_role("button", name="Delete this message and what follows it").nth(1).click()
    page.get_by_role("dialog", name="Delete this version?").get_by_role("button", name="Delete").click()
    expect(visitor.chat.locator(".turn").last).to_contain_text("quince")
    expect(visitor.chat.locator(".versions")).to_have_count(0)
    visitor.chat.get_by_role("button", name="Delete this message and what follows it").nth(1).click()
    question = page.get_by_role("dialog", name="Delete this message and what follows it?")
    visitor.shot("order-erase")
    assert grave(page) == []
    question.get_by_role("button", name="Delete").click()
    expect(visitor.chat.locator(".turn")).to_have_count(1)
    expect(visitor.chat).not_to_contain_text("apple")
    page.reload()
    expect(visitor.chat).to_contain_text("A pear.")
    expect(visitor.chat.locator(".turn")).to_have_count(1)

    page.evaluate("document.addEventListener('composer:stop', () => (globalThis.isStopped = true))")
    visitor.say("!text Begun. !stall-after 600")
    expect(visitor.chat).to_contain_text("Begun.")
    choose("Search in this chat")
    field.press("Escape")
    expect(bar).to_be_hidden()
    assert not page.evaluate("globalThis.isStopped")
    visitor.box.press("Escape")
    visitor.idle()
    assert page.evaluate("globalThis.isStopped")

    page.get_by_role("searchbox", name="Search chats").fill("plums")
    expect(page.locator("#chats .none")).to_contain_text("No chat has these words.")


@pytest.mark.gate("A chat is put into a folder, whose new chats take its model and instructions.")
def test_chats_are_put_into_folders(app: App, visit: Visit) -> None:
    visitor = visit(app.url)
    page, menu = visitor.page, visitor.page.locator("#chats-menu")
    visitor.ask("!text A pear.")
    page.get_by_role("button", name="Options for !text A pear.").focus()
    page.keyboard.press("Enter")
    menu.get_by_role("menuitem", name="Move to a folder…").focus()
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog", name="Folder of this chat")
    expect(dialog.get_by_role("textbox", name="New folder")).to_be_focused()
    expect(dialog.get_by_role("button", name="No folder")).to_have_count(0)
    visitor.shot("folder-move")
    assert grave(page) == []
    page.keyboard.type("Fruit")
    page.keyboard.press("Enter")
    folder = page.get_by_role("region", name="Fruit")
    expect(folder.locator("li a")).to_be_focused()
    expect(folder.locator("li")).to_contain_text("A pear.")
    folder.get_by_role("button", name="Options of the folder Fruit").click()
    options = page.get_by_role("dialog", name="Folder")
    options.get_by_role("textbox", name="Name").fill(" ")
    options.get_by_role("button", name="Save").click()
    expect(options.get_by_role("status")).to_have_text("A folder needs a name.")
    options.get_by_role("textbox", name="Name").fill("Red fruit")
    options.get_by_role("textbox", name="Instructions").fill("Speak of red fruit.")
    visitor.shot("folder-options")
    assert grave(page) == []
    options.get_by_role("button", name="Save").click()
    expect(options).to_be_hidden()
    folder = page.get_by_role("region", name="Red fruit")
    folder.get_by_role("button", name="New chat in the folder Red fruit").click()
    expect(page.locator("#into")).to_have_text("New chat in the folder Red fruit")
    visitor.shot("folder-begin")
    assert grave(page) == []
    visitor.ask("!echo-system")
    expect(page.locator("#into")).to_be_hidden()
    expect(folder.locator("li")).to_have_count(2)
    page.reload()
    fold = folder.get_by_role("button", name="Red fruit 2", exact=True)
    expect(fold).to_have_attribute("aria-expanded", "true")
    expect(folder.locator("li")).to_have_count(2)
    fold.press("Enter")
    expect(folder.locator("li")).to_have_count(0)
    visitor.shot("folder-closed")
    folder.get_by_role("button", name="Options of the folder Red fruit").click()
    options.get_by_role("button", name="Delete the folder").click()
    expect(options.get_by_role("status")).to_contain_text("Its chats stay")
    options.get_by_role("button", name="Delete the folder").click()
    expect(page.locator("#chats .folder")).to_have_count(0)
    expect(page.locator("#chats li")).to_have_count(2)


RICH = """# Pears

A *ripe* pear is **soft**, see `ripe()`:

- one
- two
  1. inner

| Fruit | Price |
|---|---:|
| Pear | 2 |

```python
def ripe(pear):
    return "yes"  # soft
```

> Said somebody.
"""


@pytest.mark.gate("An answer can be shared as a picture.")
def test_answer_is_shared_as_a_picture(app: App, visit: Visit) -> None:
    visitor = visit(app.url)
    page = visitor.page
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    visitor.ask(f"!text {RICH}")
    visitor.chat.locator(".turn").last.hover()
    visitor.chat.get_by_role("button", name="Share as a picture").click()
    dialog = page.get_by_role("dialog", name="Share as a picture")
    picture = dialog.get_by_role("img")
    expect(picture).to_have_js_property("naturalWidth", 1440)
    visitor.shot("picture")
    assert grave(page) == []
    dialog.get_by_role("button", name="Copy picture").click()
    expect(dialog.get_by_role("status")).to_have_text("Copied")
    assert page.evaluate("navigator.clipboard.read().then(([one]) => one.types)") == ["image/png"]
    with page.expect_download() as saving:
        dialog.get_by_role("button", name="Download the picture").click()
    assert saving.value.suggested_filename == "Answer.png"
    assert saving.value.path().read_bytes().startswith(b"\x89PNG")
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    page.emulate_media(color_scheme="dark")
    visitor.chat.get_by_role("button", name="Share as a picture").click()
    expect(picture).to_have_js_property("naturalWidth", 1440)
    visitor.shot("picture-dark")
    ground, ink = picture.evaluate(
        """async (image) => {
          const canvas = new OffscreenCanvas(image.naturalWidth, image.naturalHeight);
          const context = canvas.getContext("2d");
          context.drawImage(image, 0, 0);
          const { data } = context.getImageData(0, canvas.height - 300, canvas.width, 300);
          const light = [...data].filter((_, n) => n % 4 === 0);
          return [light[0], Math.max(...light.slice(0, 100000))];
        }"""
    )
    assert ground < 60 < 150 < ink
    page.keyboard.press("Escape")
    page.emulate_media(color_scheme="light")


def test_page_offers_to_duplicate_its_space_alone(app: App, start_app: Callable[..., App], visit: Visit) -> None:
    link = 'a[href*="duplicate"]'
    assert visit(app.url).page.locator(link).count() == 0
    page = visit(start_app(CONFIG, SPACE_ID="ada/chat").url).page
    duplicate = page.get_by_role("link", name="Duplicate this Space")
    expect(duplicate).to_have_attribute("href", "https://huggingface.co/spaces/ada/chat?duplicate=true")
    expect(duplicate).to_have_attribute("rel", "noopener")
