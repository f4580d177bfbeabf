"""The canary finds a broken wall between visitors, makes the app unready, and leaves nothing behind."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from agent.history import sqlite
from agent.settings import LocalSettings, Settings
from agent.web import app as web_app
from agent.web import canary as canary_module
from agent.web import transfer_routes
from agent.web.app import create_app
from agent.web.canary import CROSSED, Canary
from agent.web.chat.orphaned_files import PROBE
from agent.web.middleware.issued_ids import IssuedIds
from tests.conftest import App
from tests.support.http_client import HttpVisitor


@pytest.fixture
async def app(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[FastAPI]:
    local = LocalSettings(cache_dir=tmp_path, downloads=False)
    settings = Settings(data_dir=tmp_path, canary=False, local=local, root_path=getattr(request, "param", ""))
    made = await create_app(settings, say=lambda _: None)
    async with made.router.lifespan_context(made):
        yield made


def rows(folder: Path) -> int:
    with closing(sqlite3.connect(f"file:{folder}/history.sqlite?mode=ro", uri=True)) as db:
        return db.execute("SELECT count(*) FROM conversations WHERE owner != ?", [PROBE]).fetchone()[0]


def stored_bytes(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("app", ["", "/chat", "https://example.org/chat"], indirect=True)
async def test_sound_walls_pass_and_nothing_is_left(
    app: FastAPI, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await app.state.canary.run()
    assert app.state.canary.problem == ""
    assert not caplog.records
    assert rows(tmp_path) == 0
    assert b"Nobody but me can read" not in stored_bytes(tmp_path)


def everybody(_: object) -> str:
    return "everybody"


def one_cookie_for_all(patch: pytest.MonkeyPatch) -> None:
    for module in (web_app, transfer_routes):
        patch.setattr(module, "visitor_id_of", everybody)


def store_ignores_owner(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sqlite, "_GET", sqlite._GET.replace("owner = :owner", ":owner = :owner"))  # pyright: ignore[reportPrivateUsage]


def files_ignore_owner(patch: pytest.MonkeyPatch) -> None:
    def owns(ids: IssuedIds, id_: str, owner: str | None) -> bool:
        return True

    patch.setattr(IssuedIds, "owns", owns)


@pytest.mark.parametrize("breach", [one_cookie_for_all, store_ignores_owner, files_ignore_owner])
async def test_broken_wall_makes_the_app_unready(
    app: FastAPI, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, breach: Any
) -> None:
    canary: Canary = app.state.canary
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as supervisor:
        with monkeypatch.context() as patch:
            breach(patch)
            answer = await supervisor.get("/readyz?canary=1")
        assert (answer.status_code, answer.json()["reason"]) == (503, CROSSED)
        assert "visitors are not separated" in caplog.text
        assert (await supervisor.get("/readyz?canary=1")).json()["reason"] == CROSSED  # it has just run
        await canary.run()
        assert (await supervisor.get("/readyz")).json()["reason"] != CROSSED


async def test_broken_wall_is_found_after_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(canary_module, "START_SECONDS", 0)
    files_ignore_owner(monkeypatch)
    local = LocalSettings(cache_dir=tmp_path, downloads=False)
    made = await create_app(Settings(data_dir=tmp_path, local=local), say=lambda _: None)
    async with (
        made.router.lifespan_context(made),
        httpx.AsyncClient(transport=httpx.ASGITransport(made), base_url="http://127.0.0.1") as supervisor,
        asyncio.timeout(60),
    ):
        while (answer := await supervisor.get("/readyz")).json().get("reason") != CROSSED:  # noqa: ASYNC110 - a supervisor asks, too
            await asyncio.sleep(0.05)
    assert answer.status_code == 503


async def test_store_that_is_away_proves_nothing(
    app: FastAPI, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sqlite, "_GET", "SELECT nothing")
    await app.state.canary.run()
    assert app.state.canary.problem == ""
    assert "could not be checked" in caplog.text


@pytest.mark.slow
def test_public_app_passes_beside_a_visitor(start_app: Any) -> None:
    app: App = start_app("[public]\non = true\n", SWITCHBOARD_CANARY="0")
    visitor = HttpVisitor(app.url)
    assert "kept" in visitor.say("!text kept")
    assert visitor.ask("GET", "/readyz?canary=1").status == 200
    assert rows(app.folder / "data") == 1
    assert "could not be checked" not in app.log
    assert CROSSED not in app.log
