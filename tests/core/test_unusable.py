"""Images and audio that the model does not support: refused in a prompt, listed if omitted from the history."""

import base64
import sys
from dataclasses import replace
from typing import Any

import pytest
from PIL import Image as Pillow

from agent import Agent, Audio, BinaryContent, Chat, Endpoint, Image, InputError, connect
from agent.files.kinds import DOCX, PDF
from agent.files.parts import extracted_text
from agent.models.catalog import load_catalog
from tests.support import media_files
from tests.support.models import QWEN3
from tests.support.scripted_server import Running

PICTURE = media_files.picture("PNG")
URL = "data:image/png;base64," + base64.b64encode(PICTURE).decode()
PART = {"type": "image_url", "image_url": {"url": URL}}
SAID = "Qwen3 cannot take images. Remove them, or use a model that can: vllm:Qwen/"


PROMPTS: dict[str, Any] = {
    "bytes": ["See:", Image.from_bytes(PICTURE)],
    "alone": Image.from_bytes(PICTURE),
    "url": ["See:", Image.from_url("https://example.org/x.png")],
    "pillow": ["See:", Pillow.new("RGB", (4, 4))],
    "part": ["See:", PART],
    "openai": [{"role": "user", "content": [{"type": "text", "text": "See:"}, PART]}],
    "after an answer": [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": [PART]},
        {"role": "user", "content": "See?"},
    ],
}


@pytest.mark.parametrize("name", PROMPTS)
async def test_unusable_prompt_is_refused_before_any_request(server: Running, name: str) -> None:
    before = len(server.journal())
    async with Agent(connect(QWEN3, Endpoint(server.base_url))) as agent:
        with pytest.raises(InputError) as refused:
            await agent.ask(PROMPTS[name])
        with pytest.raises(InputError):
            agent.run(PROMPTS[name])
        chat = Chat(agent)
        with pytest.raises(InputError):
            list(chat.query(PROMPTS[name]))
        assert chat.messages == []
        await chat.aclose()
    assert str(refused.value).startswith(SAID)
    assert len(server.journal()) == before


@pytest.mark.parametrize(
    ("module", "part"),
    [
        ("soundfile", Audio.from_bytes(media_files.ready())),
        ("numpy", Audio.from_bytes(media_files.ready())),
        ("pillow_heif", BinaryContent(b"", media_type="image/heic")),
        ("lxml", BinaryContent(b"", media_type=DOCX)),
        ("pypdfium2", BinaryContent(b"", media_type=PDF)),
    ],
)
async def test_file_without_its_extra_is_refused_before_any_request(
    server: Running, monkeypatch: pytest.MonkeyPatch, module: str, part: BinaryContent
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    before = len(server.journal())
    spec = replace(QWEN3, image=True, audio=True)
    async with Agent(connect(spec, Endpoint(server.base_url))) as agent:
        with pytest.raises(InputError, match=r"needs more packages: pip install .\.\[(media|documents)\]"):
            agent.run(["See:", part])
    assert len(server.journal()) == before


async def test_models_with_key_are_named(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMINI_API_KEY", "key")
    agent = Agent(connect(replace(QWEN3, provider="llama.cpp"), Endpoint(server.base_url)))
    with pytest.raises(InputError, match=r"cannot take images or audio\. .* that can: google:gemini-"):
        agent.run(["Both:", Image.from_bytes(PICTURE), Audio.from_bytes(media_files.ready())])
    with pytest.raises(InputError, match="cannot take audio") as refused:
        agent.run(Audio.from_bytes(media_files.ready()))
    named = str(refused.value).partition("that can: ")[2].rstrip(".").split(", ")
    assert all(load_catalog().models[one].audio for one in named)


async def test_extracted_text_beside_an_image_is_enough(server: Running) -> None:
    async with Agent(connect(QWEN3, Endpoint(server.base_url))) as agent:
        result = await agent.ask(
            ["!text Read.", Image.from_bytes(PICTURE), extracted_text("STOP", "sign.png", "image")]
        )
    assert result.text.startswith("Read.")
    assert result.notes == ()


async def test_history_without_its_image_is_noted_each_time(server: Running) -> None:
    history = [{"role": "user", "content": [PART]}, {"role": "assistant", "content": "A sign."}]
    async with Agent(connect(QWEN3, Endpoint(server.base_url))) as agent:
        first = await agent.ask([*history, "!text One."])
        second = await agent.ask("!text Two.", context=first.context)
    said = ("Not sent to Qwen3, which cannot use it: 1 picture.",)
    assert (first.text, second.text, first.notes, second.notes) == ("One.", "Two.", said, said)
