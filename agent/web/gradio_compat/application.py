"""Mounts the Gradio page in our FastAPI application, opens its tunnel, and logs visitors in to Hugging Face.

Uses private names of Gradio, which gives a visitor's token only to handlers with a parameter of type `gr.OAuthToken`.
Here every handler needs the token as a part of the page session, so this module reads it from the request.
"""

import json
import math
import os
import re
import secrets
from collections.abc import Awaitable, Callable, Collection, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import gradio as gr
from fastapi import FastAPI, HTTPException, Request
from gradio import networking, tunneling
from gradio.oauth import require_oauth_token
from gradio.route_utils import BUILD_PATH_LIB, get_root_url
from gradio.routes import App
from gradio.state_holder import SessionState
from starlette.middleware.sessions import SessionMiddleware
from starlette.types import Message, Receive, Scope, Send

from agent.web.gradio_compat.event_queue import BoundedQueue, bound_queue
from agent.web.gradio_compat.import_hook import nothing

STATIC_FILES = Path(BUILD_PATH_LIB)
"""The folder of the page's own scripts and styles."""
SESSIONS = 50
"""The most sessions whose widgets Gradio keeps, as an event has changed them. No event depends on an earlier one, and a
session takes 60 KB."""
THREADS = 8
"""Gradio reads and writes each value of a widget in a thread. That takes no time here, and the handlers need none."""
DIAGRAMS = {
    kind: f"assets/{path.name}"
    for kind, name in (("mermaid", "mermaid.core-*.js"), ("vega-lite", "embed-*.js"))
    for path in STATIC_FILES.glob(name)
}
"""The addresses of the modules in Gradio's files that draw diagrams and charts, which are code without them."""
_LATER = re.compile(r"import\(`\./([\w.-]+)`\)[^`]*?__vite__mapDeps\(\[([\d,]+)\]\)")
"""An import in a script of Gradio's that is made while the page runs, with the numbers of the files that it needs."""
PAGE_QUERY = ("page", "deep_link")
"""The fields of a query on which Gradio's page depends."""


def root_url(request: Request, root_path: str) -> str:
    """Return the public URL of the page that this request asks for, without a slash at its end."""
    return get_root_url(request, request.url.path, root_path)


def later_parts(page: gr.Blocks) -> list[str]:
    """Return the names of the scripts and styles that Gradio loads in three steps, each after the one before has run.

    A page that names them in its head loads them at once. If Gradio is built in another way, these are fewer or none.
    """
    kinds = {"column", *(block.get_block_name() for block in page.blocks.values())}
    html = (STATIC_FILES.parent / "index.html").read_text(encoding="utf-8")
    first = [part for entry in re.findall(r"assets/(index-[\w-]+\.js)", html) for part in _imports(entry)[0]]
    scripts = [one for one in first if one.endswith(".js")]
    second = [part for one in scripts if one.startswith("Index-") for part in _imports(one)[0]]
    third = [part for one in scripts if one.startswith("core-") for parts in _imports(one, kinds) for part in parts]
    linked = {*re.findall(r'rel="stylesheet"[^>]*assets/([\w.-]+)', html)}
    return [one for one in dict.fromkeys([*first, *second, *third]) if one not in linked]


def styles_of(parts: Collection[str]) -> bytes:
    """Return the styles among these parts as one, in their order. They refer to no files."""
    return b"\n".join((STATIC_FILES / one).read_bytes() for one in parts if one.endswith(".css"))


def _imports(script: str, kinds: Collection[str] = ()) -> list[list[str]]:
    """Return the files of each import that a script of Gradio's makes while it runs, or those of these `kinds`."""
    text = (STATIC_FILES / script).read_text(encoding="utf-8")
    start = text.find("m.f=[") + len("m.f=")
    names: list[str] = json.loads(text[start : text.find("]", start) + 1]) if start >= len("m.f=") else []
    of_kinds = [text[at : text.find("url)}", at)] for kind in kinds if (at := text.find(f"}},{kind}:{{")) >= 0]
    found = [
        [first, *(names[int(number)] for number in rest.split(","))]
        for within in (of_kinds if kinds else [text])
        for first, rest in _LATER.findall(within)
    ]
    return [[name.removeprefix("./") for name in one] for one in found] or [[]]


@contextmanager
def without_applications() -> Generator[None]:
    """Stop Gradio from creating an application inside the block. It creates one for each step of building a page."""
    original = App.__dict__["create_app"]
    cast(Any, App).create_app = nothing
    try:
        yield
    finally:
        cast(Any, App).create_app = original


def prepare_queue(page: gr.Blocks, streams: int) -> BoundedQueue:
    """Give the page a queue for `streams` events at once."""
    page.max_threads = THREADS
    page.state_session_capacity = SESSIONS
    page.queue(default_concurrency_limit=None, api_open=False)
    queue = bound_queue(page, streams)
    # After each event Gradio copies the last 10,000 events and sums them up with pandas, for its monitoring page, which
    # is off here. (Gradio misspells one of the names.)
    cast(Any, queue).ANAYLTICS_CACHE_FREQUENCY, queue.ANALYTICS_MAX_EVENTS = math.inf, 1
    # Gradio keeps the values of the widgets, with typed keys, for deep links, which this app does not use.
    cast(Any, SessionState)._update_value_in_config = nothing
    return queue


def inputs_of_events(page: gr.Blocks) -> dict[int, int]:
    """Return the number of inputs of each event by its number. An event without a function asks the server nothing."""
    return {number: len(event.inputs) for number, event in page.fns.items() if cast(Any, event).fn is not None}


def mount(
    app: FastAPI, page: gr.Blocks, queue: BoundedQueue, *, root_path: str, max_file_size: int, **page_options: Any
) -> None:
    """Serve the page at the root of `app`. `page_options` go to Gradio: theme, head, js, i18n."""
    cast(Any, gr).mount_gradio_app(  # its own types are incomplete
        app,
        page,
        path="",
        root_path=root_path,
        footer_links=[],
        run_history=False,
        show_error=False,
        enable_monitoring=False,
        pwa=False,
        ssr_mode=False,
        mcp_server=False,
        max_file_size=max_file_size,
        **page_options,
    )
    cast(Any, page).app = cast(Any, app.routes[-1]).app


def end_heartbeats(page: gr.Blocks) -> None:
    """End the requests that each open page keeps waiting. Gradio ends them only when its own server closes.

    See https://github.com/gradio-app/gradio/pull/7932.
    """
    cast(Any, page).app.stop_event.set()


def open_tunnel(port: int) -> str:
    """Open a tunnel to this port of this machine and return its URL. Blocks, and fetches Gradio's program once.

    Gradio itself opens one only in `launch()`, which this server replaces.
    """
    return networking.setup_tunnel("127.0.0.1", port, secrets.token_urlsafe(32), None, None)


def close_tunnels() -> None:
    """End the tunnels of this process."""
    for tunnel in tunneling.CURRENT_TUNNELS:
        process, tunnel.proc = tunnel.proc, None  # not `tunnel.kill`, which prints a line
        if process is not None:
            process.terminate()
            process.wait(5)


def log_in_visitors() -> None:
    """Let each visitor log in as themselves. Otherwise Gradio would log everybody in as the owner of this machine.

    Gradio reads this variable to know if it is on a Space. The hub's own images set it, Docker images do not.
    """
    os.environ["SYSTEM"] = "spaces"


def login_token(request: Request | None) -> str | None:
    """Return the valid token in the session of a request, or None."""
    try:
        return require_oauth_token(request) if request else None
    except HTTPException:
        return None


def login_reader(page: gr.Blocks) -> Callable[[Request], Awaitable[str | None]]:
    """Return a function for the token of a request to a route that is not Gradio's. Only Gradio reads its session."""

    async def read(request: Request) -> str | None:
        found: list[str | None] = []

        async def look(scope: Scope, receive: Receive, send: Send) -> None:
            found.append(login_token(Request(scope, receive)))

        for layer in cast(Any, page).app.user_middleware:
            if layer.cls is SessionMiddleware:
                await SessionMiddleware(look, *layer.args, **layer.kwargs)(
                    request.scope, request.receive, _send_nothing
                )
        return found[0] if found else None

    return read


async def _send_nothing(_: Message) -> None:
    """Send nothing: the session is only read."""


def take_load_event(button: gr.LoginButton) -> Callable[..., Any] | None:
    """Return the function that labels the button when a page loads, and keep Gradio from connecting it itself.

    Gradio would list it in the API, where programs have no use for it.
    """
    event, cast(Any, button).load_event_to_attach = button.load_event_to_attach, None
    return event[0] if event else None
