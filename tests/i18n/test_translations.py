"""The catalogues are complete, and the page uses the browser's language."""

import ast
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import replace
from datetime import date
from decimal import Decimal
from functools import cache
from pathlib import Path
from string import Formatter

import catalogues
import pytest
from babel.dates import format_date
from babel.messages.pofile import read_po, write_po
from babel.numbers import parse_decimal
from hypothesis import given
from hypothesis import strategies as st
from playwright.sync_api import expect
from pydantic import TypeAdapter, ValidationError
from pydantic_ai.messages import ModelRequest, UserPromptPart

from agent.errors import InputError, LocalModelError, combine_errors
from agent.fetch import fetch
from agent.history import Entry, Note
from agent.history.codec import dump_entries, load_entries
from agent.history.values import StoredText
from agent.i18n.text import N_, _, alternatives, decimal, first_sentence, joined, listed, ngettext
from agent.i18n.translator import LANGUAGES, Translator, negotiate, read_forms
from agent.models.catalog import load_catalog
from agent.rendering.steps import tool_title
from agent.transfer.document import Block
from agent.transfer.export import to_markdown
from agent.web.chat.attachments import message_parts, plan_attachments
from agent.web.ui.components import TITLES, TOOL_SUPPORT, render_attachments
from agent.web.ui.composer.component import Composer, SettingsPanel
from agent.web.ui.layout import i18n
from agent.web.ui.page_text import SCRIPTS, WIDGETS
from tests.conftest import ROOT, App, Visitor
from tests.support import media_files

pytestmark = pytest.mark.slow

Visit = Callable[..., Visitor]
sentences = cache(catalogues.collect)
GERMAN = Translator("de")


@pytest.mark.parametrize("path", catalogues.paths(), ids=lambda path: path.stem)
def test_catalogue_is_complete(path: Path) -> None:
    assert list(catalogues.problems(path, sentences())) == []


@pytest.mark.parametrize("path", catalogues.paths(), ids=lambda path: path.stem)
def test_translator_reads_what_babel_reads(path: Path) -> None:
    """Babel is not installed with the page."""
    theirs = {catalogues._forms(it.id)[0]: list(catalogues._forms(it.string)) for it in catalogues.load(path) if it.id}
    ours = read_forms(path.read_text(encoding="utf-8"))
    assert "Plural-Forms" in ours.pop("")[0]
    assert ours == theirs


@given(st.dates(), st.sampled_from(LANGUAGES))
def test_dates_are_written_as_babel_writes_them(day: date, language: str) -> None:
    assert Translator(language).date(day) == format_date(day, "long", locale=language)
    full = "EEEE, d MMMM y" if language == "en" else "full"
    assert Translator(language).weekday_and_date(day) == format_date(day, full, locale=language)


BROKEN: Mapping[str, tuple[Callable[[str], str], str]] = {
    "untranslated": (lambda text: text.replace('"Neuer Chat"', '""'), "'New chat' is not translated"),
    "missing": (lambda text: text.replace('msgid "New chat"', 'msgid "Newer chat"'), "'New chat' is missing"),
    "unused": (lambda text: text.replace('msgid "New chat"', 'msgid "Newer chat"'), "'Newer chat' is not used"),
    "other field": (lambda text: text.replace("{count} Bilder", "{number} Bilder"), "picture' has other fields"),
    "no plural": (lambda text: text.replace('[1] "{count} Bilder"', '[1] ""'), "'{count} picture' is not translated"),
    "fuzzy": (lambda text: text.replace('msgid "New chat"', '#, fuzzy\nmsgid "New chat"'), "is marked as fuzzy"),
    "white space": (lambda text: text.replace('"Neuer Chat"', '"Neuer Chat "'), "'New chat' has white space"),
    "no catalogue": (lambda text: text.replace("msgstr", "msgsrt"), "de.po: "),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_broken_catalogue_is_found(tmp_path: Path, fault: str) -> None:
    spoil, problem = BROKEN[fault]
    path = tmp_path / "de.po"
    path.write_text(spoil((ROOT / "agent/i18n/de.po").read_text(encoding="utf-8")), encoding="utf-8")
    assert any(problem in line for line in catalogues.problems(path, sentences()))


def test_update_keeps_translations_and_drops_what_is_unused(tmp_path: Path) -> None:
    path, before = tmp_path / "de.po", (ROOT / "agent/i18n/de.po").read_text(encoding="utf-8")
    path.write_text(before.replace('msgid "New chat"', 'msgid "Newer chat"'), encoding="utf-8")
    catalogues.update(path, sentences())
    assert path.read_text(encoding="utf-8") == before.replace('"Neuer Chat"', '""')


@pytest.mark.full
def test_new_language_is_one_file(tmp_path: Path) -> None:
    """A sixth language, in a copy of the package: the page offers it once its catalogue exists."""
    shutil.copytree(ROOT / "agent", tmp_path / "agent", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    with (ROOT / "agent/i18n/fr.po").open("rb") as file:
        catalogue = read_po(file, locale="it")
    for message in catalogue:
        message.string = "Nuova chat" if message.id == "New chat" else message.id
    with (tmp_path / "agent/i18n/it.po").open("wb") as file:
        write_po(file, catalogue)
    script = """
from agent.i18n.translator import negotiate
from agent.web.ui.layout import i18n
from agent.web.ui.page_files import texts_module
words = negotiate("it-IT,it;q=0.9")
said = texts_module("it")
print(words.language, i18n().translations["it"]["new_chat"], said.count('"new_chat": "Nuova chat"'))
"""
    out = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "it Nuova chat 1"


def test_each_sentence_gets_its_values() -> None:
    """A missing value would be an error only when the sentence is shown."""
    for path in (ROOT / "agent").rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in ("_", "ngettext"):
                message = ast.literal_eval(call.args[0])
                fields = {name for _text, name, _spec, _conversion in Formatter().parse(message) if name}
                values = {keyword.arg for keyword in call.keywords}
                values |= {"count"} if call.func.id == "ngettext" else set()
                assert None in values or values == fields, f"{path.name}:{call.lineno}: {message}"


def test_plurals_follow_the_language() -> None:
    before = [ngettext("{count} ahead of you", "{count} ahead of you", n) for n in (1, 2)]
    assert before == ["1 ahead of you", "2 ahead of you"]
    assert [GERMAN(text) for text in before] == ["1 vor Ihnen", "2 vor Ihnen"]
    none = ngettext("{count} picture", "{count} pictures", 0)
    assert (none, Translator("fr")(none), Translator("zh")(none)) == ("0 pictures", "0 image", "0 张图片")


def test_chinese_sentences_have_no_space_between_them() -> None:
    sentences = [_("The conversation is longer than {model} can read.", model="M"), _("Write an answer first.")]
    assert Translator("zh")(joined([*sentences, "End."])) == "对话超出了 M 能读取的长度。请先写下回答。End."
    assert joined(sentences) == "The conversation is longer than M can read. Write an answer first."


CAREFUL = {
    "fr": (r" [:;!?»](?:\s|$)|« |\w'\w", "Résultat\u00a0: X", "sont supprimées après 30 jours sans"),
    "zh": (r"[\u4e00-\u9fff}][:;,!?](?!name)|[\u4e00-\u9fff]\.", "结果\uff1aX", "在 30 天没有新消息后"),
}
"""A pattern that no sentence of the language matches, the name of a result, and part of a sentence with a number."""


@pytest.mark.parametrize("language", CAREFUL)
def test_marks_are_those_of_the_language(language: str) -> None:
    wrong, named, kept = CAREFUL[language]
    catalogue = catalogues.load(ROOT / f"agent/i18n/{language}.po")
    forms = [form for message in catalogue if message.id for form in catalogues._forms(message.string)]
    assert [form for form in forms if re.search(wrong, form) and "pip install" not in form] == []
    shown = "".join(to_markdown("T", "", [Block(type="result", text="42", title="X")], {}, Translator(language)))
    assert f"**{named}**" in shown
    assert kept in i18n(30).translations[language]["keep_days"]
    assert i18n(1).translations["en"]["keep_days"] == "Chats are deleted after 1 day without a message."


def test_plain_text_is_left_to_its_author() -> None:
    assert GERMAN("{not a field}") == "{not a field}"
    assert GERMAN(_("Nobody translates {this}.", this="this")) == "Nobody translates this."
    assert (joined([]), joined(["", "One."]), first_sentence("One. Two.")) == ("", "One.", "One")


def test_values_are_translated_too() -> None:
    late = _("{who} did not answer in time.", who=_("The model server"))
    again = _("{reason}; retrying in {seconds} s (try {number} of {most})", seconds=2, reason=late, number=2, most=4)
    assert again == "The model server did not answer in time; retrying in 2 s (try 2 of 4)"
    assert GERMAN(again) == "Der Modellserver hat nicht rechtzeitig geantwortet; neuer Versuch in 2 s (2 von 4)"
    assert (
        GERMAN(listed([_("to {rate} kHz, mono", rate=16), _("without its tags")]))
        == "auf 16 kHz, mono, ohne seine Tags"
    )
    assert GERMAN(alternatives(["A", "B", "C"])) == "A oder B oder C"


def test_numbers_are_written_as_the_reader_does() -> None:
    french = Translator("fr")
    said = _("{count} tokens/s", count=decimal(1234.56, 1))
    assert (said, GERMAN(said), french(said)) == ("1,234.6 tokens/s", "1.234,6 Token/s", "1\u202f234,6 jetons/s")
    limit = _("The message has {count:,} characters; {most:,} is the most.", count=200_001, most=200_000)
    assert "200,001" in limit
    assert "200.001" in GERMAN(limit)
    size = _("At most {most:g} MB can be attached at once.", most=0.5)
    assert "0,5 MB" in GERMAN(joined([_("Stopped after {time}.", time=size)]))
    dotted = _("{name} could not be read. Attach it again.", name="a.b,c 1.5")
    assert "a.b,c 1.5" in GERMAN(dotted)  # what is no number stays
    assert Translator("zh")(said).startswith("1,234.6")


def test_digits_of_quantities_are_grouped() -> None:
    tokens = ngettext("{count} token", "{count} tokens", 12_345)
    shown = [Translator(language)(tokens).split()[0] for language in ("en", "de")]
    assert shown == ["12,345", "12.345"]
    most = _("At most {count} with this model. Leave it empty for the model's own limit.", count=1_048_576)
    assert "1.048.576" in GERMAN(most)
    assert "12,345 MB" in _("{done}; one-time {size:.0f} MB download", done="x", size=12_345.4)
    for name in (_("page {page}", page=2024), _("Port {port} of {host} is not asked; the ports that are: {known}.",
                                                port=8080, host="a", known="b")):  # fmt: skip
        assert re.search("2024|8080", GERMAN(name)), "what is no quantity is not grouped"


@pytest.mark.parametrize("language", LANGUAGES[1:])
def test_sentences_are_not_left_in_english(language: str) -> None:
    read = catalogues.load(next(path for path in catalogues.paths() if path.stem == language))
    texts = [(one.id, one.string) for one in read if isinstance(one.id, str) and len(one.id.split()) > 2]
    same = [sentence for sentence, text in texts if sentence == text and re.search(r"[a-z]{3}", sentence)]
    assert [one for one in same if "{" not in one and "+" not in one] == []


@pytest.mark.parametrize(
    "others", ["gespräch|unterhaltung|konversation", r"\bdesign|farbschema|farbthema|erscheinungsbild|darstellung"]
)
def test_german_has_one_word_for_a_chat_and_for_colours(others: str) -> None:
    texts = [str(one.string) for one in catalogues.load(catalogues.paths()[0])]
    assert [text for text in texts if re.search(others, text, re.IGNORECASE)] == []


def test_dates_are_written_as_the_reader_does() -> None:
    day = date(2026, 11, 5)
    shown = {language: Translator(language).date(day) for language in LANGUAGES}
    assert shown == {
        "en": "November 5, 2026",
        "de": "5. November 2026",
        "fr": "5 novembre 2026",
        "ko": "2026년 11월 5일",
        "zh": "2026年11月5日",
    }


@given(st.sampled_from(LANGUAGES), st.floats(-1e9, 1e9), st.integers(0, 4))
def test_each_language_reads_its_own_numbers(language: str, value: float, digits: int) -> None:
    written = Translator(language)(decimal(value, digits))
    assert parse_decimal(written, locale=language, strict=True) == Decimal(f"{value:.{digits}f}")


def test_errors_are_joined() -> None:
    both = combine_errors(
        LocalModelError,
        InputError(_("{name} could not be read. Attach it again.", name="a")),
        InputError("As it was said."),
    )
    assert str(both) == "a could not be read. Attach it again. As it was said."
    assert GERMAN(both.text).endswith(" As it was said.")
    assert GERMAN(both.text) != str(both)


HELLO = ModelRequest([UserPromptPart("Hello")])
VALUES = st.integers() | st.floats(allow_nan=False) | st.text(st.characters(exclude_categories=["Cs"]))
TEXTS = st.recursive(
    st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.builds(lambda one, other: _("{one} and {other}", one=one, other=other), inner, inner | VALUES)
        | st.builds(lambda count: ngettext("{count} picture", "{count} pictures", count), st.integers(0, 9))
        | st.lists(inner, max_size=3).map(joined)
    ),
    max_leaves=6,
)


@given(TEXTS)
def test_stored_text_is_translated_as_before(text: str) -> None:
    adapter: TypeAdapter[str] = TypeAdapter(StoredText)
    (entry,) = load_entries(dump_entries([Entry(parent_id=None, message=HELLO, note=Note(detail=text))]))
    for again in (adapter.validate_json(adapter.dump_json(text)), deepcopy(text), entry.note.detail):
        assert (again, type(again)) == (text, type(text))
        assert [Translator(one)(again) for one in LANGUAGES] == [Translator(one)(text) for one in LANGUAGES]


def test_older_notes_are_read() -> None:
    """Earlier versions stored the English sentence, with a key and the values beside it."""
    note = TypeAdapter(Note).validate_python(
        {"ended": "limit", "detail": "Stopped after 3 steps.", "sayings": [{"key": "steps", "values": {"steps": 3}}]}
    )
    assert GERMAN(note.detail) == "Stopped after 3 steps."


@pytest.mark.parametrize("stored", [7, [], {}, {"message": "{a}", "plural": "", "values": {}, "parts": []}])
def test_damaged_text_is_refused(stored: object) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(StoredText).validate_python(stored)


def test_marks_return_the_sentence() -> None:
    assert N_("A {field}") == "A {field}"
    assert _("A {field}", field=1) == "A 1"


SPEC = replace(load_catalog().find("Qwen/Qwen3-VL-8B-Instruct"), label="M")


async def test_too_many_files_is_in_german(tmp_path: Path) -> None:
    files = [tmp_path / f"{number}.png" for number in range(10)]
    for file in files:
        file.write_bytes(media_files.picture("PNG"))
    said = "M nimmt in einer Nachricht höchstens 8 Bilder an. Senden Sie {} in einer anderen."
    panel = render_attachments(await plan_attachments(files, SPEC, max_bytes=10**7), Translator("de"))
    assert said.format("8.png, 9.png") in panel
    assert not any(f"{number}.png in einer" in panel for number in range(8))
    value = {"text": "See", "files": list(map(str, files))}
    with pytest.raises(InputError) as refused:
        await message_parts(value, spec=SPEC, owner="ann", max_bytes=10**7)
    assert GERMAN(refused.value.text) == said.format("8.png, 9.png")
    assert str(refused.value) == refused.value.text != GERMAN(refused.value.text)


async def test_refused_link_is_explained_in_german() -> None:
    with pytest.raises(InputError) as refused:
        await fetch("http://127.0.0.1/x.png", kinds=["image/*"], max_bytes=10, seconds=5)
    said = "127.0.0.1 liegt nicht im öffentlichen Internet; von dort wird nichts geholt."
    assert GERMAN(refused.value.text) == said


HEADERS = {
    "": "en",
    "de": "de",
    "de-AT,de;q=0.9,en;q=0.8": "de",
    "zh-CN,zh;q=0.9": "zh",
    "zh-TW": "zh",
    "ko-KR": "ko",
    "FR-ca": "fr",
    "it-IT,de;q=0.9": "en",  # the first language decides, as for Gradio's own text
    "*": "en",
    "\x00;;;,,,": "en",
    "den-CA": "en",
}


@pytest.mark.parametrize(("header", "language"), HEADERS.items())
def test_browser_chooses_language(header: str, language: str) -> None:
    assert negotiate(header) == Translator(language)


LOCALES = {"en": "en-US", "zh": "zh-CN", "ko": "ko-KR", "de": "de-DE", "fr": "fr-FR"}


SPEAKS = pytest.mark.gate("The page speaks the visitor's language.")


@pytest.mark.browser
@pytest.mark.parametrize("language", [pytest.param(one, marks=SPEAKS if one == "de" else ()) for one in LANGUAGES])
def test_page_speaks_visitor_language(visit: Visit, app: App, language: str) -> None:
    visitor = visit(app.url, locale=LOCALES[language])
    page, words = visitor.page, Translator(language)

    expect(page.locator("#greeting")).to_have_text(words(_("What can I help with?")))
    examples = page.get_by_role("group", name=words(_("Examples")), exact=True)
    for name in ("document", "tool", "preview", "question"):
        expect(examples.get_by_role("button", name=words(TITLES[name]), exact=True)).to_be_visible()
    expect(page.locator("#new")).to_have_text(words.template(WIDGETS["new_chat"]))
    expect(page.locator("#about")).to_have_text(f"Qwen3-8B · {words(_('a vLLM server'))}")
    expect(visitor.box).to_have_attribute("placeholder", words.template(WIDGETS["message"]))
    expect(visitor.submit).to_have_attribute("aria-label", words.template(Composer.LABELS["send"]))
    expect(visitor.log).to_have_attribute("aria-label", words.template(SCRIPTS["chat"]))
    visitor.shot(f"words-empty-{language}")
    page.get_by_role("button", name=words.template(SettingsPanel.LABELS["toggle"])).click()
    for name in ("system_message", "reasoning", "tools", "temperature", "max_tokens"):
        expect(page.get_by_label(words.template(SettingsPanel.LABELS[name])).first).to_be_in_viewport()
    expect(page.locator("#settings")).to_contain_text(words.template(SettingsPanel.LABELS["hold"]))
    expect(page.locator("#tools")).to_contain_text(words(TOOL_SUPPORT["native"]))
    page.locator("#tools input").check()
    expect(page.get_by_role("switch", name=words.template(SettingsPanel.LABELS["tools"]))).to_have_attribute(
        "aria-checked", "true"
    )
    visitor.shot(f"words-settings-{language}")
    page.get_by_role("button", name=words.template(SettingsPanel.LABELS["toggle"])).click()
    visitor.ask('!reasoning Hm. !text Yes. !tool calculate {"expression": "1/0"}')
    titles = visitor.chat.locator(".answer > .bubble > details > summary")
    expect(titles.nth(0)).to_contain_text(words.template(SettingsPanel.LABELS["reasoning"]))
    expect(titles.nth(1)).to_contain_text(words(tool_title("calculate")))
    expect(titles.nth(1)).to_contain_text(words(_("{expression} divides by zero", expression="'1/0'")))
    expect(visitor.chat.locator(".answer > .bubble")).to_have_count(4)  # reasoning, text, a tool, and text
    names = {".answer": _("Answer"), ".mine": _("Your message")}
    for part, name in names.items():
        expect(visitor.chat.locator(part)).to_have_accessible_name(words(name))
    caption = re.escape(words(_("{seconds} s to first token", seconds="#"))).replace("\\#", r"[\d.]+")
    expect(visitor.caption).to_have_text(re.compile(caption))
    page.locator("#model-button").click()
    choice = page.get_by_role("combobox", name=words.template(SCRIPTS["models_search"]))
    expect(page.get_by_role("listbox")).to_contain_text(words(_("needs a key")))
    for name in ("models_ready", "place_hosted", "ability_image", "ability_tools", "ability_reasoning"):
        expect(page.get_by_role("listbox")).to_contain_text(words.template(SCRIPTS[name]))
    choice.fill("gpt-6-luna")
    visitor.shot(f"words-models-{language}")
    choice.press("Enter")
    said = page.locator("#key-said")
    expect(said).to_contain_text(
        words(_("{model} needs an API key from {provider}.", model="GPT-6 Luna", provider="OpenAI"))
    )
    expect(page.locator("#key-box").get_by_role("button")).to_have_text(words(_("Use this key")))
    page.keyboard.press("Control+/")
    expect(page.get_by_role("dialog", name=words.template(SCRIPTS["shortcuts"]))).to_contain_text(
        words.template(SCRIPTS["does_newline"])
    )
    visitor.shot(f"words-key-{language}")
