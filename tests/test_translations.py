"""The page's own words: the same in five languages, chosen by the browser, and none of them forgotten."""

import re
import string
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from agent.fetch.sentences import SENTENCES as GUARD
from agent.history.sentences import SENTENCES as STORE
from agent.local.sentences import SENTENCES as SERVERS
from agent.local.sentences import failed
from agent.web.sentences import SENTENCES as UPLOADS
from playwright.sync_api import expect

from agent.errors import InputError
from agent.fetch import fetch
from agent.i18n import LocalizedText
from agent.i18n import translator as table
from agent.i18n.translator import LANGUAGES, Translator, negotiate
from agent.limits import FAILURE_POLICIES
from agent.local.weights import BETTER, SMOLLM2
from agent.media.sentences import SENTENCES as FILES
from agent.media.store import MediaStore
from agent.media.transcribe import SENTENCES as READING
from agent.messages.adapt import SENTENCES as PROMPTS
from agent.models.catalog import load_catalog
from agent.providers.errors import SENTENCES
from agent.result import SENTENCES as OPTIONS
from agent.runtime.outcome import INTERNAL_ERROR, NOT_SEALED
from agent.runtime.outcome import SENTENCES as ENDINGS
from agent.runtime.retry import queued
from agent.runtime.tool_sessions import SENTENCES as TOOLS
from agent.suspension.sentences import SENTENCES as SUSPENDED
from agent.web.chat.attachments import message_parts, plan_attachments
from agent.web.chat.transcript import LOST
from agent.web.ui.components import attachments
from tests import media_files
from tests.conftest import App, Visitor

Visit = Callable[..., Visitor]
AGENT = Path(table.__file__).parents[1]
ALL: dict[str, dict[str, dict[str, str]]] = tomllib.loads(
    (Path(table.__file__).parent / "words.toml").read_text(encoding="utf-8")
)
EACH = [(section, key) for section, keys in ALL.items() for key in keys]


def fields(sentence: str) -> list[str]:
    return sorted(name for _, name, _, _ in string.Formatter().parse(sentence) if name is not None)


def test_translations_are_complete_and_keep_fields() -> None:
    for section, key in EACH:
        said = ALL[section][key]
        assert tuple(said) == LANGUAGES, key
        assert all(sentence.strip() == sentence != "" for sentence in said.values()), key
        assert len({tuple(fields(sentence)) for sentence in said.values()}) == 1, key
    assert not set(ALL["say"]) & set(ALL["static"])


def test_every_word_is_used() -> None:
    """Names made of two parts are found by their first part."""
    code = "\n".join(path.read_text(encoding="utf-8") for path in (AGENT / "web").rglob("*.[pj][ys]"))
    code += (AGENT / "i18n" / "translator.py").read_text(encoding="utf-8")
    made = ("tools_", "asks_", "example_", "key_", "does_")
    for section, key in EACH:
        if section not in ("labels", "said", "source") and not key.startswith(made):
            assert re.search(rf'"{key}"|said\.{key}\b|\'{key}\'', code), key


def test_catalogue_has_every_english_sentence() -> None:
    said = {key: one["en"] for key, one in ALL["said"].items()}
    made = {kind: one.sentence for kind, one in FAILURE_POLICIES.items() if one.sentence and kind != "withheld"}
    made |= SENTENCES | READING | FILES | GUARD | SERVERS | STORE | SUSPENDED | TOOLS | UPLOADS | ENDINGS
    made |= OPTIONS | PROMPTS
    made |= {ending.sayings[0].key: ending.detail for ending in (INTERNAL_ERROR, NOT_SEALED)} | {"lost": LOST}
    line = {1: "next_in_line", 2: "in_line"}
    made |= {line[count]: queued(count).sentence.replace("2", "{count}") for count in line}
    assert {key: said.get(str(key)) for key in made} == {str(key): sentence for key, sentence in made.items()}
    # All other sentences are made where they are used.
    code = "\n".join(path.read_text(encoding="utf-8") for path in AGENT.rglob("*.py"))
    assert not [key for key in said.keys() - made.keys() if f'"{key}"' not in code]


def test_catalogue_has_exactly_the_model_sources() -> None:
    folders = (AGENT / "providers", AGENT / "local")
    code = "\n".join(path.read_text(encoding="utf-8") for folder in folders for path in folder.rglob("*.py"))
    assert {weights.spec.source for weights in (*BETTER, SMOLLM2)} <= set(ALL["source"])
    assert not [source for source in ALL["source"] if f'"{source}"' not in code]
    assert all(said["en"] == source for source, said in ALL["source"].items())
    assert Translator("de").source("a vLLM server") == "ein vLLM-Server"
    assert Translator("de").source("OpenAI") == "OpenAI"


def test_unknown_text_is_left_to_its_author() -> None:
    german = Translator("de")
    assert german.render((LocalizedText("nobody_says_this"),)) == ""
    assert german.render((LocalizedText("tried", {"count": 2}), LocalizedText("nobody_says_this"))) == ""
    assert german.render(()) == ""
    late = LocalizedText("late", {"who": LocalizedText("model_server")})
    again = LocalizedText("try_again", {"seconds": 2, "reason": late, "number": 2, "most": 4})
    assert german.render((again,)) == "2 s warten: Der Modellserver hat nicht rechtzeitig geantwortet; Versuch 2 von 4"


SPEC = replace(load_catalog().find("Qwen/Qwen3-VL-8B-Instruct"), label="M")
PANEL = {
    (True, "a.png"): "a.png: wird gesendet, wie es ist",
    (True, "b.md"): "b.md: wird als Text gesendet",
    (True, "c.heic"): "c.heic: umgewandelt (HEIC zu JPEG, 2000 auf 1568 px)",
    (True, "d.png"): "d.png ist ein Bild (PNG), das beschädigt oder abgeschnitten ist.",
    (True, "e.bin"): "e.bin ist weder ein Bild noch ein Ton noch ein Text, der sich lesen lässt.",
    (False, "a.png"): "M kann keine Bilder sehen. Entfernen Sie a.png, oder wählen Sie ein Modell, das es kann.",
}


@pytest.mark.parametrize(("sees", "name"), PANEL, ids=str)
async def test_attachment_outcome_is_in_german(tmp_path: Path, sees: bool, name: str) -> None:
    picture = media_files.picture("PNG", (300, 300))
    photo = media_files.picture("HEIF", (2000, 1500))
    data = {"a.png": picture, "b.md": b"# Hello", "c.heic": photo, "d.png": picture[:200], "e.bin": b"MZ"}
    (tmp_path / name).write_bytes(data[name])
    panel = attachments(
        await plan_attachments([tmp_path / name], replace(SPEC, image=sees), max_bytes=10**7), Translator("de")
    )
    assert PANEL[sees, name] in panel


async def test_too_many_files_is_in_german(tmp_path: Path) -> None:
    files = [tmp_path / f"{number}.png" for number in range(10)]
    for file in files:
        file.write_bytes(media_files.picture("PNG"))
    said = "M nimmt in einer Nachricht höchstens 8 Bilder an. Senden Sie {} in einer anderen."
    panel = attachments(await plan_attachments(files, SPEC, max_bytes=10**7), Translator("de"))
    assert [said.format(file.name) in panel for file in files] == [False] * 8 + [True] * 2
    value = {"text": "See", "files": list(map(str, files))}
    with pytest.raises(InputError) as refused:
        await message_parts(value, spec=SPEC, media=MediaStore(tmp_path / "media"), owner="ann", max_bytes=10**7)
    assert Translator("de").render(refused.value.sayings) == f"{said.format('8.png')} {said.format('9.png')}"
    assert (
        str(refused.value)
        == Translator("en").render(refused.value.sayings)
        != Translator("de").render(refused.value.sayings)
    )


async def test_refused_link_is_explained_in_german() -> None:
    with pytest.raises(InputError) as refused:
        await fetch("http://127.0.0.1/x.png", kinds=["image/*"], max_bytes=10, seconds=5)
    said = "127.0.0.1 liegt nicht im öffentlichen Internet; von dort wird nichts geholt."
    assert Translator("de").render(refused.value.sayings) == said


def test_failed_fetch_is_explained_in_german() -> None:
    error = failed("fetch_failed", what="toy.gguf", reason=LocalizedText("fetch_late"))
    assert str(error) == "toy.gguf could not be fetched: the server did not answer in time."
    assert Translator("de").render(error.sayings) == (
        "toy.gguf ließ sich nicht holen: der Server antwortete nicht rechtzeitig."
    )


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
@pytest.mark.parametrize(
    "language", [pytest.param(one, marks=SPEAKS if one in ("de", "zh") else ()) for one in LANGUAGES]
)
def test_page_speaks_visitor_language(visit: Visit, app: App, language: str) -> None:
    visitor = visit(app.url, locale=LOCALES[language])
    page, words = visitor.page, Translator(language)

    def browser_word(key: str) -> str:
        return ALL["browser"][key][language]

    expect(visitor.chat.locator(".empty")).to_have_text(words("empty"))
    for name in ("question", "riddle", "code", "table"):
        expect(visitor.chat.get_by_role("button", name=words(f"example_{name}"))).to_be_visible()
    expect(page.locator("#new")).to_have_text(words("new_chat"))
    expect(page.locator("#about")).to_have_text(f"Qwen3-8B · {words.source('a vLLM server')}")
    expect(visitor.box).to_have_attribute("placeholder", words("message"))
    expect(visitor.submit).to_have_attribute("aria-label", ALL["labels"]["Submit"][language])
    expect(visitor.chat.get_by_role("log")).to_have_attribute("aria-label", browser_word("chat"))
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


@pytest.mark.browser
def test_ending_of_an_answer_is_in_german(visit: Visit, app: App) -> None:
    visitor = visit(app.url, locale="de-DE")
    problem, caption = visitor.chat.locator(".problem").last, visitor.chat.locator(".caption").last
    stop = visitor.page.locator("#composer .input-row > .stop-button")
    ends = {
        "!status 401": "Der Modellserver hat den Schlüssel abgelehnt. Prüfen Sie VLLM_API_KEY.",
        "!cut 5": "Die Antwort brach ab: der Modellserver hat sie zu früh beendet.",
    }
    for script, sentence in ends.items():
        visitor.ask(script)
        expect(problem).to_have_text(sentence)
        visitor.page.reload()
        expect(problem).to_have_text(sentence)
    visitor.say("!stall-after 3")
    expect(stop).to_be_visible()
    expect(visitor.bubbles.last).to_contain_text("word2")
    stop.click()
    expect(caption).to_contain_text("Angehalten; der Modellserver war nach")
    visitor.idle()
    visitor.say("!status 429 30")
    waiting = visitor.chat.locator(".waiting + .caption")
    expect(waiting).to_contain_text("s warten, der Anbieter bittet darum")
    stop.click()
    visitor.idle()
    visitor.shot("words-ends-de")


@pytest.mark.browser
def test_missing_local_model_is_explained_in_german(
    visit: Visit, start_app: Callable[..., App], tmp_path: Path
) -> None:
    missing = str(tmp_path / "no-model.gguf")
    app = start_app(VLLM_BASE_URL="", LOCAL_MODEL=missing)
    visitor = visit(app.url, locale="de-DE", ready=False)
    said = f"LOCAL_MODEL nennt {missing!r}, und diese Datei gibt es nicht."
    expect(visitor.page.locator("#notice")).to_have_text(said)
    visitor.shot("words-no-model-de")
