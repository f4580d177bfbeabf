"""The files with which browsers run Python: what is served of a folder, to whom, and what the page's policy allows."""

import shutil
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from agent.errors import ConfigError
from agent.web.middleware.isolation import IsolationMiddleware
from agent.web.middleware.origins import POLICY, policy_with
from agent.web.middleware.visitor_cookie import VisitorCookies
from agent.web.python_files import NEEDED, PythonFiles
from tests.peers.install import MODULES

PYODIDE = MODULES / "pyodide"
FOREIGN = {"origin": "null", "sec-fetch-site": "cross-site"}


async def got(files: PythonFiles, name: str, folder: Path) -> httpx.Response:
    """Ask for a file as a frame without an origin does, through the page's middleware."""
    app = FastAPI()
    files.add_to(app)
    inside = IsolationMiddleware(app, VisitorCookies.in_folder(folder))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(inside), base_url="http://localhost") as http:
        return await http.get(f"/{files.address}{name}", headers=FOREIGN)


@pytest.mark.parametrize("name", NEEDED)
async def test_frame_without_origin_gets_each_file(tmp_path: Path, name: str) -> None:
    found = await got(PythonFiles(str(PYODIDE), tmp_path), name, tmp_path)
    assert found.status_code == 200
    assert found.content == (PYODIDE / name).read_bytes()
    assert found.headers["access-control-allow-origin"] == "*"
    assert "immutable" in found.headers["cache-control"]
    assert "set-cookie" not in found.headers


@pytest.mark.parametrize("name", ["README.md", "no.mjs", "%2e%2e/app.py", "..%2fpackage.json", "a/b.mjs", ""])
async def test_nothing_else_is_served(tmp_path: Path, name: str) -> None:
    assert (await got(PythonFiles(str(PYODIDE), tmp_path), name, tmp_path)).status_code in (404, 405)


def test_incomplete_folder_is_refused_at_the_start(tmp_path: Path) -> None:
    for name in NEEDED[:-1]:
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(ConfigError, match=r"has no python_stdlib\.zip"):
        PythonFiles(str(tmp_path), tmp_path)


def test_other_files_have_another_address(tmp_path: Path) -> None:
    folder = tmp_path / "pyodide"
    folder.mkdir()
    for name in NEEDED:
        shutil.copy(PYODIDE / name, folder)
    first = PythonFiles("pyodide", tmp_path).address
    assert first == PythonFiles(str(folder), Path()).address
    for name in ("pyodide.mjs", "pyodide-lock.json"):
        (folder / name).write_text("{}")
        assert PythonFiles("pyodide", tmp_path).address != first
        first = PythonFiles("pyodide", tmp_path).address


def test_policy_is_wider_only_for_files_of_another_site(tmp_path: Path) -> None:
    for place in ("", str(PYODIDE)):
        assert policy_with(PythonFiles(place, tmp_path).site) == POLICY
    files = PythonFiles("https://cdn.example/py", tmp_path)
    assert (files.address, files.site) == (2 * ("https://cdn.example/py/",))
    changed = {*policy_with(files.site).split("; ")} - {*POLICY.split("; ")}
    assert {one.partition(" ")[0] for one in changed} == {"script-src", "connect-src"}
    assert policy_with(files.site).replace(f" {files.site}", "") == POLICY
