"""Dictation, answers read aloud, and the conversation without hands, with Chromium's fake microphone."""

import json
import re
from base64 import b64encode
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser, Locator, Route, expect

from agent.web.ui.page_text import VOICE
from tests.conftest import App, Visit, Visitor, becomes
from tests.support.chromium import launch
from tests.support.media_files import sound, tone
from tests.support.scripted_server import Config, Running

SHORT, LONG = (sound("wav", tone(seconds, hertz=440, rate=8000), rate=8000) for seconds in (0.2, 120.0))
SPEECH = np.concatenate([tone(0.6, loud=0), tone(0.8), tone(2.6, loud=0)])
"""What the microphone hears, again and again: somebody who says one sentence, and is silent."""


def speak(text: str) -> bytes:
    return b"" if "broken" in text else LONG if "long" in text else SHORT


SERVER = Config(models=("Qwen/Qwen3-Omni-30B-A3B-Instruct", "Qwen/Qwen3-8B"), rate=0, speak=speak)
KEEP = """
window.heard = [];
const ask = navigator.mediaDevices.getUserMedia.bind(navigator.mediaDevices);
navigator.mediaDevices.getUserMedia = async (what) => { const one = await ask(what); heard.push(one); return one; };
"""
TRACKS = "heard.flatMap((one) => one.getTracks().map((track) => track.readyState))"
VOICES = """
window.said = [];
const voice = (name, lang, localService) => ({ name, lang, localService, default: false });
speechSynthesis.getVoices = () => [voice("Far", "de-DE", false), voice("Near", "de-DE", true)];
window.SpeechSynthesisUtterance = class { constructor(text) { this.text = text; } };
speechSynthesis.speak = (one) => { said.push([one.text, one.voice.name]); setTimeout(() => one.onend()); };
"""


@pytest.fixture(scope="module")
def spoken_to(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A Chromium whose microphone hears SPEECH."""
    path = tmp_path_factory.mktemp("sound") / "speech.wav"
    path.write_bytes(sound("wav", SPEECH))
    hearing = launch(browser.browser_type, f"--use-file-for-fake-audio-capture={path}")
    yield hearing
    hearing.close()


Open = Callable[..., Visitor]


@pytest.fixture
def talk(request: pytest.FixtureRequest) -> Iterator[Open]:
    """Open the page of a visitor with a microphone."""
    contexts = list[Any]()

    def open_page(
        url: str, browser: Browser, *scripts: str, permissions: tuple[str, ...] = ("microphone",), **how: Any
    ) -> Visitor:
        contexts.append(browser.new_context(permissions=list(permissions), reduced_motion="reduce", **how))
        visitor = Visitor(contexts[-1].new_page())
        for script in (KEEP, *scripts):
            visitor.page.add_init_script(script)
        visitor.open(url)
        return visitor

    yield open_page
    for context in contexts:
        context.close()


@pytest.fixture(scope="module")
def speaking(start_app: Callable[..., App], server: Running) -> App:
    """An app whose answers a server reads aloud."""
    return start_app(VLLM_BASE_URL=server.base_url, SPEECH=f"{server.base_url}#tts")


def panel(visitor: Visitor) -> Locator:
    return visitor.page.locator("#voice")


def spoken(server: Running) -> list[str]:
    return [one["input"] for one in server.server.spoken]


@pytest.mark.gate("The page listens, reads the answer aloud, and is interrupted by speaking.")
def test_conversation_without_hands(spoken_to: Browser, talk: Open, speaking: App, server: Running) -> None:
    """It hears a sentence, sends it, reads the answer, is interrupted by the next one, and frees the microphone."""
    visitor, before = talk(speaking.url, spoken_to), len(server.journal())
    visitor.box.fill("!text One long answer. And its end.")
    visitor.page.get_by_role("button", name="Talk hands-free").click()
    expect(panel(visitor).locator(".state")).to_have_text("Speaking…")
    visitor.shot("voice-speaking")
    assert "One long answer." in spoken(server)
    journal = server.wait_for(lambda journal: len(journal) > before + 1)
    for request in journal[before:]:
        assert request["body"]["messages"][-1]["content"][-1]["type"] == "input_audio"
    panel(visitor).get_by_role("button", name="End the conversation").click()
    expect(panel(visitor)).to_be_hidden()
    assert visitor.page.evaluate(TRACKS) == ["ended"], "the microphone is off"


def test_escape_interrupts_and_then_ends(spoken_to: Browser, talk: Open, speaking: App) -> None:
    visitor = talk(speaking.url, spoken_to)
    visitor.box.fill("!text A long answer.")
    visitor.page.get_by_role("button", name="Talk hands-free").click()
    expect(panel(visitor)).to_have_attribute("data-mode", "speaking")
    visitor.page.keyboard.press("Escape")
    expect(panel(visitor)).to_have_attribute("data-mode", "listening")
    visitor.page.keyboard.press("Escape")
    expect(panel(visitor)).to_be_hidden()
    assert visitor.page.evaluate(TRACKS) == ["ended"]


@pytest.mark.parametrize("way", ["stopped", "offline"])
def test_conversation_goes_on_or_ends_if_nothing_is_sent(
    way: str, spoken_to: Browser, talk: Open, speaking: App
) -> None:
    visitor = talk(speaking.url, spoken_to)
    visitor.page.route(
        "**/conversations", lambda route: route.abort() if route.request.method == "POST" else route.fallback()
    )
    visitor.page.route("**/healthz", lambda route: route.abort())
    visitor.box.fill("It stays.")
    visitor.page.get_by_role("button", name="Talk hands-free").click()
    expect(panel(visitor)).to_have_attribute("data-mode", "listening")
    if way == "stopped":
        stop = visitor.page.locator("#composer .stop-button")
        expect(stop).to_be_visible()
        expect(panel(visitor)).to_have_attribute("data-mode", "thinking")
        stop.click()
        expect(panel(visitor)).to_have_attribute("data-mode", "listening")
        visitor.page.locator("#composer .microphone-button").click()  # which records the same words
    else:
        off = "Object.defineProperty(navigator, 'onLine', { get: () => false }); dispatchEvent(new Event('offline'))"
        visitor.page.evaluate(off)
    expect(panel(visitor)).to_be_hidden()
    expect(visitor.box).to_have_value("It stays.")
    expect(visitor.page.locator("#composer .file")).to_have_count(1)
    assert visitor.page.evaluate(TRACKS)[0] == "ended"


def read_aloud(visitor: Visitor) -> Locator:
    return visitor.chat.get_by_role("button", name="Read aloud").last


def test_answer_is_read_while_it_is_written(visit: Visit, speaking: App, server: Running) -> None:
    visitor = visit(speaking.url, fresh=True)
    visitor.say("!text First.\\n\\n```py\\nx = 1\\n```\\n\\nSecond!\\n !tokens 2 hold 1 READ !text \\nThird.")
    read_aloud(visitor).click()
    becomes(True, lambda: {"First.", "Second!"} <= {*spoken(server)} and "Third." not in spoken(server))
    expect(panel(visitor).locator(".state")).to_have_text("Reading aloud")
    expect(panel(visitor).locator(".note")).to_have_text("This server speaks.")
    server.release("READ")
    becomes(True, lambda: "Third." in spoken(server))
    expect(panel(visitor)).to_be_hidden()
    assert "x = 1" not in "".join(spoken(server))


def test_reading_pauses_and_stops(visit: Visit, speaking: App, server: Running) -> None:
    visitor = visit(speaking.url, fresh=True)
    visitor.ask("!text A long answer that is pressed twice. Its end.")
    held = list[Route]()
    visitor.page.route("**/voice", lambda route: held.append(route))
    read_aloud(visitor).dblclick()
    visitor.wait_for_requests(held)
    held[0].continue_()
    panel(visitor).get_by_role("button", name="Speed: 1").click()
    becomes(1, lambda: spoken(server).count("A long answer that is pressed twice."))  # one reader reads
    visitor.page.unroute("**/voice")
    panel(visitor).get_by_role("button", name="Pause").click()
    expect(panel(visitor).locator(".state")).to_have_text("Paused")
    panel(visitor).get_by_role("button", name="Go on").click()
    expect(panel(visitor).locator(".state")).to_have_text("Reading aloud")
    visitor.reload()
    read_aloud(visitor).click()
    expect(panel(visitor).get_by_role("button", name="Speed: 1.25")).to_be_visible()
    visitor.chat.get_by_role("button", name="Edit").last.click()
    expect(visitor.chat.locator(".edit textarea")).to_be_focused()  # its text has come
    visitor.page.keyboard.press("Escape")
    expect(visitor.chat.locator(".edit")).to_have_count(0)
    expect(panel(visitor)).to_be_visible()
    visitor.page.keyboard.press("Escape")
    expect(panel(visitor)).to_be_hidden()


def test_voice_of_the_browser_reads_on(visit: Visit, speaking: App) -> None:
    """If the server fails, a voice of this computer in the language of the text goes on, and the page says so."""
    visitor = visit(speaking.url, fresh=True)
    visitor.page.add_init_script(VOICES)
    visitor.reload()
    visitor.ask("!text Das ist nicht gut. Es ist broken und aus. Das ist der Rest.")
    notes = "new MutationObserver(() => (window.notes ??= []).push(document.querySelector('#voice').innerText))"
    visitor.page.evaluate(
        f"({notes}).observe(document.body, {{ childList: true, subtree: true, characterData: true }})"
    )
    read_aloud(visitor).click()
    becomes([["Es ist broken und aus.", "Near"], ["Das ist der Rest.", "Near"]], lambda: visitor.page.evaluate("said"))
    expect(panel(visitor)).to_be_hidden()
    told = visitor.page.evaluate("notes.join()")
    assert "because this did not work: The server that speaks has failed." in told
    assert "A voice of this computer speaks." in told


def test_language_without_a_voice_is_named(visit: Visit, app: App) -> None:
    visitor = visit(app.url, fresh=True)
    visitor.page.add_init_script(VOICES)
    visitor.reload()
    visitor.ask("!text The cat is in the house and it is not well.")
    read_aloud(visitor).click()
    expect(visitor.hint).to_have_text("This browser has no voice for this language: English.")
    expect(panel(visitor)).to_be_hidden()


def test_answers_are_read_if_the_visitor_wants(visit: Visit, speaking: App, server: Running) -> None:
    visitor = visit(speaking.url, fresh=True)
    visitor.open_settings()
    visitor.page.get_by_role("checkbox", name="Read answers aloud").check()
    visitor.close_settings()
    visitor.ask("!text Wanted aloud.")
    becomes(True, lambda: "Wanted aloud." in spoken(server))


def dictation(visitor: Visitor, writer: str, *lines: Any) -> list[Any]:
    """Let the server's reader of speech answer with these lines. Return the recordings that it gets."""
    said = {name: text for name, text in VOICE.items()}
    about = {"said": said, "speaks": False, "speaker": "", "writer": writer, "why": "" if writer else "It is off."}
    visitor.page.route("**/voice", lambda route: route.fulfill(json=about))
    got = list[Any]()

    def answer(route: Route) -> None:
        got.append(route.request.post_data_json)
        route.fulfill(body="\n".join(map(json.dumps, lines)) + "\n", content_type="application/x-ndjson")

    visitor.page.route("**/dictation", answer)
    return got


@pytest.fixture
def deaf(start_app: Callable[..., App]) -> App:
    """An app with a model that does not hear."""
    return start_app()


def test_dictated_words_come_to_the_caret(spoken_to: Browser, talk: Open, deaf: App) -> None:
    visitor = talk(deaf.url, spoken_to)
    got = dictation(visitor, "Whisper", {"type": "done", "text": "brown"})
    visitor.box.fill("The fox")
    visitor.page.evaluate("document.querySelector('#composer textarea').setSelectionRange(4, 4)")
    visitor.page.get_by_role("button", name="Dictate").click()
    expect(visitor.hint).to_contain_text("This server writes your speech down with Whisper")
    expect(visitor.page.get_by_role("timer")).to_have_text(re.compile("0:0[1-9]"))
    visitor.shot("voice-dictation")
    visitor.box.press("Enter")
    expect(visitor.box).to_have_value("The brown fox")
    expect(visitor.mine).to_have_count(0)
    assert got[0]["path"].endswith((".webm", ".ogg"))
    assert visitor.page.evaluate(TRACKS) == ["ended"]


@pytest.mark.parametrize("way", ["refused", "missing", "silent", "off"])
def test_each_failure_of_dictation_has_a_sentence(way: str, spoken_to: Browser, talk: Open, deaf: App) -> None:
    error = {"refused": "NotAllowedError", "missing": "NotFoundError"}.get(way)
    fails = f"navigator.mediaDevices.getUserMedia = async () => {{ throw new DOMException('', '{error}'); }};"
    off = "delete window.webkitSpeechRecognition; delete window.SpeechRecognition;"
    visitor = talk(deaf.url, spoken_to, *([fails] if error else []), *([off] if way == "off" else []))
    refusal = {"type": "error", "status": 400, "detail": "No speech was heard."}
    dictation(visitor, "" if way == "off" else "Whisper", refusal)
    visitor.page.get_by_role("button", name="Dictate").click()
    if way == "silent":
        expect(visitor.page.get_by_role("timer")).to_have_text(re.compile("0:0[0-9]"))
        visitor.page.get_by_role("button", name="Write it down").click()
    said = {
        "refused": "The browser does not let this page use the microphone.",
        "missing": "No microphone was found.",
        "silent": "No speech was heard.",
        "off": "Neither this server nor this browser can write speech down. It is off.",
    }[way]
    expect(visitor.page.get_by_text(said)).to_be_visible()
    expect(visitor.box).to_have_value("")


def test_recording_of_a_hearing_model_can_be_written_down(spoken_to: Browser, talk: Open, own: App) -> None:
    visitor = talk(own.url, spoken_to)
    dictation(visitor, "Whisper", {"type": "done", "text": "Hello."})
    visitor.page.get_by_role("button", name="Record audio").click()
    expect(visitor.page.get_by_role("timer")).to_have_text(re.compile("0:0[1-9]"))
    visitor.page.get_by_role("button", name="Write it down instead").click()
    expect(visitor.box).to_have_value("Hello.")
    expect(visitor.page.locator("#composer .file")).to_have_count(0)


@pytest.mark.parametrize("way", ["refused", "offline"])
def test_recording_that_is_not_written_down_is_attached(way: str, spoken_to: Browser, talk: Open, own: App) -> None:
    visitor = talk(own.url, spoken_to)
    dictation(visitor, "Whisper", {"type": "error", "status": 429, "detail": "Wait a minute."})
    if way == "offline":
        visitor.page.route("**/modules/voice.js*", lambda route: route.abort())
    visitor.page.get_by_role("button", name="Record audio").click()
    expect(visitor.page.get_by_role("timer")).to_have_text(re.compile("0:0[1-9]"))
    visitor.page.get_by_role("button", name="Write it down instead").click()
    why = "so it is attached as sound. Wait a minute." if way == "refused" else "Check the connection and try again."
    expect(visitor.hint).to_contain_text(why)
    expect(visitor.page.locator("#composer .file")).to_have_count(1)


def test_words_of_a_conversation_reach_a_deaf_model(spoken_to: Browser, talk: Open, deaf: App) -> None:
    """The server writes them down, and a voice of the browser speaks. A microphone that hears no speech is said."""
    visitor = talk(deaf.url, spoken_to, VOICES)
    dictation(visitor, "Whisper", {"type": "done", "text": "!text Das ist gut und nicht schlecht."})
    visitor.page.get_by_role("button", name="Talk hands-free").click()
    becomes(["Das ist gut und nicht schlecht.", "Near"], lambda: visitor.page.evaluate("said[0]"))
    expect(visitor.mine.first).to_have_text("!text Das ist gut und nicht schlecht.")
    nothing = VOICE["nothing"]
    dictation(visitor, "Whisper", {"type": "error", "status": 400, "detail": nothing})
    expect(panel(visitor).locator(".note")).to_have_text(nothing)
    expect(panel(visitor)).to_have_attribute("data-mode", "listening")
    visitor.open_settings()
    visitor.shot("voice-settings")
    visitor.page.keyboard.press("Escape")
    expect(visitor.page.locator("html")).to_have_attribute("data-settings", "closed")
    expect(panel(visitor)).to_be_visible()
    panel(visitor).get_by_role("button", name="End the conversation").click()
    expect(panel(visitor)).to_be_hidden()


def test_recording_that_was_not_written_down_is_kept(spoken_to: Browser, talk: Open, deaf: App) -> None:
    """A conversation keeps it: it can be tried again, and is attached as sound at the end."""
    visitor = talk(deaf.url, spoken_to, VOICES)
    busy = {"type": "error", "status": 429, "detail": "Wait a minute."}
    dictation(visitor, "Whisper", busy)
    visitor.page.get_by_role("button", name="Talk hands-free").click()
    note, again = panel(visitor).locator(".note"), panel(visitor).get_by_role("button", name="Try again")
    expect(note).to_have_text("Wait a minute. Your recording is kept.")
    visitor.shot("voice-kept")
    dictation(visitor, "Whisper", {"type": "done", "text": "!text Das ist gut und nicht schlecht."})
    again.click()
    expect(visitor.mine.first).to_contain_text("!text Das ist gut und nicht schlecht.")
    dictation(visitor, "Whisper", busy)
    expect(again).to_be_visible()
    panel(visitor).get_by_role("button", name="End the conversation").click()
    expect(visitor.page.locator("#composer .file").first).to_contain_text("speech")
    expect(visitor.hint).to_contain_text("so it is attached as sound.")


STARTED = """
window.started = 0;
const { start } = AudioBufferSourceNode.prototype;
AudioBufferSourceNode.prototype.start = function (at) { started += this.buffer.length; return start.call(this, at); };
"""


def own_sound(samples: int) -> str:
    """Return the command for a chunk with sound of the model's own."""
    return "!json " + json.dumps([{"audio": {"data": b64encode(bytes(range(250)) * (samples // 125)).decode()}}])


def test_sound_of_the_model_plays_while_it_comes(visit: Visit, own: App, server: Running) -> None:
    """Its first part is heard while the model is silent. After a reload the whole sound is there."""
    visitor = visit(own.url, fresh=True)
    visitor.page.add_init_script(STARTED)
    visitor.reload()
    visitor.say(f"!text Hi. {own_sound(6000)} !tokens 1 hold 0 SOUND {own_sound(6000)}")
    becomes(6000, lambda: visitor.page.evaluate("started"))
    expect(panel(visitor).locator(".note")).to_have_text("The model itself speaks.")
    visitor.shot("voice-own")
    server.release("SOUND")
    becomes(12000, lambda: visitor.page.evaluate("started"))
    expect(panel(visitor)).to_be_hidden()
    visitor.reload()
    becomes(0.5, lambda: visitor.chat.locator("audio").evaluate("(one) => one.duration"))
    assert visitor.page.evaluate("started") == 0


MUTE = """
AudioContext.prototype.resume = () => new Promise(() => {});
Object.defineProperty(AudioContext.prototype, "state", { get: () => "suspended" });
"""


def test_browser_that_lets_nothing_play_is_told_so(visit: Visit, own: App, server: Running) -> None:
    """Such a browser leaves the promise of a start open, and the sound would go on without being heard."""
    visitor = visit(own.url, fresh=True)
    visitor.page.add_init_script(MUTE)
    visitor.reload()
    visitor.say(f"!text Hi. {own_sound(6000)} !tokens 1 hold 0 MUTE")
    expect(visitor.hint).to_contain_text("The browser does not let this page play sound")
    server.release("MUTE")


@pytest.mark.parametrize("way", ["answer", "reading", "key"])
def test_stop_ends_the_sound_of_the_model(way: str, visit: Visit, own: App, server: Running) -> None:
    visitor = visit(own.url, fresh=True)
    visitor.say(f"!text Hi. {own_sound(6000)} !tokens 1 hold 0 STOP{way}")
    expect(panel(visitor).locator(".note")).to_have_text("The model itself speaks.")
    if way == "answer":
        visitor.page.locator("#composer .stop-button").click()
    elif way == "reading":
        panel(visitor).get_by_role("button", name="Stop reading").click()
    else:
        visitor.page.keyboard.press("Escape")
    expect(panel(visitor)).to_be_hidden()
    server.release(f"STOP{way}")
    expect(visitor.page.locator("#composer .submit-button")).to_be_visible()
    expect(visitor.chat.locator("audio")).to_have_count(1 if way == "reading" else 0)  # else the answer is stopped, too


def test_refused_microphone_ends_the_conversation(visit: Visit, speaking: App) -> None:
    visitor = visit(speaking.url, fresh=True)
    visitor.page.get_by_role("button", name="Talk hands-free").click()
    expect(visitor.hint).to_contain_text("The browser does not let this page use the microphone.")
    expect(panel(visitor)).to_be_hidden()
