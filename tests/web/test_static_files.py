"""The page's scripts and styles are the same for every browser, compressed once, and requested once."""

import asyncio
import re
from graphlib import TopologicalSorter
from hashlib import sha256
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI
from starlette.types import Message, Receive, Scope, Send

from agent.web.app import add_page_routes
from agent.web.middleware.page_delivery import CACHE_FOREVER, StaticFilesMiddleware
from agent.web.ui.composer.component import Composer, SettingsPanel
from agent.web.ui.page_files import HERE, LAZY, LAZY_PARTS, page_files, without_comments
from agent.web.ui.page_head import ICONS
from agent.web.ui.page_text import SCRIPTS
from agent.web.ui.transcript.component import Transcript
from tests.conftest import App, Visit

NAME = "index-Bx_1-aZ9.js"
OURS = {f"page-en-{sha256(b'ours').hexdigest()[:16]}.js": b"ours", "both-12345678.js": b"ours"}
SCRIPT = "let it = 'as long as it takes to be worth it';\n" * 50


class Gradio:
    """A stand-in for Gradio that answers all other requests."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.asked.append(f"{scope['method']} {scope['path']}")
        await send({"type": "http.response.start", "status": 404, "headers": []})
        await send({"type": "http.response.body", "body": b""})


class Marking:
    """A middleware that adds a header to each answer."""

    def __init__(self, app: StaticFilesMiddleware) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"].append((b"set-cookie", b"visitor"))
            await send(message)

        await self.app(scope, receive, marked)


def ask(folder: Path, *asked: tuple[str, str], method: str = "GET") -> tuple[list[httpx.Response], list[str]]:
    """Request paths, each with an `Accept-Encoding`. Return the answers and Gradio's requests. Files are read once."""
    (folder / NAME).write_text(SCRIPT)
    gradio = Gradio()

    async def all_of_them() -> list[httpx.Response]:
        transport = httpx.ASGITransport(Marking(StaticFilesMiddleware(gradio, folder, OURS)))
        async with httpx.AsyncClient(transport=transport, base_url="http://chat.example") as client:
            answers = list[httpx.Response]()
            for path, taken in asked:
                answers.append(await client.request(method, path, headers={"accept-encoding": taken}))
            return answers

    return asyncio.run(all_of_them()), gradio.asked


def test_file_is_cached_and_compressed_on_request(tmp_path: Path) -> None:
    encodings = {"gzip, deflate, br, zstd": "br", "gzip;q=0.9": "gzip", "": None, "br": "br", "x-gzip, abr": None}
    takers = [*encodings] * 2
    answers, asked = ask(tmp_path, *((f"/assets/{NAME}", taken) for taken in takers))
    assert asked == []
    for taken, answer in zip(takers, answers, strict=True):
        assert answer.text == SCRIPT
        assert answer.headers.get("content-encoding") == encodings[taken]
        assert answer.headers.get_list("set-cookie") == ["visitor"]  # its own cookie, no earlier visitor's
        assert answer.headers["cache-control"] == CACHE_FOREVER["cache-control"]
        assert answer.headers["vary"] == "accept-encoding"
        assert answer.headers["content-type"].startswith("text/javascript")


def test_file_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = list[Path]()
    whole = Path.read_bytes

    def noting(path: Path) -> bytes:
        read.append(path)
        return whole(path)

    monkeypatch.setattr(Path, "read_bytes", noting)
    ask(tmp_path, *[(f"/assets/{NAME}", "gzip")] * 3)
    assert read == [tmp_path / NAME]


def test_own_file_hides_one_of_folder_without_query(tmp_path: Path) -> None:
    (tmp_path / "both-12345678.js").write_text("Gradio's")
    paths = [next(iter(OURS)), "both-12345678.js", "both-12345678.js?whole", "both-12345678.js"]
    answers, asked = ask(tmp_path, *((f"/assets/{path}", taken) for path in paths for taken in ("", "gzip")))
    assert asked == []
    assert [answer.text for answer in answers] == ["ours"] * 4 + ["Gradio's"] * 2 + ["ours"] * 2
    forever = [answer.headers["cache-control"] == CACHE_FOREVER["cache-control"] for answer in answers]
    assert forever == [True, True, False, False, True, True, False, False], "its name has no hash of its content"
    kept = {answer.headers["cache-control"] for answer in answers}
    assert kept == {"public, max-age=31536000, immutable", "public, max-age=3600"}


async def test_icons_are_kept_for_a_day() -> None:
    app = FastAPI()
    add_page_routes(app, "Switchboard", "")
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://app") as http:
        answers = [await http.get(path) for path in ICONS]
    assert {(answer.status_code, answer.headers["cache-control"]) for answer in answers} == {
        (200, "public, max-age=86400")
    }


@pytest.mark.parametrize(
    "path",
    ["/", "/config", "/assets/plain.js", "/assets/gone-12345678.js", f"/assets/{NAME}/x", f"/gradio_api/file={NAME}"],
)
def test_other_paths_pass_through(path: str, tmp_path: Path) -> None:
    answers, asked = ask(tmp_path, *[(path, "br, gzip")] * 2)
    assert asked == [f"GET {path}"] * 2
    assert not any("cache-control" in answer.headers for answer in answers)


@pytest.mark.parametrize("path", ["/assets/..%2Fsecret-12345678.js", "/assets/%2e%2e/secret-12345678.js"])
def test_nothing_outside_folder_is_read(path: str, tmp_path: Path) -> None:
    (tmp_path / "secret-12345678.js").write_text("a secret")
    inside = tmp_path / "assets"
    inside.mkdir()
    assert len(ask(inside, (path, ""))[1]) == 1


def test_other_methods_pass_through(tmp_path: Path) -> None:
    assert ask(tmp_path, (f"/assets/{NAME}", ""), method="POST")[1] == [f"POST /assets/{NAME}"]


def test_page_starts_with_static_files(app: App) -> None:
    (path,) = set(re.findall(r"assets/index-[\w-]+\.js", httpx.get(app.url).text))
    plain = httpx.get(f"{app.url}/{path}", headers={"accept-encoding": "identity"})
    with httpx.stream("GET", f"{app.url}/{path}", headers={"accept-encoding": "gzip"}) as answer:
        assert answer.read() == plain.content
    assert answer.num_bytes_downloaded < len(plain.content) / 2
    assert answer.headers["cache-control"] == CACHE_FOREVER["cache-control"]
    assert "set-cookie" not in answer.headers


def test_page_is_compressed(app: App) -> None:
    with httpx.stream("GET", app.url, headers={"accept-encoding": "gzip"}) as answer:
        page = answer.read().decode()
    assert page.lstrip().lower().startswith("<!doctype html>")
    assert answer.num_bytes_downloaded < len(page) / 4
    assert answer.headers["cache-control"] == "no-store"
    assert "set-cookie" in answer.headers
    assert "content-encoding" not in httpx.get(app.url, headers={"accept-encoding": "identity"}).headers


def test_visit_is_light(app: App, visit: Visit) -> None:
    """Counts what the page loads. The limits are a tenth above that, so that what becomes heavier is noticed."""
    visitor = visit(app.url, fresh=True)
    sizes: dict[str, int] = visitor.page.evaluate(
        "Object.fromEntries(['navigation', 'resource'].flatMap((kind) => performance.getEntriesByType(kind))"
        ".map((one) => [one.name.split('/').at(-1), one.encodedBodySize]))"
    )
    assert sizes[""] < 20_000, "the page itself: scripts and styles of ours belong in files"
    assert sum(sizes.values()) < 302_000, sizes
    assert len(sizes) <= 45, sorted(sizes)
    parts = [name for name in sizes if re.fullmatch(r"[\w.]+-[\w-]{8}\.(js|css)", name)]
    page = httpx.get(app.url).text
    assert not [name for name in parts if f'/{name}"' not in page], "Gradio loads it late: adapt `later_parts`"
    [joined] = re.findall(r"assets/gradio-\w+\.css", page)
    others = re.findall(r"@import|url\((?![\"']?(?:data:|#))", httpx.get(f"{app.url}/{joined}").text)
    assert not others, "joined styles would look for these files elsewhere"
    unwanted = [name for name in sizes if re.match("hls-|MinimalAudioPlayer-|Video-|JSON-", name) or name in LAZY_FILES]
    assert not unwanted, "Gradio's players and viewers, and modules that are loaded when they are used"


LAZY_FILES = {f"{name}.{kind}" for name in (*LAZY, *LAZY_PARTS) for kind in ("js", "css")}
LABELS = {*Transcript.LABELS, *Composer.LABELS, *SettingsPanel.LABELS}
OF_GRADIO = re.compile(r"toast-\w|testid|\.block\b|html-container|svelte|classList\.contains\(.open")
"""What Gradio calls its own elements."""


def test_no_style_of_a_block_asks_for_its_siblings() -> None:
    """Chromium would look at all blocks of an answer before each new one: four times the time for 2,000 tokens."""
    rules = (HERE / "transcript/transcript.css").read_text(encoding="utf-8")
    assert not re.findall(r"\.(?:part|bubble|turn)\b[^,{}]*:has\(\s*[+~]", rules)


def test_scripts_lose_only_comments() -> None:
    for path in HERE.rglob("*.js"):
        script = path.read_text(encoding="utf-8")
        pairs = [*zip(script.splitlines(), without_comments(script).splitlines(), strict=True)]
        wrong = [old for old, new in pairs if not new.strip() and not re.match(r"\s*(//|/\*\*|\*|$)", old)]
        assert not wrong, path.name
    assert without_comments("a(1); // it's\nb = 2; // so\nc = '// no';") == "a(1); // it's\nb = 2;\nc = '// no';"


def test_texts_are_loaded_with_what_uses_them() -> None:
    files = page_files()
    at_once, later = (
        next(one.decode() for name, one in files.contents.items() if name.startswith(f"{kind}-en"))
        for kind in ("texts", "later")
    )
    for name in ("chats_search", "key_enter", "export_html", "queued"):
        assert f'"{name}": ' in at_once
    for name in ("share_create", "annotate_pen", "window_full"):
        assert f'"{name}": ' in later
    assert all((f'"{name}": ' in at_once) != (f'"{name}": ' in later) for name in SCRIPTS if name not in LABELS)


def test_page_has_one_entry_and_no_circle() -> None:
    """Each module is needed, imports only what does not need it, and gives the window nothing."""
    folder = HERE / "modules"
    sources = {path.stem: path.read_text(encoding="utf-8") for path in folder.glob("*.js")}
    imports = {
        name: {*re.findall(r'from "\./(\w+)\.js"|^import "\./(\w+)\.js"', source, re.M)}
        for name, source in sources.items()
    }
    graph = {name: {one or other for one, other in found} for name, found in imports.items()}
    order = [*TopologicalSorter(graph).static_order()]  # raises an error for a circle
    assert {*order} == {*sources}
    assert {*order} - {one for found in graph.values() for one in found} == {"page", "film", *LAZY}
    for name, source in sources.items():
        assert not re.search(r"\bwindow\.\w+ = |\.prototype\.\w+ = |defineProperty\(window", source) or name == "gradio"
        assert set(re.findall(r'load\("(\w+)"\)', source)) <= {*LAZY}
        assert not OF_GRADIO.search(source) or name == "gradio", "it belongs to gradio.js"
