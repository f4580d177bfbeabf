"""Only its user can read the data folder, both if the app creates it and if it exists."""

import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.errors import ConfigError
from agent.web.middleware.visitor_cookie import VisitorCookies
from agent.web.privacy import make_private
from tests.conftest import App
from tests.support.http_client import HttpVisitor, marker
from tests.support.media_files import random_png
from tests.support.models import VISION_MODEL
from tests.support.scripted_server import Config, running


def open_to_others(folder: Path) -> list[str]:
    """Return the paths that other users could read or enter."""
    return [str(path) for path in (folder, *folder.rglob("*")) if path.stat().st_mode & 0o077]


def test_running_app_keeps_its_data_private(start_app: Callable[..., App]) -> None:
    with running(Config(models=(VISION_MODEL,), rate=500.0)) as server:
        app = start_app(VLLM_BASE_URL=server.base_url)
        program, word = HttpVisitor(app.url), marker()
        assert word in program.say(f"!text {word}", program.upload("p.png", random_png()))
    data, names = app.folder / "data", {path.name for path in (app.folder / "data").iterdir()}
    assert {"history.sqlite", "history.sqlite-wal", "history.sqlite-shm", "secret", "media"} <= names
    assert open_to_others(data) == []
    assert open_to_others(app.folder / "tmp") == []
    app.stop()
    for path in (data, *data.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    app.start()
    assert open_to_others(data) == []
    app.stop()


def test_other_peoples_files_in_the_folder_stay(tmp_path: Path) -> None:
    program, target = tmp_path / "cache" / "llama-server", tmp_path / "elsewhere"
    program.parent.mkdir()
    for path in (program, target):
        path.touch()
        path.chmod(0o755)
    (tmp_path / "media").mkdir()
    (tmp_path / "media" / "link").symlink_to(target)
    make_private(tmp_path)
    assert program.stat().st_mode & 0o777 == 0o755
    assert target.stat().st_mode & 0o777 == 0o755
    assert (tmp_path.stat().st_mode & 0o777, (tmp_path / "media").stat().st_mode & 0o777) == (0o700, 0o700)


def test_link_in_the_data_folder_is_not_followed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    elsewhere, data = tmp_path / "elsewhere", tmp_path / "data"
    (elsewhere / "below").mkdir(parents=True)
    (elsewhere / "below" / "file").touch()
    data.mkdir()
    (data / "secret").touch()
    for path in (elsewhere, elsewhere / "below", elsewhere / "below" / "file", data, data / "secret"):
        path.chmod(0o755)
    (data / "media").symlink_to(elsewhere)
    (tmp_path / "link").symlink_to(data)
    with caplog.at_level(logging.WARNING):
        make_private(tmp_path / "link")
    modes = {path.stat().st_mode & 0o777 for path in (elsewhere, *elsewhere.rglob("*"))}
    assert modes == {0o755}
    assert (data.stat().st_mode & 0o777, (data / "secret").stat().st_mode & 0o777) == (0o700, 0o700)
    assert "media is a link" in caplog.text


def test_file_for_the_data_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").touch()
    with pytest.raises(ConfigError, match=r"The data folder .*/data cannot be used: File exists\."):
        make_private(tmp_path / "data")


def test_new_key_is_readable_by_its_user_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SWITCHBOARD_SECRET", raising=False)
    before = os.umask(0)
    try:
        VisitorCookies.in_folder(tmp_path)
    finally:
        os.umask(before)
    assert (tmp_path / "secret").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(("key", "said"), [("", "has 0 characters and needs 43"), ("k" * 42, "has 42 characters")])
def test_short_key_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, said: str) -> None:
    monkeypatch.delenv("SWITCHBOARD_SECRET", raising=False)
    (tmp_path / "secret").write_text(key)
    with pytest.raises(ConfigError, match=said) as refused:
        VisitorCookies.in_folder(tmp_path)
    assert str(tmp_path / "secret") in str(refused.value)
    (tmp_path / "secret").unlink()
    _, cookie = VisitorCookies.in_folder(tmp_path).mint()
    assert VisitorCookies.in_folder(tmp_path).read(cookie)
    assert [path.name for path in tmp_path.iterdir()] == ["secret"]


@pytest.mark.parametrize("secret", ["k", " " * 40, "k" * 15 + "\n"])
def test_short_secret_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, secret: str) -> None:
    monkeypatch.setenv("SWITCHBOARD_SECRET", secret)
    with pytest.raises(ConfigError, match="SWITCHBOARD_SECRET is shorter than 16 characters"):
        VisitorCookies.in_folder(tmp_path)
    monkeypatch.setenv("SWITCHBOARD_SECRET", "k" * 16)
    _, cookie = VisitorCookies.in_folder(tmp_path).mint()
    assert VisitorCookies("k" * 16).read(cookie)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: path.symlink_to(path.parent / "missing")])  # pyright: ignore
def test_key_that_is_no_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], None]
) -> None:
    monkeypatch.delenv("SWITCHBOARD_SECRET", raising=False)
    make(tmp_path / "secret")
    with pytest.raises(
        ConfigError,
        match=r"/secret, (is not a file|cannot be used: No such file or directory|cannot be used: Is a directory)\.",
    ):
        VisitorCookies.in_folder(tmp_path)
