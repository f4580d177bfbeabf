"""Which store a URL opens, and what lies beside it."""

from contextlib import aclosing
from pathlib import Path

import pytest

from agent.errors import ConfigError
from agent.history import open_store
from agent.history.open_store import other_histories, sqlite_path
from tests.support.history_stores import ALICE, started


@pytest.mark.parametrize("url", ["sqlite", "sqlite:///{}/other.db", "json", "json:talks", "json:{}/talks"])
async def test_url_names_the_same_data_again(url: str, tmp_path: Path) -> None:
    url = url.format(tmp_path)
    async with aclosing(await open_store(url, folder=tmp_path)) as store:
        record, _ = await started(store)
    async with aclosing(await open_store(url, folder=tmp_path)) as store:
        assert await store.list(ALICE) == [record]


@pytest.mark.parametrize("url", ["sqlite:////a/b.db", "sqlite:/a/b.db"])
def test_file_of_a_sqlite_history(url: str, tmp_path: Path) -> None:
    assert sqlite_path(url, tmp_path) == Path("/a/b.db")
    assert sqlite_path(url.replace("/a/", "a/"), tmp_path) == Path("a/b.db")


async def test_unknown_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no history store for 'carrier-pigeon'"):
        await open_store("carrier-pigeon://coop", folder=tmp_path)


async def test_other_history_in_the_folder_is_found(tmp_path: Path) -> None:
    for url in ("sqlite", "json"):
        await (await open_store(url, folder=tmp_path)).aclose()
    file, folder = tmp_path / "history.sqlite", tmp_path / "history"
    assert other_histories("sqlite", tmp_path) == [folder]
    assert other_histories("json:history", tmp_path) == [file]
    assert other_histories("memory:", tmp_path) == other_histories("redis://host", tmp_path) == [file, folder]
    assert other_histories("memory:", tmp_path / "empty") == []
