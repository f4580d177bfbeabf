"""The page behind the proxies of docs/proxies with those very files. Only ports and certificate are changed.

Two apps run behind each proxy, one at the root and one under /chat. The certificate is made here.
"""

import ssl
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import httpx
import pytest
from gradio_client import Client

from agent.web.middleware.visitor_cookie import COOKIE
from tests.conftest import App
from tests.support.foreign_requests import MATRIX, at_work, closed_requests, comparable, made_up_like, send_row
from tests.support.http_client import HttpVisitor, marker
from tests.support.models import VISION_MODEL
from tests.support.ports import free_port
from tests.support.proxies import changed, nginx_command, program, running_proxy, self_signed
from tests.support.scripted_server import Config, Running

LIMIT = 20 * 1024 * 1024
PATHS = ("/", "/chat/")
pytestmark = pytest.mark.timeout(300)  # the first test of each proxy waits for its package and two apps


@dataclass
class Proxy:
    """A running proxy, with the two apps behind it."""

    name: str
    port: int
    certificate: Path

    def url(self, path: str = "/") -> str:
        return f"https://localhost:{self.port}{path}"

    @property
    def trusted(self) -> ssl.SSLContext:
        """The TLS context of a client that trusts the proxy's certificate."""
        return ssl.create_default_context(cafile=str(self.certificate))

    def connect(self, path: str) -> Client:
        return Client(self.url(path), verbose=False, analytics_enabled=False, ssl_verify=cast(bool, self.trusted))

    def http(self, **more: Any) -> httpx.Client:
        return httpx.Client(verify=self.trusted, trust_env=False, timeout=60, **more)


SERVER = Config(models=(VISION_MODEL,), rate=200.0)


@pytest.fixture(scope="module")
def apps(start_app: Callable[..., App], server: Running) -> tuple[App, App]:
    """Start one app for the root of the host, and one for /chat."""
    url = server.base_url
    return start_app(VLLM_BASE_URL=url), start_app(VLLM_BASE_URL=url, GRADIO_ROOT_PATH="/chat")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return a self-signed certificate for localhost, and its key."""
    return self_signed(tmp_path_factory.mktemp("certificate"))


@pytest.fixture(scope="module", params=["nginx", pytest.param("caddy", marks=pytest.mark.full)])
def proxy(request: pytest.FixtureRequest, apps: tuple[App, App], certificate: tuple[Path, Path]) -> Iterator[Proxy]:
    """Run each proxy with its file from docs/proxies."""
    name: str = request.param
    port = free_port()
    crt, key = certificate
    root, chat = apps
    changes = {"127.0.0.1:7860": f"127.0.0.1:{root.port}", "127.0.0.1:7861": f"127.0.0.1:{chat.port}"}
    with tempfile.TemporaryDirectory(prefix="proxy-") as folder:
        if name == "nginx":
            changes |= {
                "listen 443 ssl http2;": f"listen 127.0.0.1:{port} ssl http2;",
                "server_name chat.example.org;": "server_name localhost;",
                "/etc/ssl/chat.example.org.crt": str(crt),
                "/etc/ssl/chat.example.org.key": str(key),
            }
            argv = nginx_command(folder, changed("nginx.conf", changes))
        else:
            changes["chat.example.org {"] = f"localhost:{port} {{\n\tbind 127.0.0.1\n\ttls {crt} {key}"
            only_here = "{\n\tadmin off\n\tauto_https disable_redirects\n}\n"
            Path(folder, "Caddyfile").write_text(only_here + changed("Caddyfile", changes))
            argv = [program(name), "run", "--config", f"{folder}/Caddyfile", "--adapter", "caddyfile"]
        with running_proxy(name, argv, folder, port):
            yield Proxy(name, port, crt)


@pytest.mark.parametrize("path", PATHS)
def test_tokens_arrive_one_by_one(proxy: Proxy, server: Running, path: str) -> None:
    """Check order instead of time: the client reads something before the model sends its last token."""
    client, held = proxy.connect(path), marker()
    try:
        values = iter(client.submit({"text": f"!tokens 45 @20 hold 5 {held}", "files": []}, "", {}, api_name="/chat"))
        first = next(value for value in values if value["text"])
        sent = server.journal()[-1]
        assert sent["ended"] is None
        assert sent["sent"] <= 5
        server.release(held)
        later = list(values)
        assert len(later) > 10
        assert later[-1]["finish_reason"] == "stop"
        assert later[-1]["text"].startswith(first["text"])
    finally:
        client.close()


@pytest.mark.parametrize("path", PATHS)
def test_stop_reaches_model(proxy: Proxy, server: Running, path: str) -> None:
    client = proxy.connect(path)
    try:
        job = client.submit({"text": "!tokens 2000 @20", "files": []}, "", {}, api_name="/chat")
        next(value for value in job if value["text"])
        job.cancel()
        assert server.wait_for(lambda journal: journal[-1]["ended"])[-1]["ended"] == "client_closed"
    finally:
        client.close()


@pytest.mark.parametrize("path", PATHS)
def test_largest_allowed_file_passes(proxy: Proxy, path: str) -> None:
    with proxy.http() as http:
        http.get(proxy.url(path))
        answer = http.post(proxy.url(path) + "gradio_api/upload", files={"files": ("a.bin", b"a" * LIMIT)})
        assert answer.status_code == 200, answer.text
        assert answer.json()[0].endswith("/a.bin")


@pytest.mark.parametrize("path", PATHS)
def test_larger_file_gets_413(proxy: Proxy, path: str) -> None:
    with proxy.http() as http:
        http.get(proxy.url(path))
        # Only the status counts: a server can close before it has read the whole refused body.
        answer = http.post(proxy.url(path) + "gradio_api/upload", files={"files": ("a.bin", b"a" * (LIMIT + 1))})
        assert answer.status_code == 413


@pytest.mark.parametrize(("path", "ending"), [("/", ""), ("/chat/", "_chat")])
def test_page_knows_its_address(proxy: Proxy, path: str, ending: str) -> None:
    with proxy.http() as http:
        answer = http.get(proxy.url(path))
        config = http.get(proxy.url(path) + "config").json()
    assert config["root"] == proxy.url(path).rstrip("/")
    [cookie] = answer.headers.get_list("set-cookie")
    assert cookie.startswith(f"__Host-{COOKIE}-{proxy.port}{ending}=")
    assert {"Secure", "HttpOnly", "SameSite=None", "Partitioned", "Path=/"} <= set(cookie.split("; "))


def test_other_visitors_get_nothing_below_a_prefix(proxy: Proxy, apps: tuple[App, App], server: Running) -> None:
    """The proxy removes one `/chat` and the app perhaps another. Only the remaining path decides."""
    url, app = proxy.url("/chat"), apps[1]
    with at_work(app, server, HttpVisitor(url, verify=proxy.trusted)) as scene:
        another = HttpVisitor(url, verify=proxy.trusted)
        fixed = {"chat": scene.ids["chat"], "folder": str(app.folder)}
        for row in MATRIX:
            owned = {**scene.ids, **fixed, "fresh": uuid4().hex[:11]}
            made_up = {name: made_up_like(value) for name, value in owned.items()} | fixed
            real, wrong = send_row(another, row, owned), send_row(another, row, made_up)
            assert comparable(real, owned) == comparable(wrong, made_up), row
            assert scene.marker not in real.text
        for method, path in closed_requests():
            if method not in ("OPTIONS", "PUT") and path != "/":
                assert another.ask(method, path, json={} if method == "POST" else None).status in (404, 405), path
        scene.untouched()


def test_path_without_slash_leads_to_page(proxy: Proxy) -> None:
    with proxy.http() as http:
        answer = http.get(proxy.url("/chat"))
        assert (answer.status_code, answer.headers["location"]) in [(308, "/chat/"), (308, proxy.url("/chat/"))]


def test_two_pages_keep_their_own_cookies(proxy: Proxy) -> None:
    """Each page has its own key, so it would treat the other page's cookie as forged."""
    with proxy.http() as http:
        for path in PATHS:
            assert "set-cookie" in http.get(proxy.url(path)).headers
        for path in (*PATHS, *PATHS):
            assert "set-cookie" not in http.get(proxy.url(path)).headers


def test_stream_disables_proxy_buffering(apps: tuple[App, App]) -> None:
    """Check the header at the app, because nginx obeys it and removes it."""
    with httpx.Client(base_url=apps[0].url, trust_env=False) as http:
        http.get("/")
        with http.stream("GET", "/gradio_api/heartbeat/abc") as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            assert answer.headers["x-accel-buffering"] == "no"
