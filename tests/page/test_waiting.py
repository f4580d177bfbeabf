"""Waiting is visible: in the queue, for a model, an upload or a conversion. In real Chromium."""

import os
import re
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event

import psutil
import pytest
from PIL import Image
from playwright.sync_api import expect

from agent.models.weights import QWEN3_06B
from tests.conftest import CONFIG, App, Visitor
from tests.support import media_files
from tests.support.hub_server import serving
from tests.support.launched_servers import llama_cpp_at
from tests.support.scripted_server import Config, Running, running

pytestmark = pytest.mark.browser

PUBLIC = (
    CONFIG
    + """
[server]
grace_seconds = 30
[public]
on = true
[local]
answers = 1
"""
)
"""The grace period is long enough for a reload on a busy machine."""
SEES = "Qwen/Qwen3-VL-8B-Instruct"
LONG = "!tokens 9000 @20"
Visit = Callable[..., Visitor]


SERVER = Config(models=(SEES,), rate=200.0)


@pytest.fixture(scope="module")
def own(start_app: Callable[..., App], server: Running) -> App:
    return start_app(CONFIG, VLLM_BASE_URL=server.base_url)


def noise(width: int, height: int) -> Image.Image:
    """Return a picture that cannot be compressed."""
    return Image.frombytes("RGB", (width, height), os.urandom(width * height * 3))


def attach(visitor: Visitor, *files: Path) -> None:
    visitor.page.locator("#composer input[type=file]").set_input_files(list(files))


# In the queue


@pytest.fixture(scope="module")
def queued(start_app: Callable[..., App], tmp_path_factory: pytest.TempPathFactory) -> Iterator[App]:
    """A public page with a scripted llama.cpp, which writes one answer at a time."""
    with running(Config(models=("toy",))) as llama:
        yield start_app(PUBLIC, **llama_cpp_at(tmp_path_factory.mktemp("llama"), llama.url))


def writing(visitor: Visitor) -> None:
    """Wait until the answer has begun. The queue position is shown in a bubble, too."""
    expect(visitor.bubbles.first).to_contain_text("word1")


@pytest.mark.gate("A queued visitor sees the position.")
def test_queued_visitor_sees_position_and_can_leave(queued: App, visit: Visit) -> None:
    first, second, third = visit(queued.url), visit(queued.url), visit(queued.url)
    first.say(LONG)
    writing(first)
    lines = {}
    for number, visitor in enumerate((second, third), start=1):
        visitor.say(LONG)
        lines[visitor] = visitor.chat.locator(".waiting:visible .why")
        says = f"{number} ahead of you"
        expect(lines[visitor]).to_have_text(says)
    third.shot("waiting-in-line")
    third.page.reload()
    expect(lines[third]).to_have_text("2 ahead of you")
    second.stop.click()
    expect(second.caption).to_contain_text("Stopped")
    expect(lines[third]).to_have_text("1 ahead of you")
    third.page.wait_for_timeout(1000)  # a shorter wait is not mentioned afterwards
    first.stop.click()
    writing(third)
    expect(lines[third]).to_have_count(0)
    third.stop.click()
    expect(third.caption).to_contain_text(re.compile(r"\d s in line · [\d.]+ s to first token"))
    third.shot("waited-in-line")


# An upload


def test_upload_shows_progress_and_enter_sends_when_done(
    own: App, visit: Visit, server: Running, tmp_path: Path
) -> None:
    visitor = visit(own.url, fresh=True)
    noise(800, 800).save(tmp_path / "noise.png")
    network = visitor.page.context.new_cdp_session(visitor.page)
    network.send("Network.enable")
    slow = {"offline": False, "latency": 20, "downloadThroughput": -1, "uploadThroughput": 400_000}
    network.send("Network.emulateNetworkConditions", slow)
    visitor.box.fill("!text Seen.")
    attach(visitor, tmp_path / "noise.png")
    loader = visitor.page.locator("#composer .loader")
    expect(loader).to_have_attribute("data-done", re.compile(r"^[1-9]\d? %$"))
    visitor.shot("uploading")
    visitor.box.press("Enter")
    expect(visitor.box).to_have_value("!text Seen.")
    first = loader.get_attribute("data-done")
    expect(loader).not_to_have_attribute("data-done", str(first))
    expect(visitor.bubbles.filter(has_text="Seen.")).to_be_visible()
    content = server.journal()[-1]["body"]["messages"][-1]["content"]
    assert [part["type"] for part in content] == ["text", "image_url"]
    expect(visitor.page.locator("#attached li")).to_have_count(0)  # the file was sent before its check ended


def test_broken_upload_is_reported_and_keeps_text(own: App, visit: Visit, tmp_path: Path) -> None:
    visitor = visit(own.url)
    noise(100, 100).save(tmp_path / "noise.png")
    visitor.page.route("**/upload", lambda route: route.abort())
    visitor.box.fill("!text Seen.")
    attach(visitor, tmp_path / "noise.png")
    expect(visitor.page.locator("#composer").get_by_role("alert")).to_have_text(
        "Nothing was attached. Check the connection and try again."
    )
    expect(visitor.page.locator("#composer .file")).to_have_count(0)
    expect(visitor.box).to_have_value("!text Seen.")


# A conversion


@contextmanager
def decoding_takes_its_time(app: App) -> Generator[None]:
    """Stop the app's decoder processes as soon as they start, until the block ends."""
    assert app.process is not None
    parent, held, over = psutil.Process(app.process.pid), list[psutil.Process](), Event()

    def hold() -> None:
        while not over.wait(0.005):
            for child in parent.children():
                with suppress(psutil.Error):
                    if child not in held and "agent.files.sandbox_worker" in child.cmdline():
                        child.suspend()
                        held.append(child)

    with ThreadPoolExecutor(1) as pool:
        holding = pool.submit(hold)
        try:
            yield
        finally:
            over.set()
            holding.result()
            for child in held:
                with suppress(psutil.Error):
                    child.resume()
    assert held


def test_conversion_shows_file_and_time(own: App, visit: Visit, tmp_path: Path) -> None:
    visitor = visit(own.url)
    photo = media_files.picture("AVIF", (400, 300))
    names = [f"photo{number}.avif" for number in range(3)]
    for name in names:
        (tmp_path / name).write_bytes(photo)
    visitor.box.fill("!text Seen.")
    sending = visitor.page.locator("#sending .doing")
    with decoding_takes_its_time(own):
        attach(visitor, *(tmp_path / name for name in names))
        doing = visitor.page.locator("#checking .doing")
        expect(doing).to_have_text([f"Checking {name}…" for name in names])
        visitor.shot("looking")
        visitor.box.press("Enter")
        expect(sending).to_have_text(f"Preparing {', '.join(names)}…")
        visitor.shot("sending")
    expect(visitor.bubbles.filter(has_text="Seen.")).to_be_visible(timeout=60_000)
    expect(sending).to_have_count(0)
    expect(visitor.page.locator(":is(#attached, #checking) li")).to_have_count(0)


# A model that is being loaded


@pytest.mark.weights
def test_message_waits_for_a_model(start_app: Callable[..., App], visit: Visit, tmp_path: Path) -> None:
    hub = QWEN3_06B.hub
    assert hub is not None
    path = f"/{hub.repo}/resolve/{hub.revision}/{hub.file}"
    with serving(files={path: b"GGUF" * 1_000_000}) as server:  # the bytes are not the pinned file
        server.gate.clear()
        own = start_app(
            CONFIG,
            VLLM_BASE_URL="",
            HF_ENDPOINT=server.url,
            HF_HUB_CACHE=str(tmp_path / "hub"),
            SWITCHBOARD_CACHE=str(tmp_path),
            SWITCHBOARD_OFFLINE="",
            PATH="/usr/bin:/bin",
        )
        visitor = visit(own.url, ready=False)
        notice = visitor.page.locator("#notice")
        expect(notice).to_contain_text("Fetching Qwen3 0.6B")
        expect(notice.locator("progress")).to_be_visible()
        visitor.say("Hello")
        expect(visitor.page.locator("#sending")).to_have_text("Your message is sent as soon as a model is ready.")
        expect(visitor.box).to_have_value("Hello")
        visitor.shot("no-model-yet")
        server.gate.set()
        expect(visitor.mine).to_have_text("Hello", timeout=60_000)
        expect(visitor.box).to_have_value("")
        expect(visitor.page.locator("#sending")).to_have_text("")
        expect(visitor.caption).to_contain_text("s to first token", timeout=60_000)
