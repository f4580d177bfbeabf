"""The data folder is readable by its user alone, whether the app makes it or finds it."""

from collections.abc import Callable
from pathlib import Path

from agent.serving.private_folder import make_private
from tests.conftest import App
from tests.scripted_server import Config, running
from tests.test_walls import PICTURES, Program, marker, png


def open_to_others(folder: Path) -> list[str]:
    """What others could read or enter."""
    return [str(path) for path in (folder, *folder.rglob("*")) if path.stat().st_mode & 0o077]


def test_running_app_keeps_its_data_private(start_app: Callable[..., App]) -> None:
    with running(Config(models=(PICTURES,), rate=500.0)) as server:
        app = start_app(VLLM_BASE_URL=server.base_url)
        program, word = Program(app.url), marker()
        assert word in program.say(f"!text {word}", program.upload("p.png", png()))
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
