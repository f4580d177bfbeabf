"""Text extraction for models that cannot see or hear, on the real page: announced, shown in progress, and marked."""

import os
import pickle
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Locator, expect

from agent.files.transcribe import SPEECH
from tests.conftest import CONFIG, ROOT, App, Visitor
from tests.support.hub_server import serving
from tests.support.hub_state import Hub
from tests.support.known_texts import INVOICE, SAMPLES, SPOKEN, picture_of_text
from tests.support.scripted_server import Config, Running
from tests.support.toy_whisper import paths, pinned, whisper

pytestmark = [pytest.mark.browser, pytest.mark.weights, pytest.mark.timeout(500)]

SEES, BLIND = "Qwen/Qwen3-VL-8B-Instruct", "Qwen/Qwen3-8B"
PATIENCE = 200_000
"""In milliseconds. The first file of a type can make the app fetch its model."""
Visit = Callable[..., Visitor]


SERVER = Config(models=(BLIND, SEES), rate=200.0)


TOY = """
import pickle
from dataclasses import replace
from agent.files import transcribe
transcribe.TRANSCRIPTION_MODELS["audio"] = replace(transcribe.SPEECH, files=pickle.loads(bytes.fromhex("{}")))
"""
"""The start of an app that uses the tests' small speech model."""


@pytest.fixture(scope="module")
def own(start_app: Callable[..., App], server: Running, tmp_path_factory: pytest.TempPathFactory) -> Iterator[App]:
    """An app with an empty cache, and a model hub with a small speech model."""
    files = whisper(SPOKEN)
    folder = tmp_path_factory.mktemp("toy")
    (folder / "sitecustomize.py").write_text(TOY.format(pickle.dumps(pinned(files)).hex()))
    with serving(files=paths(files)) as hub:
        yield start_app(
            CONFIG,
            VLLM_BASE_URL=server.base_url,
            HF_ENDPOINT=hub.url,
            SWITCHBOARD_CACHE=str(folder / "cache"),
            SWITCHBOARD_OFFLINE="",
            PYTHONPATH=f"{folder}{os.pathsep}{ROOT}",
        )


@pytest.fixture(scope="module")
def without_hub(start_app: Callable[..., App], server: Running, tmp_path_factory: pytest.TempPathFactory) -> App:
    """An app that cannot reach the model hub."""
    cache = str(tmp_path_factory.mktemp("cache"))
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        closed = f"http://127.0.0.1:{deaf.getsockname()[1]}"
    return start_app(
        CONFIG, VLLM_BASE_URL=server.base_url, HF_ENDPOINT=closed, SWITCHBOARD_CACHE=cache, SWITCHBOARD_OFFLINE=""
    )


@pytest.fixture
def receipt(tmp_path: Path) -> Path:
    path = tmp_path / "receipt.png"
    path.write_bytes(picture_of_text(*INVOICE))
    return path


def attach(visitor: Visitor, *files: Path) -> Locator:
    """Attach files and return their rows on the page."""
    visitor.page.locator("#composer input[type=file]").set_input_files(list(files))
    return visitor.page.locator("#attached li")


def switch(visitor: Visitor, *, sounds: bool = True) -> None:
    """Turn on text extraction. Then pictures can be attached, and sounds if `sounds`."""
    visitor.open_settings()
    box = visitor.page.locator("#extract-text input")
    expect(box).not_to_be_checked()
    box.check()
    expect(visitor.page.locator("#about [data-takes*=image]")).to_have_count(1)
    expect(visitor.page.locator("#about [data-takes*=audio]")).to_have_count(int(sounds))
    visitor.shot("reading-switch")
    visitor.close_settings()


def content(server: Running) -> list[dict[str, str]]:
    """Return the content of the last message in the last request."""
    return server.journal()[-1]["body"]["messages"][-1]["content"]


def test_text_model_gets_picture_text(own: App, visit: Visit, server: Running, receipt: Path) -> None:
    visitor = visit(own.url)
    rows = attach(visitor, receipt)
    expect(rows).to_contain_text("cannot see pictures")
    expect(rows).to_contain_text("in the settings")
    visitor.shot("reading-off")
    switch(visitor)
    expect(rows).to_contain_text("receipt.png: the text in it is extracted on this server by PP-OCRv6")
    expect(rows).to_have_class("extracted")
    visitor.shot("reading-plan")
    visitor.say("!text It is 99.50 EUR. How much is it?")
    expect(visitor.bubbles.filter(has_text="It is 99.50 EUR.")).to_be_visible(timeout=PATIENCE)
    asked, found = content(server)
    assert asked["text"].startswith("!text It is 99.50")
    assert found["text"].startswith("Text in the picture receipt.png, read by OCR; it may have mistakes")
    assert all(line in found["text"] for line in INVOICE)
    expect(visitor.box).to_have_value("")
    expect(rows).to_have_count(0)

    def shown() -> None:
        expect(visitor.mine.locator("img")).to_have_count(1)
        mark = visitor.mine.locator("details")
        expect(mark.locator("summary")).to_have_text("Text extracted from receipt.png; it may contain mistakes")
        expect(mark.locator("pre")).to_have_text("\n".join(INVOICE))

    shown()
    visitor.shot("reading-picture")
    visitor.open(own.url)
    shown()
    expect(visitor.page.locator("#extract-text input")).to_be_checked()
    assert own.process is not None
    if os.geteuid() == 0:  # only root can look into the process
        maps = Path(f"/proc/{own.process.pid}/maps").read_text()
        assert "onnxruntime" not in maps
        assert "ctranslate2" not in maps

    # Another question about the same picture.
    visitor.mine.last.hover()
    visitor.chat.get_by_role("button", name="Edit").last.click()
    area = visitor.chat.get_by_role("textbox", name="Your message")
    expect(area).to_be_focused()
    visitor.shot("reading-edit")
    area.fill("!text Of what?")
    area.press("Enter")
    expect(visitor.bubbles.filter(has_text="Of what?")).to_be_visible()
    visitor.idle()
    assert [part["text"] for part in content(server)] == ["!text Of what?", found["text"]]
    expect(visitor.toast).to_have_count(0)
    shown()

    visitor.choose(SEES)
    expect(visitor.page.locator("#about")).to_contain_text("VL")
    visitor.ask("!text I see.")
    first = next(one for one in server.journal()[-1]["body"]["messages"] if one["role"] == "user")
    assert [part["type"] for part in first["content"]] == ["text", "image_url"]


def test_unreachable_hub_disables_recording_only(
    without_hub: App, visit: Visit, server: Running, tmp_path: Path
) -> None:
    (tmp_path / "wall.png").write_bytes(picture_of_text())
    visitor = visit(without_hub.url)
    switch(visitor, sounds=False)
    said = "Whisper base is not on this disk, and the model hub cannot be reached."
    for _ in range(2):
        visitor.open_settings()
        expect(visitor.page.locator("#extract-text").get_by_role("status")).to_contain_text(said)
        visitor.shot("reading-without-hub")
        visitor.close_settings()
        expect(visitor.page.locator("#about")).not_to_contain_text("Whisper")
        expect(visitor.page.locator("#composer .microphone-button")).to_have_count(0)
        visitor.reload()
    rows = attach(visitor, tmp_path / "wall.png")
    expect(rows).to_contain_text("on this server")
    asked = len(server.journal())
    visitor.say("!text What is on it?")
    expect(visitor.hint).to_contain_text("No text was found in wall.png.", timeout=PATIENCE)
    expect(visitor.box).to_have_value("!text What is on it?")
    expect(visitor.box).to_be_editable()
    expect(rows).to_have_count(1)
    expect(visitor.submit).to_be_visible()
    expect(visitor.mine).to_have_count(0)
    assert len(server.journal()) == asked


@pytest.fixture
def hub() -> Iterator[Hub]:
    """A model hub with wrong bytes of the right size. It sends the second half when told to."""
    files: dict[str, bytes] = {}
    for file in SPEECH.files:
        assert file.hub is not None
        files[f"/{file.hub.repo}/resolve/{file.hub.revision}/{file.hub.file}"] = bytes(file.size)
    with serving(files=files) as server:
        yield server


def test_transcription_stops_and_bad_file_is_refused(
    start_app: Callable[..., App], visit: Visit, server: Running, hub: Hub, tmp_path: Path
) -> None:
    app = start_app(
        VLLM_BASE_URL=server.base_url,
        SWITCHBOARD_CACHE=str(tmp_path / "cache"),
        HF_ENDPOINT=hub.url,
        SWITCHBOARD_OFFLINE="",
    )
    visitor = visit(app.url)
    switch(visitor)
    rows = attach(visitor, SAMPLES / "speech.ogg")
    expect(rows).to_contain_text("one-time 148 MB download")
    hub.gate.clear()
    asked = len(server.journal())
    visitor.say("!text When is it?")
    expect(visitor.page.locator("#sending")).to_contain_text("Downloading Whisper base (one time):", timeout=60_000)
    expect(visitor.page.locator("#sending progress")).to_be_visible()
    expect(visitor.box).not_to_be_editable()
    visitor.shot("reading-fetching")
    visitor.stop.click()
    expect(visitor.submit).to_be_visible()
    expect(rows).to_contain_text("one-time 148 MB download")
    expect(visitor.box).to_have_value("!text When is it?")
    expect(visitor.page.locator("#composer .file")).to_have_count(1)
    expect(visitor.box).to_be_editable()
    hub.gate.set()
    visitor.box.press("Enter")
    expect(visitor.hint).to_contain_text("is not the pinned file", timeout=60_000)
    expect(visitor.box).to_have_value("!text When is it?")
    expect(visitor.mine).to_have_count(0)
    assert len(server.journal()) == asked
