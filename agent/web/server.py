"""The web server: one place that builds stores, models and page from the settings, and takes them down in order."""

import asyncio
import gc
import logging
import math
import os
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import gradio as gr
import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from gradio.route_utils import BUILD_PATH_LIB, get_root_url
from gradio.routes import App
from starlette.middleware import Middleware

from agent.errors import NotFound
from agent.fetch import Guard
from agent.history import HistoryStore
from agent.history.memory import MemoryStore
from agent.history.sqlite import SqliteStore
from agent.i18n.translator import negotiate
from agent.local.manager import LocalModels
from agent.media.store import ROUTE, MediaStore, headers_of
from agent.providers import preload
from agent.providers.discovery import discover
from agent.settings import PublicSettings, Settings
from agent.space import FLEETING
from agent.tools import Tool, Toolset
from agent.tools.presets import load_presets
from agent.web.chat.conversations import Conversations
from agent.web.chat.expiry import add_missing_expiry, delete_expired
from agent.web.chat.storage_quota import StorageQuota
from agent.web.client_address import ANY, ClientAddressMiddleware
from agent.web.connections import BodyTimeout, ConnectionLimits, limit_accept_log, raise_file_limit
from agent.web.gradio_compat.event_queue import bound_queue
from agent.web.gradio_compat.import_hook import nothing
from agent.web.gradio_compat.memory import release_memory
from agent.web.health import Health
from agent.web.housekeeping import run_housekeeping
from agent.web.log_levels import log_few_failures
from agent.web.middleware.event_stream import EventStreamMiddleware
from agent.web.middleware.isolation import IsolationMiddleware, visitor_id_of
from agent.web.middleware.origins import Origins, is_loopback
from agent.web.middleware.page_rewrite import PageRewriteMiddleware
from agent.web.middleware.static_files import StaticFilesMiddleware
from agent.web.middleware.uploads import UploadMiddleware
from agent.web.middleware.visitor_cookie import VisitorCookies
from agent.web.private_folder import make_private
from agent.web.share_link import close_share_link as close_tunnels
from agent.web.share_link import open_share_link
from agent.web.shutdown import GracefulServer
from agent.web.ui.api import ChatApi
from agent.web.ui.handlers import Handlers
from agent.web.ui.layout import i18n
from agent.web.ui.page import build
from agent.web.ui.page_head import ICONS, MANIFEST, STATIC, manifest, with_our_head
from agent.web.ui.page_script import script
from agent.web.ui.theme import head, theme
from agent.web.unsent_files import UnsentFiles

log = logging.getLogger(__name__)

STREAMS = 300
"""Answers that may stream at once; Gradio's own default is 40."""


async def create_app(settings: Settings, *, say: Callable[[str], None] = print) -> FastAPI:
    """The whole application over one set of settings. Raises `AgentError`; touches no network."""
    make_private(settings.data_dir)
    store = await _store(settings)
    uploads = UnsentFiles(settings.upload_dir or settings.data_dir / "uploads", settings.uploads)
    os.environ["GRADIO_TEMP_DIR"] = str(uploads.folder)  # Gradio takes files that a visitor names from here
    models = LocalModels(settings.local, say=say)
    media = MediaStore(settings.data_dir / "media")
    quota = StorageQuota(settings.public, store, media, settings.data_dir / "media")
    conversations = Conversations(settings, store, media, models, _tools(settings), quota)
    if settings.public:
        say(_spending(settings.public, conversations.models.shared_models))
    login = settings.space is not None and settings.space.login
    handlers = Handlers(conversations, Guard(allow=() if settings.public else settings.fetch_from))
    with _one_application():
        page = build(
            handlers,
            ChatApi(conversations),
            settings.title,
            sign_of_life=settings.key_seconds / 6,
            login=login,
            fleeting=settings.fleeting,
            days=settings.kept_days,
        )
        page.max_threads = STREAMS
        page.state_session_capacity = 500
        page.queue(default_concurrency_limit=None, api_open=False)
    queue = bound_queue(page, STREAMS, (handlers.watch.__name__, handlers.watch_other.__name__))
    # Gradio looks for queued events every millisecond, which costs 3 % of a core for ever; 10 ms are not felt.
    queue.sleep_when_free = 0.01
    # After each event it copies the last 10,000 of them, and sums them up with pandas, for a page of Gradio's that is
    # off here. (One of the names is misspelt there.)
    cast(Any, queue).ANAYLTICS_CACHE_FREQUENCY, queue.ANALYTICS_MAX_EVENTS = math.inf, 1
    health = Health(store, models, conversations.models.catalog, discover, lambda: queue.trouble)

    release_memory(queue)

    dated = False

    async def expire_conversations() -> int:
        nonlocal dated
        if not dated:
            await add_missing_expiry(store, settings)
            dated = True
        deleted = await delete_expired(store, media, conversations.live_runs.is_busy)
        await conversations.replies.forget_deleted(store)
        return deleted

    chores = [uploads.expire, expire_conversations]

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
        models.start()
        tasks = [
            asyncio.create_task(_warm()),
            asyncio.create_task(run_housekeeping(chores, settings.housekeeping_minutes * 60)),
        ]
        # What is loaded now stays; looking at it again in every collection is 40 % of the cost of a long page. The few
        # thousand objects of it that are garbage stay too: to find them takes a quarter of a second.
        gc.freeze()
        gc.set_threshold(20_000, 50, 100)
        gc.enable()
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            await conversations.aclose()
            await models.aclose()
            await store.aclose()
            uploads.close()

    origins = _origins(settings)
    walls = Middleware(
        IsolationMiddleware,
        visitors=VisitorCookies.in_folder(settings.data_dir),
        root_path=settings.root_path,
        framed_by=settings.framed_by,
        login=login,
        origins=origins,
        icons=tuple(ICONS),
        events={number: len(event.inputs) for number, event in page.fns.items()},
    )
    addresses = Middleware(ClientAddressMiddleware, any_proxy=_proxies(settings) == ANY)

    def root(request: Request) -> str:
        return get_root_url(request, request.url.path, settings.root_path)

    def dressed(request: Request, page: str) -> str:
        words = negotiate(request.headers.get("accept-language", ""))
        return with_our_head(page, settings.title, root(request), words)

    upload_requests = Middleware(
        UploadMiddleware,
        uploads=uploads,
        most_bytes=settings.max_upload_bytes,
        say=lambda accepted, error: negotiate(accepted).render(error.sayings) or str(error),
    )
    middleware = [
        addresses,
        Middleware(BodyTimeout),
        walls,
        upload_requests,
        Middleware(EventStreamMiddleware, has_session=queue.has_session),
        Middleware(StaticFilesMiddleware, folder=Path(BUILD_PATH_LIB)),
        Middleware(PageRewriteMiddleware, change=dressed),
    ]
    app = FastAPI(lifespan=lifespan, middleware=middleware, docs_url=None, redoc_url=None, openapi_url=None)
    app.state.conversations, app.state.origins = conversations, origins

    @app.get("/healthz")
    async def healthz() -> dict[str, str]:  # pyright: ignore[reportUnusedFunction]
        return {"status": "ok", "model": models.status.phase}

    @app.get("/readyz")
    async def readyz() -> Response:  # pyright: ignore[reportUnusedFunction]
        trouble = "The server is going down." if conversations.live_runs.closing else await health.trouble()
        return JSONResponse({"ready": not trouble, "reason": trouble}, status_code=503 if trouble else 200)

    @app.get(MANIFEST)
    async def app_manifest(request: Request) -> Response:  # pyright: ignore[reportUnusedFunction]
        return JSONResponse(manifest(settings.title, root(request)), media_type="application/manifest+json")

    for path, (name, kind) in ICONS.items():
        icon = Response(
            (STATIC / name).read_bytes(), media_type=kind, headers={"cache-control": "public, max-age=86400"}
        )
        app.add_route(path, _always(icon))

    @app.get(ROUTE + "{id_}")
    async def attachment(id_: str, request: Request) -> Response:  # pyright: ignore[reportUnusedFunction]
        visitor = visitor_id_of(request.scope)
        try:
            content = await media.read(visitor or "", id_)
        except NotFound:
            return Response("Not found.", status_code=404)
        return Response(
            content.data,
            media_type=content.media_type,
            headers=headers_of(content, request.query_params.get("name", "")),
        )

    cast(Any, gr).mount_gradio_app(  # its own types are not whole
        app,
        page,
        path="",
        root_path=settings.root_path,
        footer_links=[],
        run_history=False,
        show_error=False,
        enable_monitoring=False,
        pwa=False,
        ssr_mode=False,
        max_file_size=settings.max_upload_bytes,
        theme=theme(),
        head=head(),
        js=script(),
        i18n=i18n(),
    )
    cast(Any, page).app = cast(Any, app.routes[-1]).app
    app.state.page = page
    return app


def _always(answer: Response) -> Callable[[Request], Awaitable[Response]]:
    """Return a handler that gives this answer to every request."""

    async def handler(_: Request) -> Response:
        return answer

    return handler


@contextmanager
def _one_application() -> Generator[None]:
    """Within it Gradio makes no web application; without, it makes one for each step in which a page is built."""
    made = App.__dict__["create_app"]
    cast(Any, App).create_app = nothing
    try:
        yield
    finally:
        cast(Any, App).create_app = made


async def _warm() -> None:
    """Import what the first message needs once the first page has had its time: neither start nor message waits."""
    await asyncio.sleep(3)
    await asyncio.to_thread(preload, "chat")


def serve(settings: Settings, *, say: Callable[[str], None] = print) -> int:
    """Serve until a signal; return the exit status."""
    return asyncio.run(_serve(settings, say))


async def _serve(settings: Settings, say: Callable[[str], None]) -> int:
    try:
        listener = socket.create_server((settings.host, settings.port), backlog=512)
    except OSError as error:
        say(f"{settings.host}:{settings.port} cannot be used: {error.strerror or error}. Set GRADIO_SERVER_PORT.")
        return 1
    host, port = listener.getsockname()[:2]
    app = await create_app(settings, say=say)
    config = uvicorn.Config(
        app,
        log_level="warning",
        timeout_graceful_shutdown=2,  # what streams has been ended before
        timeout_keep_alive=75,
        http=cast(Any, ConnectionLimits(raise_file_limit(), _proxies(settings)).protocol),
        ws="none",
        backlog=128,  # asyncio tries to accept so many at once, and logs each that fails
        proxy_headers=True,
        forwarded_allow_ips=_proxies(settings),
    )
    here = f"http://{'127.0.0.1' if host in ('0.0.0.0', '::') else host}:{port}"
    say(f"The page is at {f'https://{settings.space.host}' if settings.space and settings.space.host else here}")
    if settings.fleeting:
        say(FLEETING)
    limit_accept_log(asyncio.get_running_loop())
    log_few_failures()
    server = GracefulServer(config, settings.drain_seconds, say)
    sharing = asyncio.create_task(open_share_link(port, say, app.state.origins.add)) if settings.share else None
    try:
        with listener:
            await server.serve(sockets=[listener])
    finally:
        if sharing is not None:
            sharing.cancel()
            close_tunnels()
    return server.status


def _spending(public: PublicSettings, lent: Sequence[str]) -> str:
    """Return a line that tells the owner of a public page what strangers may spend."""
    models = f"with your keys they may use {', '.join(lent)}" if lent else "none of your keys is used for them"
    return (
        f"Open to everybody: {public.messages} messages a minute for each visitor, {public.messages_in_all} for all; "
        f"{public.answers_each} answers at once for each, {public.answers} for all; {models} ([public] models)."
    )


def _origins(settings: Settings) -> Origins:
    """The names of the page. A server that other machines reach has any name, unless the settings list its names."""
    urls = (f"//{settings.space.host}" if settings.space else "", settings.root_path)
    hosts = [found for url in urls if (found := urlsplit(url).hostname)]
    here = is_loopback(settings.host) and settings.space is None
    return Origins((*settings.hosts, *hosts), any_host=not (here or settings.hosts))


def _proxies(settings: Settings) -> str:
    """The proxies whose headers are believed. A Space is reached only through the hub's, whose address is not known."""
    return os.environ.get("FORWARDED_ALLOW_IPS", ANY if settings.space else "127.0.0.1").strip()


async def _store(settings: Settings) -> HistoryStore:
    if settings.store == "memory":
        return MemoryStore()
    return await SqliteStore.open(settings.data_dir / "history.sqlite")


def _tools(settings: Settings) -> list[Tool | Toolset]:
    """The tools that the settings name, as `agent.tools.presets.load_presets` takes them. Raises `ConfigError`."""
    public = settings.public
    return [load_presets(name) for name in settings.tools if public is None or name in public.tools]
