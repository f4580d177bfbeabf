"""The S3 server that the tests of attached files share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.s3_server import S3Server, s3_server


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def s3_folder(s3: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """Return the URL of an empty folder on the server, with the right keys in the environment."""
    s3.set_variables(monkeypatch)
    return s3.url(tmp_path.name)
