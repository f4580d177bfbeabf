"""Text from images and audio for models that cannot see or hear: real readers, in a separate process."""

import asyncio
import hashlib
import re
import signal
import socket
import sys
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from pydantic_ai.messages import BinaryContent, ModelRequest, TextContent, UserPromptPart

from agent.errors import InputError
from agent.files import transcribe
from agent.files.convert import convert_file
from agent.files.parts import extracted_text, extracted_text_of
from agent.files.remarks import ConvertedMedia
from agent.files.sandbox import SandboxProgram
from agent.files.store import MediaStore
from agent.files.transcribe import TRANSCRIPTION_MODELS, Kind, Transcriber
from agent.history.memory import MemoryStore
from agent.i18n.translator import Translator
from agent.messages.adapt import adapt
from agent.models.catalog import load_catalog
from agent.models.weights import HubFile, Pinned, Status, find
from agent.settings import LocalSettings, PublicSettings, Settings
from agent.settings import load_settings as settings
from agent.web.app import build_conversations
from agent.web.chat.attachments import PRIVATE_LIMITS, PUBLIC_LIMITS, message_parts, plan_attachments
from agent.web.chat.choices import Choices
from agent.web.chat.visitor import Visitor
from agent.web.ui.components import composer_for_model, extraction_info
from tests.support.gate_rows import gate_rows
from tests.support.hub_server import serving
from tests.support.hub_state import Hub
from tests.support.known_texts import INVOICE, SPEECH, SPOKEN, picture_of_text, plain
from tests.support.media_files import sound, tone
from tests.support.models import LARGE, FakeLocalModels
from tests.support.toy_whisper import hub_with_whisper, whisper
from tests.support.views import widgets
from tests.support.waiting import command_of, until

pytestmark = pytest.mark.slow

QWEN = load_catalog().find("vllm:Qwen/Qwen3-8B")


def words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def quiet(_status: Status | None) -> None:
    pass


@pytest.fixture
def here() -> Transcriber:
    """A transcriber with the real model for pictures, which `make setup` installs."""
    return Transcriber(settings().local.cache_dir)


@pytest.fixture
def hears(tmp_path: Path) -> Iterator[Transcriber]:
    """A transcriber with the toy."""
    with hub_with_whisper():
        yield Transcriber(tmp_path / "cache")


async def read(here: Transcriber, data: bytes, name: str = "a.png") -> str:
    return await here.text(name, await convert_file(data, None), quiet)


# --- real readers -----------------------------------------------------------------------------------------------------

SHOWN: dict[str, dict[str, Any]] = {
    "plain": {},
    "askew": {"turned": 9},
    "on its side": {"turned": 90},
    "on its head": {"turned": 180},
    "light on dark": {"ink": "white", "paper": "navy"},
    "see-through": {"paper": (0, 0, 0, 0)},
}


@pytest.mark.weights
@pytest.mark.timeout(400)
@pytest.mark.parametrize("how", gate_rows(SHOWN, ["askew", "see-through"]))
async def test_text_in_picture_is_read(here: Transcriber, how: dict[str, Any]) -> None:
    found = (await read(here, picture_of_text(*INVOICE, **how))).splitlines()
    assert sorted(found) == sorted(INVOICE)
    if how.get("turned", 0) < 45:
        assert found == list(INVOICE), "the lines are out of order"


@pytest.mark.weights
@pytest.mark.timeout(400)
async def test_side_by_side_text_is_one_line(here: Transcriber) -> None:
    assert await read(here, picture_of_text("Apples          12", "Pears           70")) == "Apples\t12\nPears\t70"


async def test_speech_is_transcribed_with_hub_weights(hears: Transcriber) -> None:
    assert await hears.to_fetch("audio") > 2_000_000
    assert await read(hears, SPEECH, "voice.ogg") == SPOKEN
    assert await hears.to_fetch("audio") == 0


async def test_hub_cache_links_are_read(hears: Transcriber, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    snapshot = tmp_path / "hub" / "models--org--whisper" / "snapshots" / "rev"
    snapshot.mkdir(parents=True)
    for number, (name, data) in enumerate(whisper(SPOKEN).items()):
        blob = tmp_path / f"blob{number}"
        blob.write_bytes(data)
        (snapshot / name).symlink_to(blob)
    assert await read(hears, SPEECH, "voice.ogg") == SPOKEN


@pytest.mark.weights
@pytest.mark.timeout(400)
async def test_real_whisper_writes_whole_words(here: Transcriber) -> None:
    if [file for file in transcribe.SPEECH.files if await find(file, settings().local.cache_dir) is None]:
        pytest.skip("Whisper base is not on this disk: the page fetches it from the Hugging Face hub")
    assert words(await read(here, SPEECH, "voice.ogg")) == words(SPOKEN)


PLAIN_RED = plain("#ff3030", (120, 80))
"""The reader takes it for "_"."""


@pytest.mark.weights
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("a.png", picture_of_text(), "No text was found in a.png. Remove it, or choose a model that can see it."),
        ("b.png", PLAIN_RED, "No text was found in b.png. Remove it, or choose a model that can see it."),
        (
            "a.wav",
            sound("wav", tone(3)),
            "No speech was found in a.wav. Remove it, or choose a model that can hear it.",
        ),
    ],
    ids=["a picture", "a shape", "a sound"],
)
async def test_empty_result_is_explained(hears: Transcriber, name: str, data: bytes, said: str) -> None:
    with pytest.raises(InputError) as refused:
        await read(hears, data, name)
    assert str(refused.value) == said


# --- the separate process ---------------------------------------------------------------------------------------------


def readers() -> list[psutil.Process]:
    """Return the reader processes of this one."""
    return [
        one
        for one in psutil.Process().children()
        if any(word == "agent.files.transcribe_worker" for word in command_of(one))
    ]


async def test_transcription_is_isolated_and_cancellable(hears: Transcriber, monkeypatch: pytest.MonkeyPatch) -> None:
    here = hears
    monkeypatch.setenv("OPENAI_API_KEY", "a secret")
    said: list[Status | None] = []
    long = ConvertedMedia(data=(await convert_file(sound("wav", tone(60)), None)).data, media_type="audio/wav")
    first = asyncio.create_task(here.text("long.wav", long, quiet))
    await until(readers, seconds=200)
    [process] = readers()
    assert "a secret" not in process.environ().values()
    second = asyncio.create_task(here.text("next.wav", long, said.append))
    await until(lambda: said)
    assert said == [Status("loading", "Waiting to extract the text of next.wav: another file comes first.", None)]
    second.cancel()
    first.cancel()
    await asyncio.wait({first, second})
    assert not process.is_running()
    assert first.cancelled()
    assert readers() == []


@pytest.mark.weights
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("how", "said"),
    [
        (signal.SIGXCPU, r"^Extracting the text of a\.png took too long\.$"),
        (signal.SIGKILL, r"^The text of a\.png could not be extracted: there was not enough memory\.$"),
        (signal.SIGSEGV, r"^The text of a\.png could not be extracted: the program failed"),
    ],
    ids=["time", "memory", "a crash"],
)
async def test_killed_transcriber_is_explained(here: Transcriber, how: signal.Signals, said: str) -> None:
    task = asyncio.create_task(read(here, picture_of_text(*INVOICE)))
    await until(readers, seconds=200)
    readers()[0].send_signal(how)
    with pytest.raises(InputError, match=said):
        await task


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
async def test_flood_from_transcriber_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stream: str) -> None:
    made = await convert_file(picture_of_text(*INVOICE), None)
    flood = f"import sys\nfor _ in range(600): sys.{stream}.buffer.write(bytes(100_000))"
    with hub(monkeypatch):
        here = Transcriber(tmp_path)
        await here.to_fetch("image")
        monkeypatch.setattr(SandboxProgram, "command", lambda *_: [sys.executable, "-c", flood])
        tracemalloc.start()
        try:
            with pytest.raises(InputError, match=r"^The text of a\.png could not be extracted: the program failed"):
                await here.text("a.png", made, quiet)
            assert tracemalloc.get_traced_memory()[1] < 20_000_000
        finally:
            tracemalloc.stop()


# --- fetched once, and only pinned files ------------------------------------------------------------------------------

TOY = b"no model at all" * 1000


@contextmanager
def hub(monkeypatch: pytest.MonkeyPatch, *, sha256: str = "") -> Iterator[Hub]:
    """Run a model hub with a toy in place of the model that reads pictures."""
    pinned = Pinned(
        file="toy.onnx",
        size=len(TOY),
        sha256=sha256 or hashlib.sha256(TOY).hexdigest(),
        hub=HubFile("org/toy", "rev", "toy.onnx"),
    )
    monkeypatch.setitem(transcribe.TRANSCRIPTION_MODELS, "image", replace(transcribe.OCR, label="Toy", files=(pinned,)))
    with serving(files={"/org/toy/resolve/rev/toy.onnx": TOY}) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server


async def test_unpinned_file_transcribes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(picture_of_text(*INVOICE))
    store: Any = {"spec": QWEN, "owner": "ann", "max_bytes": 10**7}
    with (
        hub(monkeypatch, sha256="0" * 64),
        pytest.raises(
            InputError, match=r"^Toy, which extracts the text, could not be fetched\. toy.onnx is not the pinned file"
        ),
    ):
        await message_parts({"text": "See", "files": [str(path)]}, transcriber=Transcriber(tmp_path / "cache"), **store)
    assert not list((tmp_path / "cache").rglob("*.part"))


async def test_two_messages_share_one_download(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[Status | None] = []
    made = await convert_file(picture_of_text(*INVOICE), None)
    with hub(monkeypatch) as server:
        both = [Transcriber(tmp_path).text("a.png", made, said.append) for _ in range(2)]
        ended = await asyncio.gather(*both, return_exceptions=True)
    assert [str(one) for one in ended] == [
        "The text of a.png could not be extracted: the program failed, its log has the details."
    ] * 2, "the toy read something"
    assert len([one for one in server.asked if one.path.endswith(".onnx")]) == 1
    assert Status("fetching", "Downloading Toy (one time): 0 of 0 MB …", 1.0) in said
    last = said[-1]
    assert last == Status("loading", "Extracting the text of a.png …", None)
    assert Translator("de")(last.text) == "Der Text aus a.png wird ausgelesen …"


async def test_missing_network_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with hub(monkeypatch), socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{deaf.getsockname()[1]}")
        with pytest.raises(
            InputError,
            match=r"^Toy, which extracts the text, could not be fetched\. The model hub cannot be reached\.$",
        ):
            await read(Transcriber(tmp_path), picture_of_text(*INVOICE))


async def test_panel_reports_disabled_downloads(tmp_path: Path) -> None:
    path = tmp_path / "a.ogg"
    path.write_bytes(SPEECH)
    off = Transcriber(tmp_path / "cache", downloads=False)
    [plan] = await plan_attachments([path], QWEN, max_bytes=10**7, transcriber=off)
    assert plan.outcome == "refused"
    assert plan.text == "a.ogg: Whisper base is not on this disk, and downloads are off."
    with pytest.raises(InputError, match="downloads are off"):
        await read(off, SPEECH)


async def test_unreachable_hub_disables_audio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{deaf.getsockname()[1]}")
        here = Transcriber(tmp_path / "cache")
        await here.check_models()
        page = widgets()
        shown = composer_for_model(page, QWEN, transcriber=here)
        about = shown[page.about]
    said = "Whisper base is not on this disk, and the model hub cannot be reached."
    assert extraction_info(QWEN, here).endswith(said)
    assert said not in extraction_info(replace(QWEN, audio=True), here)
    assert said not in extraction_info(QWEN, None)
    assert "audio" not in about
    assert 'data-takes="image"' in about, "pictures cannot be read"
    hears = composer_for_model(page, replace(QWEN, audio=True), transcriber=here)
    assert 'data-takes="image audio"' in hears[page.about]
    with serving() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        await here.check_models()
    assert 'data-takes="image audio"' in composer_for_model(page, QWEN, transcriber=here)[page.about]


@pytest.mark.parametrize("kind", TRANSCRIPTION_MODELS)
async def test_missing_extra_is_named_with_its_command(
    kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`make run` installs neither reader."""
    monkeypatch.setitem(TRANSCRIPTION_MODELS, kind, replace(TRANSCRIPTION_MODELS[kind], module="not_installed"))
    here = Transcriber(tmp_path / "cache")
    await here.check_models()
    said = f"{TRANSCRIPTION_MODELS[kind].label} is not installed. Run `make extras` in the folder of Switchboard."
    assert here.absent[kind] == said
    assert said in extraction_info(replace(QWEN, image=False, audio=False), here)


# --- announced, stored, sent ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("switch", [False, True], ids=["off", "on"])
@pytest.mark.parametrize("image", [False, True], ids=["blind", "sees"])
@pytest.mark.parametrize("audio", [False, True], ids=["deaf", "hears"])
async def test_switch_affects_only_unsupported_media(
    tmp_path: Path, switch: bool, image: bool, audio: bool, hears: Transcriber
) -> None:
    (tmp_path / "a.png").write_bytes(picture_of_text(*INVOICE))
    (tmp_path / "a.ogg").write_bytes(SPEECH)
    spec = replace(QWEN, image=image, audio=audio, label="M")
    files = [tmp_path / "a.png", tmp_path / "a.ogg"]
    here = hears if switch else None
    picture, voice = await plan_attachments(files, spec, max_bytes=10**7, menu=[], transcriber=here)
    outcomes = {False: "extracted" if switch else "refused", True: "sent"}
    for plan, can in ((picture, image), (voice, audio)):
        assert outcomes[can] == ("sent" if plan.outcome in ("as it is", "converted") else plan.outcome)
    if not image and not switch:
        assert picture.text.startswith('M cannot see pictures. Remove "a.png", choose a model that can, or')
        assert picture.text.endswith('turn on "Extract text from images and audio" in the settings.')
    if not image and switch:
        assert picture.text == ("the text in it is extracted on this server by PP-OCRv6 (Apache-2.0) and sent instead")
    if not audio and switch:
        assert voice.text == (
            "the speech in it (6 s) is transcribed on this server by Whisper base (MIT) and sent instead; "
            "one-time 2 MB download"
        )


async def test_public_page_limits_files_read_per_message(tmp_path: Path, hears: Transcriber) -> None:
    files = [tmp_path / f"{number}.ogg" for number in range(6)]
    for file in files:
        file.write_bytes(SPEECH)
    for limits, refused in ((PUBLIC_LIMITS, files[4:]), (PRIVATE_LIMITS, [])):
        plans = await plan_attachments(files, QWEN, max_bytes=10**7, transcriber=hears, limits=limits)
        assert [plan.name for plan in plans if plan.outcome == "refused"] == [path.name for path in refused]
    plans = await plan_attachments(files, QWEN, max_bytes=10**7, transcriber=hears, limits=PUBLIC_LIMITS)
    assert plans[4].text == "Text is extracted from at most 4 files of a message. Send 4.ogg in another."


async def test_slow_reading_gives_back_the_place(tmp_path: Path) -> None:
    of_page = Settings(local=LocalSettings(cache_dir=tmp_path / "cache"), public=PublicSettings(answers_each=1))
    models, ann = FakeLocalModels(), Visitor(owner="ann")
    models.serve(LARGE)
    files = [tmp_path / f"{number}.wav" for number in range(3)]
    for number, file in enumerate(files):
        file.write_bytes(sound("wav", tone(60 + number)))
    with hub_with_whisper():
        conversations = build_conversations(of_page, MemoryStore(), MediaStore(tmp_path / "media"), models, tools=())
        assert conversations.attachment_limits == PUBLIC_LIMITS
        conversations.attachment_limits = replace(PUBLIC_LIMITS, seconds=2.0)
        async with conversations.transcriber._queue.slot():  # another message is being read
            with pytest.raises(InputError, match=r"^Reading the files of this message took too long\. Send fewer"):
                await conversations.send(
                    ann, None, {"text": "", "files": list(map(str, files))}, Choices(model=LARGE.id, extract_text=True)
                )
        conversations.runs.rate_limiter.reserve_answer(ann).release()
    assert readers() == []
    assert not (tmp_path / "media").exists()


@pytest.mark.weights
@pytest.mark.timeout(400)
async def test_message_keeps_picture_and_text(here: Transcriber, tmp_path: Path) -> None:
    path = tmp_path / "receipt.png"
    path.write_bytes(picture_of_text(*INVOICE))
    done: list[Status | None] = []
    text, kept, found = await message_parts(
        {"text": "How much?", "files": [str(path)]},
        spec=QWEN,
        owner="ann",
        max_bytes=10**7,
        transcriber=here,
        report=done.append,
    )
    assert text == "How much?"
    assert isinstance(kept, BinaryContent)
    assert extracted_text_of(found) == {"read": "\n".join(INVOICE), "name": "receipt.png", "kind": "image"}
    assert done[-1] is None
    history = [ModelRequest([UserPromptPart([text, kept, found])])]
    blind, seeing = (adapt(history, replace(QWEN, image=can)) for can in (False, True))
    assert blind.messages[0].parts[0].content == [text, found]
    assert blind.pictures == 0, "it counts as omitted, but was sent as text"
    assert seeing.messages[0].parts[0].content == [text, kept]
    assert isinstance(found, TextContent)
    assert found.content.startswith("Text in the picture receipt.png, read by OCR; it may have")
    assert "Invoice 4711" in found.content


def test_extracted_text_replaces_only_its_source() -> None:
    picture, voice = BinaryContent(b"p", media_type="image/png"), BinaryContent(b"v", media_type="audio/wav")
    seen, heard = extracted_text("P", "p.png", "image"), extracted_text("V", "v.wav", "audio")
    history = [ModelRequest([UserPromptPart([picture, seen, voice, heard, picture])])]
    sent = {
        (image, audio): adapt(history, replace(QWEN, image=image, audio=audio)).messages[0].parts[0].content
        for image in (False, True)
        for audio in (False, True)
    }
    assert sent[True, True] == [picture, voice, picture]
    assert sent[True, False] == [picture, heard, picture]
    assert sent[False, True][:2] == [seen, voice]
    assert sent[False, False][:2] == [seen, heard]
    assert "cannot see" in sent[False, False][2], "this picture has no extracted text"
