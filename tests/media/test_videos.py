"""Whole videos: what is one, which models get it, the bytes that reach them, and what is stored, shown and exported."""

import base64
import struct
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_ai.messages import BinaryContent, ModelMessage, ModelRequest
from pydantic_ai.messages import UserPromptPart as Prompt

from agent import Agent, Endpoint, InputError, ModelSpec, connect
from agent.files.convert import convert_messages
from agent.files.parts import part_from_path
from agent.files.references import with_data, with_references
from agent.files.store import MediaStore, type_of_id
from agent.files.videos import Video, fit_video, read_video
from agent.messages.adapt import NO_VIDEO, adapt, content_items
from agent.messages.openai import from_openai, to_openai
from agent.messages.repair import file_bytes
from agent.models.catalog import Catalog, load_catalog
from agent.rendering.html import around_file
from agent.web.chat.attachments import plan_attachments
from agent.web.media_route import headers_of
from tests.support import dialects
from tests.support.dialect_server import Playing, Reply
from tests.support.media_files import sound, video
from tests.support.replies import chat_completions

running_server, server = dialects.running_server, dialects.server

RED, BLUE = (220, 20, 20), (20, 20, 220)
KINDS = {"webm": "video/webm", "mp4": "video/mp4", "mov": "video/quicktime", "matroska": "video/x-matroska"}
CLIPS = {container: video([RED, RED, BLUE], container=container) for container in KINDS}
CATALOG: Catalog = load_catalog()
GEMINI, QWEN = CATALOG.find("gemini-3.8-flash"), CATALOG.find("Qwen/Qwen3-VL-8B-Instruct")
BLIND = CATALOG.find("vllm:google/gemma-3-4b-it")


def message(data: bytes, media_type: str = "video/webm") -> list[ModelMessage]:
    part = BinaryContent(data, media_type=media_type, identifier="clip.webm")
    return [ModelRequest([Prompt(["What happens?", part])])]


# --- what a video is --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("container", KINDS)
def test_video_is_known_by_its_container(container: str) -> None:
    found = read_video(CLIPS[container])
    assert found is not None
    assert found.media_type == KINDS[container]
    assert found.seconds == pytest.approx(3, abs=0.2)


@pytest.mark.parametrize("kind", ["m4a", "webm", "wav"])
def test_sound_is_no_video(kind: str) -> None:
    assert read_video(sound(kind)) is None


@given(st.sampled_from([*KINDS]), st.data())
def test_broken_video_is_read_without_an_error(container: str, data: st.DataObject) -> None:
    """A header with any bytes in it, cut off anywhere, is a video of some length or none."""
    clip = bytearray(CLIPS[container])
    for _ in range(data.draw(st.integers(0, 6))):
        clip[data.draw(st.integers(0, len(clip) - 1))] = data.draw(st.integers(0, 255))
    found = read_video(bytes(clip[: data.draw(st.integers(0, len(clip)))]))
    assert found is None or found.seconds >= 0


def test_boxes_within_boxes_end() -> None:
    """Each box claims that it holds the rest: neither the stack nor the time grows with them."""
    boxes = b"".join((8 * left).to_bytes(4, "big") + b"moov" for left in range(40_000, 0, -1))
    assert read_video(b"\0\0\0\x10ftypmp42\0\0\0\0" + boxes) is None
    assert read_video(b"\x1a\x45\xdf\xa3\x80" + b"\x18\x53\x80\x67\x01\xff\xff\xff\xff\xff\xff\xff" * 40_000) is None


def test_video_over_a_limit_is_refused_with_it() -> None:
    for spec, clip, found, why in (
        (GEMINI, b"x" * 20_000_001, Video("video/mp4", 3), "has 20.0 MB; 20 MB is the most for a video"),
        (QWEN, b"x", Video("video/mp4", 601), "is longer than 10 min, which is the most that is taken"),
        (QWEN, b"x", Video("video/quicktime", 3), "does not take. It takes MP4, WebM"),
    ):
        with pytest.raises(InputError, match=why):
            fit_video(clip, found, spec)


# --- which models get it ----------------------------------------------------------------------------------------------


async def planned(tmp_path: Path, spec: ModelSpec, *containers: str) -> list[tuple[str, str]]:
    paths = [tmp_path / f"{number}.{container}" for number, container in enumerate(containers)]
    for path, container in zip(paths, containers, strict=True):
        path.write_bytes(CLIPS[container])
    menu = [BLIND, GEMINI]
    plans = await plan_attachments(paths, spec, max_bytes=10**7, menu=menu)
    assert all([*plan.others] == ([GEMINI] if not spec.video else []) for plan in plans)
    return [(plan.outcome, str(plan.text)) for plan in plans]


async def test_plan_says_that_a_video_is_sent_whole(tmp_path: Path) -> None:
    assert await planned(tmp_path, GEMINI, "webm", "mp4") == [("as it is", "sent as a whole video, 3 s")] * 2
    assert await planned(tmp_path, QWEN, "mp4", "mp4") == [
        ("as it is", "sent as a whole video, 3 s"),
        ("refused", f"{QWEN.label} takes 1 video in one message. Send 1.mp4 in another."),
    ]


async def test_plan_says_why_a_video_is_not_taken(tmp_path: Path) -> None:
    said = f'{BLIND.label} cannot take a whole video. Attach "0.mp4" again to send pictures of it, or choose a model.'
    assert await planned(tmp_path, BLIND, "mp4") == [("refused", said)]
    [(outcome, text)] = await planned(tmp_path, GEMINI, "mov")
    assert (outcome, text) == (
        "refused",
        "0.mov is a video of a kind that this model does not take. It takes MP4, WebM.",
    )


def test_model_without_video_gets_a_sentence_in_its_place() -> None:
    messages = message(CLIPS["webm"])
    adapted = adapt(messages, BLIND)
    assert adapted.videos == 1
    assert adapted.sentence(BLIND) == f"Not sent to {BLIND.label}, which cannot use it: 1 video."
    assert [*content_items(adapted.messages[0])] == ["What happens?", NO_VIDEO]
    assert adapt(messages, GEMINI).messages == messages


# --- the bytes that reach a server ------------------------------------------------------------------------------------


async def asked(server: Playing, spec: ModelSpec, content: Sequence[str | BinaryContent]) -> None:
    async with Agent(connect(spec, Endpoint(f"{server.url}/v1", "none"))) as agent:
        (await agent.ask([*content])).checked()


async def test_vllm_gets_a_video_url(server: Playing) -> None:
    server.play(chat_completions.reply(chat_completions.chunk(content="Seen."), *chat_completions.ending()))
    await asked(server, QWEN, ["What happens?", BinaryContent(CLIPS["mp4"], media_type="video/mp4")])
    url = f"data:video/mp4;base64,{base64.b64encode(CLIPS['mp4']).decode()}"
    assert server.requests[0].json["messages"][-1]["content"][1] == {"type": "video_url", "video_url": {"url": url}}


async def test_server_that_takes_no_video_is_asked_without(server: Playing) -> None:
    """vLLM that was started without videos says so once; the run goes on, and tells it."""
    refusal = {"error": {"message": "At most 0 video(s) may be provided in one prompt.", "type": "BadRequestError"}}
    server.play(
        Reply(status=400, body=refusal),
        chat_completions.reply(chat_completions.chunk(content="Hi."), *chat_completions.ending()),
    )
    spec = replace(QWEN, id="vllm:refuses", name="Qwen/Qwen3-VL-2B-Refuses")
    async with Agent(connect(spec, Endpoint(f"{server.url}/v1", "none"))) as agent:
        result = await agent.ask(["What happens?", BinaryContent(CLIPS["mp4"], media_type="video/mp4")])
    assert result.text == "Hi."
    assert server.requests[1].json["messages"][-1]["content"][1] == {"type": "text", "text": NO_VIDEO}


async def test_unreadable_video_in_a_prompt_is_refused() -> None:
    with pytest.raises(InputError, match=r"The video \(file\) in the message can't be opened as a video"):
        await convert_messages(message(b"nothing"), QWEN)


def test_video_counts_by_its_length() -> None:
    def counted(seconds: int) -> int:
        clip = bytearray(CLIPS["mp4"])
        at = clip.index(b"mvhd") + 16  # after the version and two times: the scale and the length
        clip[at : at + 8] = struct.pack(">II", 1, seconds)
        return file_bytes(BinaryContent(bytes(clip), media_type="video/mp4"))

    assert [counted(seconds) for seconds in (1, 10, 20, 6000)] == [3000, 9000, 18_000, 60_000]


# --- what is stored, shown and exported -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["webm", "mp4"])
async def test_video_is_stored_with_its_type(tmp_path: Path, kind: str) -> None:
    media, [prompt] = MediaStore(tmp_path), message(CLIPS[kind], KINDS[kind])
    stored = await with_references(media, "visitor", prompt, "chat/1")
    [id_] = await media.files("visitor")
    assert type_of_id(id_) == KINDS[kind]
    assert await with_data(media, "visitor", [stored]) == [prompt]
    headers = headers_of(await media.find("visitor", id_), "clip.webm")
    assert headers["content-disposition"] == "inline"
    assert around_file(type_of_id(id_), "a<b")[0].startswith('<p class="file"><video controls')


def test_openai_format_carries_a_video(tmp_path: Path) -> None:
    messages = message(CLIPS["mp4"], "video/mp4")
    written = to_openai(messages)
    assert written[0]["content"][1]["type"] == "video_url"
    [read] = from_openai(written)
    _, part = content_items(read)
    assert isinstance(part, BinaryContent)
    assert (part.data, part.media_type) == (CLIPS["mp4"], "video/mp4")
    path = tmp_path / "clip.mp4"
    path.write_bytes(CLIPS["mp4"])
    assert part_from_path(path) == BinaryContent(CLIPS["mp4"], media_type="video/mp4")
