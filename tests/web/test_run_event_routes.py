"""The route `/runs/{id}/events` of the running app: only the owner reads it, and from any number."""

import asyncio
import json
import re
import signal
import sqlite3
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from agent.web import run_event_routes
from tests.conftest import App, becomes
from tests.support.asgi_requests import Asked, asked, running_app
from tests.support.http_client import HttpVisitor, forged, marker
from tests.support.scripted_server import Running


def newest_run(app: App, visitor: HttpVisitor) -> str:
    """Return the id of the visitor's newest run, as the answer of `/chat` gives it."""
    with sqlite3.connect(f"file:{app.folder}/data/history.sqlite?mode=ro", uri=True) as db:
        return db.execute("SELECT id FROM runs ORDER BY rowid DESC LIMIT 1").fetchone()[0]


def begun(app: App, visitor: HttpVisitor, text: str) -> str:
    """Send a message and return the id of its run."""
    before = newest_or_none(app)
    assert visitor.begin(text).status == 200
    becomes(True, lambda: newest_or_none(app) not in (None, before))
    return newest_run(app, visitor)


def newest_or_none(app: App) -> str | None:
    try:
        return newest_run(app, None)  # type: ignore[arg-type]
    except TypeError:
        return None


def path(run: str, after: int = 0, **more: str) -> str:
    return f"/runs/{run}/events?after={after}" + "".join(f"&{name}={value}" for name, value in more.items())


def parsed(text: str) -> list[tuple[int, dict[str, Any]]]:
    """Return number and value of each event in a stream's text."""
    found: list[tuple[int, dict[str, Any]]] = []
    for event in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in event.split("\n") if ": " in line and not line.startswith(":"))
        if "id" in fields:
            found.append((int(fields["id"]), json.loads(fields["data"])))
    return found


def answer(events: list[tuple[int, dict[str, Any]]]) -> str:
    return "".join(value["content"] for _, value in events if value["type"] == "output_text")


def test_reader_continues_after_any_event(app: App) -> None:
    visitor = HttpVisitor(app.url)
    run = begun(app, visitor, "!tokens 300 @150")
    with visitor.http.stream("GET", path(run)) as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        assert (stream.headers["cache-control"], stream.headers["x-accel-buffering"]) == (
            "no-store, no-transform",
            "no",
        )
        text, pieces = "", stream.iter_text()
        while len(parsed(text)) < 4:
            text += next(pieces)
    first = parsed(text[: text.rindex("\n\n") + 2])
    rest = visitor.ask("GET", path(run, first[-1][0]), seconds=30).text
    assert rest.endswith("event: end\ndata: {}\n\n")
    whole = [*first, *parsed(rest)]
    assert [number for number, _ in whole] == [*range(1, len(whole) + 1)]
    assert re.findall(r"word\d+", answer(whole)) == [f"word{number}" for number in range(300)]
    for after in (0, 1, len(whole) - 1, len(whole)):
        assert parsed(visitor.ask("GET", path(run, after)).text) == whole[after:]
    assert parsed(visitor.ask("GET", path(run, 10**9)).text) == whole[-1:]  # test_lost_events.py says why
    last_id = {"headers": {"last-event-id": "2"}}
    assert parsed(visitor.ask("GET", path(run), **last_id).text) == whole[2:]
    assert whole[-1][1]["finish_reason"] == "stop"


def test_silent_model_gets_a_comment_at_once(app: App, model_server: Running) -> None:
    visitor, held = HttpVisitor(app.url), marker()
    run = begun(app, visitor, f"!tokens 1 hold 0 {held}")
    with visitor.http.stream("GET", path(run)) as stream:
        assert next(stream.iter_text()).startswith(": connected\nretry: ")
    polled = visitor.ask("GET", path(run, wait="0"))
    assert [value["type"] for _, value in parsed(polled.text)] == ["begun"]
    assert "event: end" not in polled.text
    model_server.release(held)


def test_stream_beats_while_the_model_is_silent(app: App) -> None:
    visitor = HttpVisitor(app.url)
    run = begun(app, visitor, "!wait 5 !text late")
    with visitor.http.stream("GET", path(run)) as stream:
        said = "".join(stream.iter_text())
    assert ": ping\n\n" in said.partition("late")[0]


SAMPLES = bytes(range(240)) * 40


def spoken(samples: bytes) -> str:
    """Return the command for a chunk with this sound."""
    return "!json " + json.dumps([{"audio": {"data": b64encode(samples).decode()}}])


def test_sound_comes_while_it_is_written(app: App, model_server: Running) -> None:
    """Its reader has the first samples while the model is silent, and the rest after that; the answer has a file."""
    visitor, held = HttpVisitor(app.url), marker()
    half = len(SAMPLES) // 2
    run = begun(app, visitor, f"{spoken(SAMPLES[:half])} !tokens 1 hold 0 {held} {spoken(SAMPLES[half:])}")
    with visitor.http.stream("GET", f"/runs/{run}/sound") as stream:
        assert stream.headers["content-type"] == "audio/pcm;rate=24000;channels=1"
        pieces = stream.iter_raw()
        heard = b""
        while len(heard) < half:
            heard += next(pieces)
        assert heard == SAMPLES[:half]
        model_server.release(held)
        assert heard + b"".join(pieces) == SAMPLES
    assert visitor.ask("GET", f"/runs/{run}/sound").status in (204, 404), "it has ended"


async def test_request_for_sound_is_asked_again(
    tmp_path: Path, model_server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy would cut a request that waits for the model's first sound, and a browser has few connections."""
    monkeypatch.setattr(run_event_routes, "SOUND_SECONDS", 0.01)
    held = marker()
    sent = json.dumps({"text": f"!tokens 1 hold 0 {held} {spoken(SAMPLES)}", "id": uuid4().hex}).encode()
    async with running_app(tmp_path, model_server.base_url) as app:
        await app.state.conversations.models.local.ready()
        cookie = (await asked(app, "GET", "/")).cookie

        async def ask(method: str, path: str, body: bytes = b"") -> Asked:
            return await asked(
                app, method, path, body=body, waits=True, cookie=cookie, content_type=b"application/json"
            )

        run = json.loads((await ask("POST", "/conversations", sent)).text)["run"]
        early = await ask("GET", f"/runs/{run}/sound")
        assert (early.status, dict(early.headers)[b"retry-after"]) == (204, b"1")
        monkeypatch.setattr(run_event_routes, "SOUND_SECONDS", 60.0)
        asking = asyncio.create_task(ask("GET", f"/runs/{run}/sound"))
        model_server.release(held)
        assert b"".join((await asking).pieces) == SAMPLES


def test_answer_without_sound_has_an_empty_one(app: App, model_server: Running) -> None:
    visitor, held = HttpVisitor(app.url), marker()
    run = begun(app, visitor, f"!tokens 1 hold 0 {held}")
    assert visitor.ask("GET", f"/runs/{run}/sound?wait=0").status == 204
    assert HttpVisitor(app.url).ask("GET", f"/runs/{run}/sound?wait=0").status == 404
    model_server.release(held)
    assert visitor.ask("GET", f"/runs/{run}/sound").status in (204, 404)


def test_only_owner_reads_events(app: App) -> None:
    visitor = HttpVisitor(app.url)
    assert visitor.cookie
    running = begun(app, visitor, "!tokens 60 @30 secret")
    strangers = [HttpVisitor(app.url), HttpVisitor(app.url, None), HttpVisitor(app.url, forged(visitor.cookie))]
    for more in ({}, {"wait": "0"}, {"format": "blocks"}, {"guest": visitor.cookie}):
        for stranger in strangers:
            said = stranger.ask("GET", path(running, **more))
            assert (said.status, said.text) == (404, "Not found.")
    visitor.listen()
    for stranger in strangers:
        assert stranger.ask("GET", path(running)).status == 404
    assert visitor.ask("GET", path(running)).status == 200
    assert visitor.ask("GET", path("0" * 32)).status == 404
    for method in ("POST", "DELETE", "PUT"):
        assert visitor.ask(method, path(running)).status == 405


def test_odd_ids_of_a_page_get_the_whole_turn(app: App) -> None:
    visitor = HttpVisitor(app.url)
    run = begun(app, visitor, "!wait 5 !text late")
    page = path(run, wait="0", format="blocks").replace("after=0&", "")
    [id_] = re.findall(r"id: (\S+)", visitor.ask("GET", page).text)
    tag = id_.partition("-")[0]
    for number in ("\xb2", "9" * 5000, "-1", "", "1e3", "\xff"):
        said = visitor.ask("GET", page, headers={"last-event-id": f"{tag}-{number}".encode("latin-1")})
        assert (said.status, '"turn":' in said.text) == (200, True), number


@pytest.mark.slow
def test_killed_server_loses_at_most_two_seconds(start_app: Callable[..., App]) -> None:
    app = start_app()
    visitor = HttpVisitor(app.url)
    run = begun(app, visitor, "!tokens 4000 @50")
    with visitor.http.stream("GET", path(run)) as stream:
        text, pieces = "", stream.iter_text()
        while answer(parsed(text[: text.rfind("\n\n") + 2])).count("word") < 250:
            text += next(pieces)
        assert app.process is not None
        app.process.kill()
    seen = answer(parsed(text[: text.rfind("\n\n") + 2])).count("word")
    app.process.wait()
    app.start()
    stored = parsed(visitor.ask("GET", path(run)).text)
    kept = answer(stored).count("word")
    assert kept >= seen - 2.5 * 50  # two seconds, and what one event holds
    assert stored[-1][1]["finish_reason"] == "interrupted"
    assert stored[-1][1]["goes_on"] == "lost"
    assert [number for number, _ in stored] == [*range(1, len(stored) + 1)]


@pytest.mark.slow
def test_second_process_on_one_folder_ends_no_living_run(start_app: Callable[..., App]) -> None:
    """It ends the run as soon as the first process is dead."""
    first = start_app()
    visitor = HttpVisitor(first.url)
    run = begun(first, visitor, "!tokens 9000 @20")
    second = HttpVisitor(start_app(SWITCHBOARD_DATA=first.env["SWITCHBOARD_DATA"]).url, visitor.cookie)

    def end() -> str | None:
        return parsed(second.ask("GET", path(run) + "?wait=0").text)[-1][1].get("finish_reason")

    assert end() is None
    first.stop(signal.SIGKILL)
    becomes("interrupted", end)
