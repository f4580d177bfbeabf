"""The routes of the voice: what speaks and writes down, the sound of a sentence, and the words of a recording."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import FastAPI

from agent.files.transcribe import Transcriber
from agent.providers.speech import MAX_BYTES
from agent.settings import PublicSettings
from agent.web import voice_routes
from agent.web.heavy_work import REQUESTS_EACH, RequestLimit, TooManyRequests
from agent.web.middleware.isolation import API
from agent.web.voice_routes import CHARACTERS_COUNTED, MOST_CHARACTERS, RECORDINGS_EACH, VoiceRoutes
from tests.support.asgi_requests import Asked, asked, running_app
from tests.support.known_texts import SPEECH, SPOKEN
from tests.support.media_files import random_png, sound, tone
from tests.support.scripted_server import Config, Running, running
from tests.support.toy_whisper import hub_with_whisper
from tests.support.waiting import until

WAV = sound("wav", tone(0.1))
HELD = {"silence": None, "error": b"", "page": b"<html>", "long": WAV + bytes(MAX_BYTES)}


def spoken_of(text: str) -> bytes | None:
    return HELD.get(text, WAV)


class Page:
    """A visitor of an app in this process."""

    def __init__(self, app: FastAPI, cookie: bytes, address: str = "127.0.0.1") -> None:
        self.app, self.cookie, self.address = app, cookie, address

    async def ask(self, method: str, path: str, body: Any = None, **how: Any) -> Asked:
        given = body if isinstance(body, bytes) else json.dumps(body).encode() if body is not None else b""
        how.setdefault("waits", True)
        return await asked(self.app, method, path, body=given, cookie=self.cookie, address=self.address, **how)

    async def say(self, text: str, **how: Any) -> Asked:
        return await self.ask("POST", "/speech", {"text": text}, **how)

    async def upload(self, data: bytes) -> str:
        head = b'--b\r\ncontent-disposition: form-data; name="files"; filename="speech.ogg"\r\n\r\n'
        answer = await self.ask("POST", f"{API}upload", head + data + b"\r\n--b--\r\n")
        return json.loads(answer.text)[0]

    async def write_down(self, path: str) -> dict[str, Any]:
        answer = await self.ask("POST", "/dictation", {"path": path})
        return json.loads(answer.text.splitlines()[-1]) | {"code": answer.status}


async def visitor_of(app: FastAPI, address: str = "127.0.0.1") -> Page:
    return Page(app, (await asked(app, "GET", "/", waits=True)).cookie, address)


@asynccontextmanager
async def page_of(folder: Path, speech: Running | None = None, **settings: Any) -> AsyncIterator[Page]:
    named = {"speech": f"{speech.base_url}#tts", "speech_voice": "alloy"} if speech else {}
    async with running_app(folder, **named, **settings) as app:
        yield await visitor_of(app)


async def test_sentence_is_spoken_with_key_and_voice_of_the_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPEECH_API_KEY", "sk-owner")
    with running(Config(speak=spoken_of)) as server:
        async with page_of(tmp_path, server) as page:
            about = json.loads((await page.ask("GET", "/voice")).text)
            answer = await page.say("Hello.")
    assert (answer.status, b"".join(answer.pieces)) == (200, WAV)
    assert dict(answer.headers)[b"content-type"] == b"audio/wav"
    assert dict(answer.headers)[b"cache-control"] == b"no-store"
    expected = {"model": "tts", "voice": "alloy", "input": "Hello.", "response_format": "mp3"}
    assert server.server.spoken == [expected | {"authorization": "Bearer sk-owner"}]
    assert (about["speaks"], about["speaker"]) == (True, "")
    assert "sk-owner" not in json.dumps(about)
    assert server.url not in json.dumps(about)


async def test_what_is_no_short_sound_is_one_sentence(tmp_path: Path) -> None:
    with running(Config(speak=spoken_of)) as server:
        async with page_of(tmp_path, server) as page:
            answers = [await page.say(what) for what in ("error", "page", "long")]
    assert [answer.status for answer in answers] == [502] * 3
    assert [json.loads(answer.text) for answer in answers] == [{"detail": "The server that speaks has failed."}] * 3


async def test_client_that_hangs_up_ends_the_speech(tmp_path: Path) -> None:
    gone = asyncio.Event()
    with running(Config(speak=spoken_of)) as server:
        async with page_of(tmp_path, server) as page:
            asking = asyncio.ensure_future(page.say("silence", gone=gone))
            await until(lambda: server.server.spoken)
            gone.set()
            await asking
            await until(lambda: server.server.unheard)
            assert (await page.say("Hello.")).status == 200, "its place is free"


async def test_spoken_text_counts_by_its_length(tmp_path: Path) -> None:
    """On a public page, a visitor's characters a minute are limited, and so are those of all visitors together."""
    most = REQUESTS_EACH * CHARACTERS_COUNTED // MOST_CHARACTERS
    with running(Config(speak=spoken_of)) as server:
        async with page_of(tmp_path, server, public=PublicSettings()) as page:
            said = [(await page.say("a" * MOST_CHARACTERS)).status for _ in range(most + 1)]
            other = await visitor_of(page.app, "192.0.2.7")
            assert (await other.say("Hello.")).status == 200
    assert said == [200] * most + [429]
    assert len(server.server.spoken) == most + 1


async def test_all_visitors_together_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(voice_routes, "SPOKEN_IN_ALL", 3)
    with running(Config(speak=spoken_of)) as server:
        async with page_of(tmp_path, server, public=PublicSettings()) as page:
            said = [(await (await visitor_of(page.app, f"192.0.2.{n}")).say("Hello.")).status for n in range(5)]
    assert said == [200] * 3 + [429] * 2


async def test_refused_speech_counts_none_of_its_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left of a minute can still be spoken after a text that was too long for it."""
    monkeypatch.setattr(voice_routes, "SPOKEN_IN_ALL", 4)
    with running(Config(speak=spoken_of)) as server:
        async with page_of(tmp_path, server, public=PublicSettings()) as page:
            long = "a" * CHARACTERS_COUNTED * 3
            said = [(await page.say(text)).status for text in (long, long, "Hello.", "Hello.")]
    assert said == [200, 429, 200, 429]


def test_text_that_is_too_long_for_all_counts_for_no_visitor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(voice_routes, "SPOKEN_IN_ALL", 2)
    page: Any = SimpleNamespace(settings=SimpleNamespace(public=PublicSettings()))
    routes, text = VoiceRoutes(page, None, lambda _: "ann"), "a" * CHARACTERS_COUNTED * 3
    routes._spoken = RequestLimit(3, 100)
    with pytest.raises(TooManyRequests):
        routes._count_spoken(text, "ann", None)
    routes._spoken_in_all = RequestLimit(per_address=100)
    routes._count_spoken(text, "ann", None)


async def test_speech_without_a_place_counts_no_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(voice_routes, "SPOKEN_IN_ALL", 5)  # four are held, and one is left
    with running(Config(speak=spoken_of)) as server:
        async with page_of(tmp_path, server, public=PublicSettings()) as page:
            gone = asyncio.Event()
            held = [asyncio.ensure_future(page.say("silence", gone=gone)) for _ in range(4)]
            await until(lambda: len(server.server.spoken) == 4)
            refused = (await page.say("Hello.")).status
            other = await visitor_of(page.app, "192.0.2.7")
            said = [(await other.say("Hello.")).status for _ in range(2)]
            gone.set()
            await asyncio.gather(*held)
    assert (refused, said) == (429, [200, 429])


ODD = [b"", b"[]", b"{", b'{"text": 1}', b'{"text": " "}', b'{"text": "a", "voice": "b"}', b"{}"]
ODD += [json.dumps({"text": "a" * (MOST_CHARACTERS + 1)}).encode(), b'{"text": "%s"}' % (b"a" * 20_000)]


async def test_odd_bodies_reach_no_server(tmp_path: Path) -> None:
    with running(Config(speak=spoken_of)) as server:
        async with page_of(tmp_path, server) as page:
            paths = product(("/speech", "/dictation"), ODD)
            statuses = {(path, body): (await page.ask("POST", path, body)).status for path, body in paths}
            assert (await page.say("\ud800 odd")).status == 200, "half a character is spoken as a sign"
    assert {one: status for one, status in statuses.items() if status != 400} == {}
    assert len(server.server.spoken) == 1


async def test_without_a_server_nothing_is_spoken(tmp_path: Path) -> None:
    async with page_of(tmp_path) as page:
        assert (await page.say("Hello.")).status == 404
        about = json.loads((await page.ask("GET", "/voice", accept_language=b"de")).text)
        assert (about["speaks"], about["speaker"]) == (False, "")
        assert about["said"]["listening"] == "Ich höre zu …"
        assert (await asked(page.app, "POST", "/speech", body=b'{"text": "a"}', waits=True)).status in (401, 404)


@pytest.mark.slow
async def test_recording_becomes_text_and_is_removed(tmp_path: Path) -> None:
    with hub_with_whisper():
        async with running_app(tmp_path, can_download=True) as app:
            page, other = await visitor_of(app), await visitor_of(app)
            assert json.loads((await page.ask("GET", "/voice")).text)["writer"] == "Whisper base"
            path = await page.upload(SPEECH)
            assert (await other.write_down(path))["code"] == 400, "it is another visitor's"
            assert await page.write_down(path) == {"type": "done", "text": SPOKEN, "code": 200}
            assert (await page.write_down(path))["detail"].endswith("could not be read. Attach it again.")
            silence = await page.write_down(await page.upload(sound("wav", tone(1, loud=0))))
            assert silence["detail"].startswith("No speech was heard.")
            picture = await page.write_down(await page.upload(random_png()))
            assert picture["detail"] == "This is no recording."


async def test_recordings_are_counted(tmp_path: Path) -> None:
    async with page_of(tmp_path, public=PublicSettings()) as page:
        codes = [(await page.write_down("/etc/passwd"))["code"] for _ in range(RECORDINGS_EACH + 1)]
    assert codes == [400] * RECORDINGS_EACH + [429]


async def test_one_recording_of_a_visitor_is_written_down_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, go_on = asyncio.Event(), asyncio.Event()

    async def held(*_: object) -> str:
        began.set()
        await go_on.wait()
        return "Hello."

    monkeypatch.setattr(Transcriber, "text_or_nothing", held)
    async with page_of(tmp_path) as page:
        paths = [await page.upload(SPEECH) for _ in range(2)]
        first = asyncio.ensure_future(page.write_down(paths[0]))
        await began.wait()
        refused = await page.write_down(paths[1])
        go_on.set()
        texts = [(await first)["text"], (await page.write_down(paths[1]))["text"]]
    assert (refused["code"], refused["detail"].split(".")[0]) == (
        (429, "This server writes other recordings down at the moment")
    )
    assert texts == ["Hello."] * 2


async def test_server_that_writes_nothing_down_says_why(tmp_path: Path) -> None:
    async with page_of(tmp_path) as page:
        about = json.loads((await page.ask("GET", "/voice")).text)
        assert about["writer"] == ""
        assert about["why"].startswith("Whisper base is not on this disk")
        path = await page.upload(SPEECH)
        told, again = [await page.write_down(path) for _ in range(2)]
    assert told["type"] == "error"
    assert told["detail"] == about["why"]
    assert again["detail"].endswith("could not be read. Attach it again."), "it is removed"
