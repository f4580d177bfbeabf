"""The app as a Space: its environment, in a frame of another site, behind the hub's proxy, and with a login.

Real Chromium uses the real app. The hub's proxy, page and login are small servers here.
"""

import json
import os
import shutil
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from fastapi import FastAPI, Request
from gradio_client import Client
from itsdangerous import TimestampSigner
from playwright.sync_api import Browser, BrowserContext, Page, expect
from starlette.middleware import Middleware
from starlette.middleware.sessions import SessionMiddleware
from starlette.types import Receive, Scope, Send

from agent.errors import ConfigError
from agent.models.catalog import load_catalog as catalog
from agent.settings import FLEETING, Space, find_space, load_settings
from agent.web.chat.model_menu import ModelMenu
from agent.web.gradio_compat.application import login_reader
from agent.web.middleware.isolation import LOGIN_PATHS, IsolationMiddleware
from agent.web.middleware.origins import POLICY
from agent.web.middleware.visitor_cookie import CookieJar, VisitorCookies
from agent.web.ui.page_sessions import PageSessions
from tests.conftest import CONFIG, ROOT, SHOTS, App, Visitor
from tests.support.gate_rows import gate_rows
from tests.support.openid_server import Provider, provider
from tests.support.ports import free_port
from tests.support.scripted_server import Config, Running, running
from tests.support.space_proxy import Front, fronted
from tests.support.traffic import Traffic

StartApp = Callable[..., App]

HUB_MODEL = "Qwen/Qwen3-VL-8B-Instruct"
OWNERS = "hf_of_the_owner_0123456789abcdef"
OAUTH = {
    "OAUTH_CLIENT_ID": "c",
    "OAUTH_CLIENT_SECRET": "s",
    "OAUTH_SCOPES": "openid",
    "OPENID_PROVIDER_URL": "http://x",
}
# The variables that the hub sets in every Space, and those that it adds if it builds the image.
DOCKER = {
    "SPACE_ID": "me/switchboard",
    "SPACE_HOST": "me-switchboard.hf.space",
    "SPACE_AUTHOR_NAME": "me",
    "SPACE_REPO_NAME": "switchboard",
    "SPACE_TITLE": "Switchboard",
    "CPU_CORES": "2",
    "MEMORY": "16Gi",
    "ACCELERATOR": "none",
}
GRADIO = DOCKER | {
    "SYSTEM": "spaces",
    "GRADIO_ALLOW_FLAGGING": "never",
    "GRADIO_FLAGGING_MODE": "never",
    "GRADIO_NUM_PORTS": "1",
    "GRADIO_THEME": "huggingface",
    "GRADIO_SSR_MODE": "true",
    "GRADIO_ANALYTICS_ENABLED": "True",
    "PYTHONUNBUFFERED": "1",
}
# A Space listens on all addresses. A test must not.
HERE = {"GRADIO_SERVER_NAME": "127.0.0.1", "HF_TOKEN": ""}


def mounts(folder: Path, *lines: str) -> Path:
    """Write the system's list of mounts."""
    file = folder / "mountinfo"
    file.write_text("".join(f"{line}\n" for line in ("21 1 0:5 / / rw - overlay overlay rw", *lines)))
    return file


# Reading the environment


def test_other_machine_is_no_space(tmp_path: Path) -> None:
    assert find_space({"SPACE_HOST": "x", **OAUTH}, mounts(tmp_path, "9 1 0:6 / /data rw - ext4 /dev/sdb rw")) is None
    settings = load_settings(tmp_path / "none.toml", {})
    assert (settings.host, settings.loses_history_on_restart, settings.space) == ("127.0.0.1", False, None)


def test_space_is_known_by_its_variables(tmp_path: Path) -> None:
    own = {**DOCKER, "SPACE_HOST": "me-switchboard.hf.space, chat.example.org"}
    assert find_space(own, mounts(tmp_path)) == Space(id="me/switchboard", host="me-switchboard.hf.space")


@pytest.mark.parametrize("missing", [None, *OAUTH])
def test_login_needs_all_hub_variables(missing: str | None, tmp_path: Path) -> None:
    env = {name: value for name, value in OAUTH.items() if name != missing}
    space = find_space(DOCKER | env, mounts(tmp_path))
    assert space is not None
    assert space.login is (missing is None)


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        ("9 1 0:6 / /data rw - fuse.hf-mount bucket rw", True),
        ("9 1 8:16 / /data rw,relatime - ext4 /dev/sdb rw", True),
        ("9 1 8:1 /var/lib/containerd/x/containers/a1/volumes/b2 /data rw - ext4 /dev/sda1 rw", False),
        ("9 1 8:1 /var/lib/docker/volumes/a1/_data /data rw - ext4 /dev/sda1 rw", False),
        ("9 1 0:6 / /data2 rw - ext4 /dev/sdb rw", False),
    ],
    ids=["bucket", "disk", "volume of the image", "volume of docker", "elsewhere"],
)
def test_storage_must_be_mounted(line: str, kept: bool, tmp_path: Path) -> None:
    space = find_space(DOCKER, mounts(tmp_path, line))
    assert space is not None
    assert space.storage == (Path("/data") if kept else None)


def test_missing_mount_list_means_no_storage(tmp_path: Path) -> None:
    assert find_space(DOCKER, tmp_path / "none") == Space(id="me/switchboard", host="me-switchboard.hf.space")


@pytest.mark.parametrize(
    ("env", "data_dir", "fleeting"),
    [
        ({}, None, True),
        ({"PERSISTANT_STORAGE_ENABLED": "true"}, "/data", False),
        ({"PERSISTANT_STORAGE_ENABLED": "true", "SWITCHBOARD_DATA": "/data/chat"}, "/data/chat", False),
        ({"PERSISTANT_STORAGE_ENABLED": "true", "SWITCHBOARD_DATA": "/tmp/chat"}, "/tmp/chat", True),
        ({"PERSISTANT_STORAGE_ENABLED": "true", "SWITCHBOARD_STORE": "memory"}, "/data", True),
        ({"SWITCHBOARD_STORE": "postgresql://db.example/chats"}, None, False),
        ({"SWITCHBOARD_STORE": "rediss://db.example:6379/0"}, None, False),
        ({"SWITCHBOARD_DATA": "/data"}, "/data", True),  # the image sets it, with or without storage
    ],
)
def test_data_goes_to_storage(env: Mapping[str, str], data_dir: str | None, fleeting: bool) -> None:
    settings = load_settings(None, DOCKER | env)  # overrides the project's own file, which has a host and a folder
    assert (settings.host, settings.port) == ("0.0.0.0", 7860)
    assert settings.loses_history_on_restart is fleeting
    assert data_dir is None or settings.data_dir == Path(data_dir)
    assert settings.local.cache_dir.is_relative_to("/data") is ("PERSISTANT_STORAGE_ENABLED" in env)
    assert settings.public is not None


@pytest.mark.parametrize(
    "origin", ["https://a.org; script-src *", "https://a.org https://b.org", "*", "a.org", "ftp://a", 5]
)
def test_frame_ancestor_must_be_an_origin(origin: object, tmp_path: Path) -> None:
    (tmp_path / "app.toml").write_text(f"[server]\nframed_by = [{json.dumps(origin)}]")
    with pytest.raises(ConfigError, match="framed_by"):
        load_settings(tmp_path / "app.toml", {})


# Isolation and the model menu alone


async def through(
    middleware: Callable[..., IsolationMiddleware], path: str, method: str = "GET", **headers: str
) -> tuple[int, Scope, Any]:
    """Return the status, the scope that the application received, and its answer's headers, which set a session."""
    got: Scope = {}
    said: list[Any] = []

    async def inner(scope: Scope, receive: Receive, send: Send) -> None:
        got.update(scope)
        cookie = b"session=x; path=/; httponly; samesite=none; secure"
        await send({"type": "http.response.start", "status": 200, "headers": [(b"set-cookie", cookie)]})
        await send({"type": "http.response.body", "body": b""})

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b'{"session_hash": "s", "fn_index": 0, "data": []}'}

    async def send(message: Any) -> None:
        said.append(message)

    named = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": method, "path": path, "query_string": b"", "headers": named}
    await middleware(inner)(scope, receive, send)
    return said[0]["status"], got, said[0]["headers"]


def test_hub_and_named_sites_can_frame_page() -> None:
    assert POLICY.endswith("; frame-ancestors 'self' https://huggingface.co")


@pytest.mark.parametrize("path", LOGIN_PATHS)
async def test_login_route_is_open_only_with_login(path: str) -> None:
    visitors = VisitorCookies("key")
    for login, status in ((True, 200), (False, 404)):
        assert (await through(lambda app, on=login: IsolationMiddleware(app, visitors, login=on), path))[0] == status
    assert (await through(lambda app: IsolationMiddleware(app, visitors, login=True), path, "POST"))[0] == 405
    for near in ("/login", "/login/", "/login/x", "/logout/", "/monitoring"):
        assert (await through(lambda app: IsolationMiddleware(app, visitors, login=True), near))[0] == 404


@pytest.mark.parametrize(
    ("path", "method", "site", "passes"),
    [
        ("/gradio_api/queue/join", "POST", "same-origin", True),
        ("/gradio_api/queue/join", "POST", "cross-site", False),
        ("/gradio_api/queue/join", "POST", "same-site", False),
        ("/login/callback", "GET", "cross-site", True),
        ("/login/huggingface", "GET", "cross-site", True),
        ("/logout", "GET", "same-origin", True),
        ("/logout", "GET", "cross-site", False),
    ],
)
async def test_another_site_cannot_use_a_login(path: str, method: str, site: str, passes: bool) -> None:
    """Browsers send the session cookie with requests from another site. It must not count there."""
    visitors = VisitorCookies("key")
    cookie = f"session=secret; {CookieJar(secure=False).name}={visitors.mint()[1]}"
    status, scope, _ = await through(
        lambda app: IsolationMiddleware(app, visitors, login=True), path, method, cookie=cookie, sec_fetch_site=site
    )
    foreign_post = method == "POST" and site != "same-origin"
    assert status == (403 if foreign_post else 200)
    if foreign_post:
        return
    assert ("session=secret" in str(scope["headers"])) is passes
    assert (scope["state"]["visitor"] is not None) is passes


@pytest.mark.parametrize(
    ("headers", "passes"),
    [
        ({"sec_fetch_mode": "navigate", "referer": "https://chat.example/c/1"}, True),
        ({"sec_fetch_mode": "navigate"}, False),
        ({"sec_fetch_mode": "no-cors", "referer": "https://chat.example/c/1"}, False),
        ({"sec_fetch_mode": "cors", "referer": "https://chat.example/c/1"}, False),
        ({}, True),
    ],
    ids=["button", "link in a text", "picture", "script", "old browser"],
)
async def test_only_the_page_itself_logs_out(headers: dict[str, str], passes: bool) -> None:
    _, scope, _ = await through(
        lambda app: IsolationMiddleware(app, VisitorCookies("key"), login=True),
        "/logout",
        cookie="session=secret",
        sec_fetch_site="same-origin",
        **headers,
    )
    assert ("session=secret" in str(scope["headers"])) is passes


async def test_login_cookie_works_in_frame() -> None:
    _, _, headers = await through(
        lambda app: IsolationMiddleware(app, VisitorCookies("key"), login=True), "/login/callback"
    )
    assert (b"set-cookie", b"session=x; path=/; httponly; samesite=none; secure; Partitioned") in headers


class NoModels:
    """A machine without local models."""

    served = ()
    status = None

    async def ready(self) -> Any:
        raise AssertionError("nobody asks for these")


async def test_hub_model_uses_the_right_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", OWNERS)
    menu = ModelMenu(cast(Any, NoModels()), catalog(), key_seconds=60, keys_taken=True, may_log_in=True)

    async def key(owner: str, login: str | None, model: str = f"huggingface:{HUB_MODEL}") -> tuple[str, bool]:
        connection, own = await menu.connect(owner, model, login)
        found = str(cast(Any, connection).model().client.api_key)
        if own:
            await connection.aclose()
        return found, own

    assert await key("ann", None) == (OWNERS, False)
    assert await key("ann", "of-ann") == ("of-ann", True)
    assert await key("bob", None) == (OWNERS, False)
    lacking = [menu.key_missing("bob", one) for one in menu.choosable("bob")]
    assert (lacking, {*lacking}) == (sorted(lacking), {False, True}), "what can be used comes first"
    shown = {one.id: one.image for one in menu.listed("bob", None)}
    assert shown == {one.id: one.image for one in menu.choosable("bob")}
    assert {*shown.values()} == {False, True}
    menu.keys.put("ann", "huggingface", "typed")
    assert await key("ann", "of-ann") == ("typed", True)
    monkeypatch.setenv("OPENAI_API_KEY", "of-the-owner-too")
    assert await key("ann", "of-ann", "openai:gpt-6-luna") == ("of-the-owner-too", False)  # no token to another vendor
    monkeypatch.setenv("HF_TOKEN", "")
    spec = catalog().find(f"huggingface:{HUB_MODEL}")
    assert menu.key_missing("bob", spec)
    assert not menu.key_missing("bob", spec, "of-bob")
    assert f"{spec.label} · needs a login" in {one.full_label for one in menu.listed("bob", None)}
    assert spec.label in {one.full_label for one in menu.listed("bob", None, "of-bob")}
    menu.keys.forget("ann")
    await menu.aclose()


def test_page_session_does_not_keep_old_login() -> None:
    def request(token: str | None) -> Any:
        info = {"access_token": token, "expires_at": None}
        scope = {"type": "http", "state": {"visitor": "ann"}, "session": {"oauth_info": info} if token else {}}
        inner = type("Request", (), {"scope": scope, "session": scope["session"], "headers": {}})()
        return type("Asked", (), {"request": inner, "session_hash": "s", "headers": {}})()

    sessions = PageSessions()
    assert sessions.get(request("of-ann")).login == "of-ann"
    assert "of-ann" not in repr(sessions.get(request("of-ann")))
    sessions.save(request("of-ann"), sessions.get(request("of-ann")))
    assert [session.login for session in vars(sessions)["_sessions"].values()] == [None]
    assert sessions.get(request(None)).login is None


async def test_login_is_read_for_routes_that_are_not_gradios() -> None:
    page = type("Page", (), {"app": FastAPI(middleware=[Middleware(SessionMiddleware, secret_key="ours")])})()

    async def token(key: str) -> str | None:
        session = json.dumps({"oauth_info": {"access_token": "of-ann", "expires_at": None}}).encode()
        cookie = b"session=" + TimestampSigner(key).sign(b64encode(session))
        return await login_reader(cast(Any, page))(Request({"type": "http", "headers": [(b"cookie", cookie)]}))

    assert await token("ours") == "of-ann"
    assert await token("forged") is None
    page.app.user_middleware.clear()  # nobody can log in
    assert await token("ours") is None


# With a Space's environment


@pytest.fixture(scope="module")
def hub() -> Iterator[Provider]:
    """The hub's login."""
    with provider() as running_provider:
        yield running_provider


@pytest.fixture(scope="module")
def router() -> Iterator[Running]:
    """The hub's router with one model."""
    with running(Config(models=(HUB_MODEL,), rate=200.0)) as server:
        yield server


@pytest.fixture(scope="module")
def front() -> Iterator[Front]:
    """The hub's proxy with https."""
    with fronted(secure=True) as made:
        yield made


def space(start_app: StartApp, front: Front, **env: str) -> App:
    """Start the app behind the hub's proxy."""
    config = CONFIG + f'[server]\nframed_by = ["{front.origin}"]\n'
    app = start_app(config, **(DOCKER | HERE | {"SPACE_HOST": front.host} | env))
    front.app = app.port
    return app


@pytest.fixture(scope="module")
def with_login(start_app: StartApp, front: Front, hub: Provider, router: Running) -> App:
    """Start a Space of the Docker SDK. Its visitors can log in, and its owner has set no token."""
    return space(start_app, front, HUGGINGFACE_BASE_URL=router.base_url, LOG_LEVEL="DEBUG", **hub.env)


@pytest.fixture
def hub_start(start_app: StartApp, tmp_path: Path) -> Iterator[StartApp]:
    """Start the app as the hub does: `python app.py` at port 7860, by a user without rights, from read-only code."""
    code = tmp_path / "app"
    for name in ("app.py", "agent", "configs", "requirements-models.txt", "requirements-ocr.txt"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy2
        code.mkdir(exist_ok=True)
        copy(ROOT / name, code / name)
    folders = [code, *(path for path in code.rglob("*") if path.is_dir())]
    for path in (*folders, *code.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    # The root user keeps its name, because others cannot read the Python in its home, and loses all of its rights.
    powerless = ("setpriv", "--no-new-privs", "--bounding-set=-all", "--inh-caps=-all") if os.geteuid() == 0 else ()
    unset = [word for name in ("SWITCHBOARD_DATA", "GRADIO_TEMP_DIR", "PYTHONPATH") for word in ("-u", name)]
    port = free_port(7860)  # another one if somebody has started the page

    def start(config: str, **env: str) -> App:
        given = {"HOME": str(tmp_path / "home"), "TMPDIR": str(tmp_path), "GRADIO_SERVER_PORT": str(port), **env}
        return start_app(config, prefix=("env", "-C", str(code), *unset, *powerless), **given)

    yield start
    for path in folders:
        path.chmod(0o755)


# `make test-space` runs the one with the packages of a Gradio Space.
@pytest.mark.parametrize("env", gate_rows({"docker": DOCKER, "gradio": GRADIO}, ["docker"]))
def test_app_serves_under_either_sdk(env: dict[str, str], hub_start: StartApp, router: Running, tmp_path: Path) -> None:
    config = f'{CONFIG}\n[public]\nmodels = ["huggingface:{HUB_MODEL}"]\n'
    app = hub_start(config, **(env | HERE | {"HUGGINGFACE_BASE_URL": router.base_url, "HF_TOKEN": OWNERS}))
    client = Client(app.url, verbose=False, analytics_enabled=False)
    assert client.predict({"text": "!text Hi.", "files": []}, api_name="/chat")["text"] == "Hi."
    client.predict({"text": "!text Hub.", "files": []}, f"huggingface:{HUB_MODEL}", api_name="/chat")
    assert router.journal()[-1]["authorization"] == f"Bearer {OWNERS}"
    assert "The page is at https://me-switchboard.hf.space\n" in app.log
    assert FLEETING in app.log
    page = httpx.get(app.url, trust_env=False).text
    assert FLEETING in page
    assert "login/huggingface" not in page
    assert OWNERS not in page + app.log
    assert (tmp_path / "home/.local/share/switchboard/data").is_dir()
    assert app.stop() == 0
    assert "Traceback" not in app.log


def test_only_a_space_trusts_unknown_proxy(start_app: StartApp) -> None:
    with (
        fronted(secure=True) as front,
        fronted(secure=True) as other,
        httpx.Client(verify=False, trust_env=False) as web,
    ):
        app = space(start_app, front)
        other.app = start_app(GRADIO_SERVER_NAME="127.0.0.1").port
        cookie = web.get(front.url).headers["set-cookie"]
        assert "SameSite=None; Secure; Partitioned" in cookie
        config = web.get(front.url + "/config").json()
        assert config["root"] == front.url
        # A redirect of the framework depends only on uvicorn's own scheme.
        assert web.get(front.url + "/manifest.json/").headers["location"].startswith("https://")
        assert web.get(other.url + "/manifest.json/").headers["location"].startswith("http://")
        app.stop()


# In a frame of another site


class Framed(Visitor):
    """A person at another site's page that shows ours in a frame."""

    def __init__(self, outer: Page) -> None:
        self.outer = outer

    def open(self, url: str) -> None:
        """Load the other site's page, and wait until ours is ready in the frame."""
        self.outer.goto(url)
        frame = self.outer.frame("space")
        assert frame is not None
        super().__init__(cast(Page, frame))  # a frame finds and waits as a page does
        self.ready()

    def ready(self) -> None:
        """Wait until the composer is enabled and a model is chosen."""
        expect(self.box).to_be_enabled()
        expect(self.page.locator("#model-button")).not_to_have_text("")

    def shot(self, name: str) -> None:
        """Save a screenshot of both pages."""
        if self.pictures:
            SHOTS.mkdir(exist_ok=True)
            self.outer.screenshot(path=SHOTS / f"{name}.png")


@pytest.fixture
def frame(browser: Browser) -> Iterator[Callable[..., Framed]]:
    """Open the other site: `frame(url)`. Chromium refuses third-party cookies."""
    contexts: list[BrowserContext] = []

    def come(url: str) -> Framed:
        contexts.append(browser.new_context(ignore_https_errors=True, reduced_motion="reduce"))
        visitor = Framed(contexts[-1].new_page())
        visitor.open(url)
        return visitor

    yield come
    for context in contexts:
        context.close()


def everything_works(visitor: Framed, server: Running) -> None:
    """Assert that chat, stop, retry and upload work."""
    visitor.ask("!text First.")
    expect(visitor.bubbles.first).to_have_text("First.")
    visitor.say("!tokens 4000 @50")
    expect(visitor.bubbles.last).to_contain_text("word1")
    visitor.stop.click()
    expect(visitor.caption).to_contain_text("Stopped")
    visitor.idle()
    visitor.ask("!tokens 20 @20")
    before = len(server.journal())
    visitor.chat.get_by_role("button", name="Retry", exact=True).click()
    expect(visitor.stop).to_be_visible()  # until then the page accepts a message
    server.wait_for(lambda journal: len(journal) > before and journal[before]["ended"])
    visitor.idle()
    visitor.attach(("words.txt", b"cormorant"))
    expect(visitor.page.locator("#composer").locator(".file")).to_have_count(1)
    visitor.ask("!text A bird.")
    assert "cormorant" in json.dumps(server.journal()[-1]["body"]["messages"][-1])


def cookies(visitor: Framed) -> dict[str, Any]:
    """Return the browser's cookies of our page, by name."""
    return {one["name"]: one for one in visitor.outer.context.cookies() if one["domain"] == "127.0.0.1"}


def test_framed_visitor_is_known_without_third_party_cookies(
    start_app: StartApp, front: Front, frame: Callable[..., Framed], model_server: Running
) -> None:
    app = space(start_app, front)
    visitor = frame(front.outer)
    everything_works(visitor, model_server)
    assert cookies(visitor)[CookieJar(secure=True, port=front.port).name]["partitionKey"] == "https://localhost"
    said = visitor.mine.count()
    visitor.open(front.outer)
    expect(visitor.mine).to_have_count(said)
    visitor.shot("space-frame")
    app.stop()


# With a login


def choose_hub_model(visitor: Visitor) -> None:
    visitor.choose(f"huggingface:{HUB_MODEL}")
    expect(visitor.page.locator("#about")).to_contain_text("Qwen3-VL 8B (Hugging Face)")


def log_in(visitor: Visitor, person: str) -> None:
    """Follow the page's link and log in."""
    visitor.page.locator("#key-said").get_by_role("link", name="log in with Hugging Face").click()
    visitor.page.get_by_role("link", name=person).click()
    expect(visitor.page.locator("#key-said")).to_contain_text("Using your Hugging Face account")
    expect(visitor.box).to_be_enabled()


@pytest.fixture
def logged_out(browser: Browser, front: Front, with_login: App) -> Iterator[Any]:
    """Open the Space itself: `logged_out()`."""
    contexts: list[BrowserContext] = []
    front.app = with_login.port

    def come(locale: str = "en-US") -> Visitor:
        contexts.append(browser.new_context(ignore_https_errors=True, reduced_motion="reduce", locale=locale))
        visitor = Visitor(contexts[-1].new_page())
        visitor.open(front.url)
        return visitor

    yield come
    for context in contexts:
        context.close()


@pytest.mark.gate("On a Space, a login gives access to models.")
def test_login_gives_access_to_hub_models(
    logged_out: Callable[[], Visitor], front: Front, with_login: App, router: Running
) -> None:
    ann, bob = logged_out(), logged_out()
    token = Provider.token("ann")
    for visitor in (ann, bob):
        choose_hub_model(visitor)
        expect(visitor.page.locator("#model-button")).to_have_text("Qwen3-VL 8B (Hugging Face) · needs a login")
    ann.open_models()
    expect(ann.page.get_by_role("group", name="needs a login").get_by_role("option")).to_contain_text("Qwen3-VL 8B")
    ann.page.keyboard.press("Escape")
    ann.shot("space-login-offered")
    before = len(router.journal())
    log_in(ann, "ann")
    traffic = Traffic(ann.page)
    expect(ann.page.locator("#model-button")).to_have_text("Qwen3-VL 8B (Hugging Face)")
    ann.ask("!text Of the hub.")
    ann.shot("space-logged-in")
    bob.say("mine?")
    expect(bob.hint).to_contain_text("or log in")
    assert [line["authorization"] for line in router.journal()[before:]] == [f"Bearer {token}"]
    log_in(bob, "bob")
    bob.ask("!text Bob's.")
    ann.chat.get_by_role("button", name="Retry", exact=True).click()
    wanted = [f"Bearer {token}", f"Bearer {Provider.token('bob')}", f"Bearer {token}"]
    router.wait_for(lambda journal: len(journal) == before + 3 and journal[-1]["ended"])
    assert [line["authorization"] for line in router.journal()[before:]] == wanted
    ann.idle()
    # The token is only in Gradio's own cookie, which no script can read.
    assert token not in ann.page.content()
    assert "session" not in ann.page.evaluate("document.cookie")
    received = traffic.received()
    assert "hub." in received["/runs"]
    received |= {path: ann.page.request.get(front.url + path).text() for path in ("/", "/config", "/gradio_api/info")}
    assert [path for path, text in received.items() if token in text] == []
    assert token not in with_login.log
    assert with_login.files_with(token) == []
    ann.open_settings()
    button = ann.page.locator("#login")
    expect(button).to_have_text("Log out (ann)")
    ann.shot("space-log-out")
    button.click()
    expect(ann.page.locator("#key-said")).to_contain_text("needs an API key")
    ann.say("and now?")
    expect(ann.hint).to_contain_text("or log in")
    assert len(router.journal()) == before + 3
    bob.ask("!text Still Bob's.")
    assert router.journal()[-1]["authorization"] == wanted[1]


def test_login_lists_no_more_events(with_login: App) -> None:
    named = Client(with_login.url, verbose=False, analytics_enabled=False).view_api(return_format="dict")
    assert list(cast(Any, named)["named_endpoints"]) == ["/chat"]
