"""Ratings as a dataset on the hub: the real client of the hub, and a hub on loopback."""

import asyncio
import json
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.web.chat import ratings
from agent.web.chat.ratings import RatingsDataset
from agent.web.chat.transcript import ConversationTurn
from agent.web.chat.turns import plain_texts
from tests.support.asgi_requests import asked, running_app
from tests.support.hub_server import serving
from tests.support.hub_state import TOKEN, Hub
from tests.support.scripted_server import Running

NAME, COMMIT = "ada/ratings", "POST /api/datasets/ada/ratings/commit/main"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    with serving() as served:
        for name, value in {"HF_ENDPOINT": served.url, "HF_TOKEN": TOKEN, "HF_HOME": str(tmp_path / "home")}.items():
            monkeypatch.setenv(name, value)
        yield served


def rows_of(hub: Hub) -> list[str]:
    """Return the lines of the dataset, file by file."""
    files = hub.datasets[NAME].files if NAME in hub.datasets else {}
    return [line for path in sorted(files) if path.endswith(".jsonl") for line in files[path].decode().splitlines()]


async def test_long_texts_of_a_rating_are_read_in_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An import can have made them long, and no other visitor waits for them."""
    threads = list[threading.Thread]()

    def texts(turn: ConversationTurn) -> dict[str, str]:
        threads.append(threading.current_thread())
        return plain_texts(turn)

    monkeypatch.setattr(ratings, "plain_texts", texts)
    turn = ConversationTurn(user=None, bubbles=(), note=None)
    await ratings.Ratings(tmp_path / "ratings.jsonl").add(turn, is_good=True, reason="", with_text=True)
    assert json.loads((tmp_path / "ratings.jsonl").read_text())["answer"] == ""
    assert (tmp_path / "ratings.jsonl").stat().st_mode & 0o777 == 0o600
    assert [one is threading.main_thread() for one in threads] == [False]


async def test_last_ratings_reach_the_dataset(
    hub: Hub, tmp_path: Path, server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy machine can need longer for the last push than an app takes to end."""
    monkeypatch.setattr("agent.web.chat.ratings.LAST_SECONDS", 60.0)
    async with running_app(tmp_path / "app", server.base_url, ratings_dataset=NAME) as app:
        await app.state.conversations.models.local.ready()
        cookie = (await asked(app, "GET", "/")).cookie
        about: dict[str, Any] = {"waits": True, "cookie": cookie, "content_type": b"application/json"}
        begun = await asked(app, "POST", "/conversations", body=b'{"text": "!text A secret."}', **about)
        chat = f"/conversations/{json.loads(begun.text)['conversation']}"
        await app.state.conversations.live_runs.close(60)
        [turn] = json.loads((await asked(app, "GET", chat, "format=blocks", **about)).text)["turns"]
        body = b'{"good": true, "reason": "Short."}'
        assert (await asked(app, "POST", f"{chat}/messages/{turn['id']}/rating", body=body, **about)).status == 204
    [row] = map(json.loads, rows_of(hub))
    assert (row["rating"], row["reason"], "message" in row) == ("good", "Short.", False)
    assert hub.datasets[NAME].private
    [file] = (tmp_path / "app" / "ratings-dataset").glob("*.jsonl")
    assert json.loads(file.read_text()) == row


async def test_process_that_ends_before_its_first_push_pushes(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"rating": "good"}\n')
    await RatingsDataset(NAME, tmp_path).aclose()
    assert rows_of(hub) == ['{"rating": "good"}']


async def test_process_without_ratings_asks_no_hub(hub: Hub, tmp_path: Path) -> None:
    await RatingsDataset(NAME, tmp_path).aclose()
    assert hub.asked == []


async def test_failed_hub_loses_no_rating(hub: Hub, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "a.jsonl").write_text('{"rating": "good"}\n')
    hub.refuse = {"POST /api/repos/create": (403, "Not now."), COMMIT: (403, "Not yet.")}
    waits = list[float]()

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 2:
            del hub.refuse["POST /api/repos/create"]

    caplog.set_level(logging.WARNING)
    first = RatingsDataset(NAME, tmp_path, sleep=sleep)
    await first.run()
    assert (len(waits), caplog.text.count("ratings are only kept here")) == (2, 2)
    await first.aclose()
    assert "the last ratings were not pushed" in caplog.text
    assert rows_of(hub) == []
    hub.refuse = {}
    (tmp_path / "b.jsonl").write_text('{"rating": "bad"}\n')
    second = RatingsDataset(NAME, tmp_path)
    await second.run()
    await second.aclose()
    assert rows_of(hub) == ['{"rating": "good"}', '{"rating": "bad"}']
    assert TOKEN not in caplog.text


async def test_silent_hub_holds_up_no_end(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("agent.web.chat.ratings.LAST_SECONDS", 0.0)
    dataset = RatingsDataset(NAME, tmp_path)
    await dataset.run()
    await dataset.aclose()
    assert "a start with the same folder pushes them" in caplog.text


async def test_dataset_without_a_token_is_said(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("HF_TOKEN")
    stopped = asyncio.Event()

    async def sleep(_: float) -> None:
        stopped.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(RatingsDataset(NAME, tmp_path, sleep=sleep).run())
    await stopped.wait()
    task.cancel()
    await asyncio.wait([task])
    assert "there is no token" in caplog.text
    assert hub.asked == []
