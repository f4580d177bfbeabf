"""The printed page: a document with the whole chat, in light colours, without the controls of the page."""

from playwright.sync_api import expect

from tests.conftest import App, Visit

WORDS = " ".join(f"word{number}" for number in range(60))
CELLS = " | ".join(f"column_{number} with words" for number in range(9))
ANSWER = "\\n".join(
    [
        "!reasoning Hm. !text # Head\\n",
        f"{WORDS}. See [the site](https://example.org/a?b=c), and https://example.com/plain too.\\n",
        f"| {CELLS} |\\n|{'---|' * 9}\\n| {CELLS} |\\n",
        f"```python\\ndef function({', '.join(f'argument_{n}' for n in range(20))}): pass\\n```",
    ]
)
A4 = {"width": 658, "height": 972}
"""A sheet without its margins, in CSS pixels."""
HIDDEN = (
    "#dock",
    "#about",
    "#chats",
    "#settings",
    "#help",
    "#new",
    ".turn footer button",
    ".versions",
    ".tools",
    ".to-end",
    ".earlier",
)
GROUNDS = """() => [...new Set([...document.querySelectorAll(":has(#chat)")]
  .map((one) => getComputedStyle(one).backgroundColor))]"""
AFTER = "one => getComputedStyle(one, '::after').content"


def test_printed_chat_is_a_document(own: App, visit: Visit) -> None:
    visitor = visit(own.url, dark=True, fresh=True)
    page, chat = visitor.page, visitor.chat
    visitor.allow_tools()
    visitor.ask(ANSWER)
    visitor.ask("!tool make !text Made.")
    page.locator("#chats li a").first.wait_for()
    page.emulate_media(media="print", color_scheme="dark")
    page.set_viewport_size(A4)  # pyright: ignore[reportArgumentType]
    for hidden in HIDDEN:
        expect(page.locator(hidden).locator("visible=true")).to_have_count(0)
    expect(page.get_by_role("heading", level=1).first).to_contain_text("!reasoning")
    for around in (chat, visitor.log):
        assert around.evaluate("one => getComputedStyle(one).overflow") == "visible"
    assert chat.evaluate("chat => chat.scrollHeight - chat.clientHeight") <= 1, "all of it is on the sheets"
    assert page.evaluate("document.documentElement.scrollHeight") > A4["height"]
    expect(chat.locator(".answer p").filter(has_text="word0").first).to_have_css("color", "rgb(0, 0, 0)")
    assert page.evaluate(GROUNDS) == ["rgba(0, 0, 0, 0)"], "the paper is seen"
    expect(visitor.mine.first).to_have_css("border-left-style", "solid")
    named, plain = (chat.locator(f".answer a[href*='{url}']") for url in ("a?b=c", "plain"))
    assert [named.evaluate(AFTER), plain.evaluate(AFTER)] == ['" (https://example.org/a?b=c)"', "none"]
    expect(chat.get_by_text("Hm.", exact=True)).to_be_hidden()
    visitor.shot("print")
