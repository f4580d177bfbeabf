"""The page's own words: the same in five languages, chosen by the browser, and none of them forgotten."""

import re
import string
import tomllib
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from agent.ui import words as table
from agent.ui.words import LANGUAGES, Words, words_for
from tests.conftest import App, Visitor

UI = Path(table.__file__).parent
ALL: dict[str, dict[str, dict[str, str]]] = tomllib.loads((UI / "words.toml").read_text(encoding="utf-8"))
EACH = [(section, key) for section, keys in ALL.items() for key in keys]


def fields(sentence: str) -> list[str]:
    return sorted(name for _, name, _, _ in string.Formatter().parse(sentence) if name is not None)


def test_every_word_is_there_in_every_language_with_the_same_places() -> None:
    for section, key in EACH:
        said = ALL[section][key]
        assert tuple(said) == LANGUAGES, key
        assert all(sentence.strip() == sentence != "" for sentence in said.values()), key
        assert len({tuple(fields(sentence)) for sentence in said.values()}) == 1, key
    assert not set(ALL["say"]) & set(ALL["static"])


def test_every_word_is_used() -> None:
    """Names made of two parts are looked for by the first."""
    code = "\n".join(path.read_text(encoding="utf-8") for path in UI.glob("*.[pj][ys]"))
    made = ("tools_", "asks_", "example_", "key_", "does_")
    for section, key in EACH:
        if section != "labels" and not key.startswith(made):
            assert re.search(rf'"{key}"|said\.{key}\b|\'{key}\'', code), key


HEADERS = {
    "": "en",
    "de": "de",
    "de-AT,de;q=0.9,en;q=0.8": "de",
    "zh-CN,zh;q=0.9": "zh",
    "zh-TW": "zh",
    "ko-KR": "ko",
    "FR-ca": "fr",
    "it-IT,de;q=0.9": "en",  # the first decides, as it does for Gradio's own words
    "*": "en",
    "\x00;;;,,,": "en",
    "den-CA": "en",
}


@pytest.mark.parametrize(("header", "language"), HEADERS.items())
def test_the_browser_chooses(header: str, language: str) -> None:
    assert words_for(header) == Words(language)


LOCALES = {"en": "en-US", "zh": "zh-CN", "ko": "ko-KR", "de": "de-DE", "fr": "fr-FR"}


@pytest.mark.browser
@pytest.mark.parametrize("language", LANGUAGES)
def test_the_page_speaks_the_visitors_language(browser: Browser, app: App, language: str) -> None:
    context = browser.new_context(
        locale=LOCALES[language], viewport={"width": 1100, "height": 900}, reduced_motion="reduce"
    )
    visitor = Visitor(context.new_page())
    visitor.open(app.url)
    page, words = visitor.page, Words(language)

    def browser_word(key: str) -> str:
        return ALL["browser"][key][language]

    expect(visitor.chat.locator(".empty")).to_have_text(words("empty"))
    for name in ("question", "riddle", "code", "table"):
        expect(visitor.chat.get_by_role("button", name=words(f"example_{name}"))).to_be_visible()
    expect(page.locator("#new")).to_have_text(words("new_chat"))
    expect(visitor.box).to_have_attribute("placeholder", words("message"))
    expect(visitor.submit).to_have_attribute("aria-label", ALL["labels"]["Submit"][language])
    visitor.shot(f"words-empty-{language}")
    page.get_by_role("button", name=ALL["labels"]["Toggle Sidebar"][language]).click()
    for name in ("system", "reasoning", "tools", "temperature", "max_tokens"):
        expect(page.get_by_label(words(name)).first).to_be_in_viewport()
    expect(page.locator("#settings")).to_contain_text(words("settings_hold"))
    expect(page.locator("#tools")).to_contain_text(words("tools_native"))
    page.get_by_label(words("tools"), exact=True).check()
    visitor.shot(f"words-settings-{language}")
    page.get_by_role("button", name=ALL["labels"]["Toggle Sidebar"][language]).click()
    visitor.ask('!reasoning Hm. !text Yes. !tool calculate {"expression": "6*7"}')
    titles = visitor.chat.locator(".bot.message > .message > * > .thought-group > .title")
    expect(titles.nth(0)).to_contain_text(words("reasoning"))
    expect(titles.nth(1)).to_contain_text(words("tool", name="calculate"))
    caption = re.escape(words("first_token", seconds="#")).replace("\\#", r"[\d.]+")
    expect(visitor.chat.locator(".caption").last).to_have_text(re.compile(caption))
    choice = page.locator("#model input")
    choice.click()
    expect(page.get_by_role("listbox")).to_contain_text(words("needs_key"))
    choice.fill("gpt-6-luna")
    choice.press("Enter")
    said = page.locator("#key-said")
    expect(said).to_contain_text(words("key_missing", model="GPT-6 Luna", provider="OpenAI"))
    expect(page.locator("#key-box").get_by_role("button")).to_have_text(words("use_key"))
    page.keyboard.press("Control+/")
    expect(page.get_by_role("dialog", name=browser_word("shortcuts"))).to_contain_text(browser_word("does_newline"))
    visitor.shot(f"words-key-{language}")
    context.close()
