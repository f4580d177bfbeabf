"""The web application: builds its services and the page from the settings, and closes them in order."""

import asyncio
import gc
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from urllib.parse import urlsplit

import gradio as gr
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from starlette.middleware import Middleware

from agent.errors import AgentError
from agent.fetch import Guard
from agent.files.places import open_place
from agent.files.store import MediaStore
from agent.files.transcribe import Transcriber
from agent.history import Entry, HistoryStore, open_store
from agent.history.open_store import other_histories, path_of
from agent.i18n.translator import LANGUAGES, negotiate, translator_for
from agent.local.manager import LocalModels
from agent.models.catalog import Dialect, use_table_in
from agent.providers.connection import Models, preloaded
from agent.providers.discovery import discover
from agent.providers.speech import speech_server
from agent.settings import ROOT, PublicSettings, Settings
from agent.tools.function_tools import Tool, Toolset
from agent.tools.presets import load_presets
from agent.web.chat.answers import LiveRuns, RunningAnswer, RunningAnswers
from agent.web.chat.attachments import PRIVATE_LIMITS, PUBLIC_LIMITS
from agent.web.chat.branches import Branches
from agent.web.chat.cited_passages import CitedPassages
from agent.web.chat.conversation_list import ConversationList
from agent.web.chat.conversations import Conversations, StorageStatus
from agent.web.chat.expiry import (
    ExpiredConversations,
    IsBusy,
    IsOnly,
    OrphanedFiles,
    RetentionPeriods,
    add_missing_expiry,
)
from agent.web.chat.folders import Folders
from agent.web.chat.importer import Importer
from agent.web.chat.links import ChatCopies, ChatLinks
from agent.web.chat.model_menu import ModelMenu
from agent.web.chat.own_data import OwnData
from agent.web.chat.permit import AnswerRuns
from agent.web.chat.questions import Replies
from agent.web.chat.rate_limit import RateLimiter
from agent.web.chat.ratings import Ratings
from agent.web.chat.recent_histories import RecentHistories
from agent.web.chat.recovery import join_processes
from agent.web.chat.storage_quota import StorageQuota
from agent.web.chat.temporary import TemporaryChats
from agent.web.chat.temporary_stores import TemporaryMedia, TemporaryMemory, TemporaryStore
from agent.web.chat.titles import Titles
from agent.web.chat.transcript import to_turns
from agent.web.chat.turns import render_turn
from agent.web.chat.views import ChatViews
from agent.web.client_address import ANY, ClientAddressMiddleware
from agent.web.conversation_routes import (
    ConversationRoutes,
    FolderRoutes,
    OwnDataRoutes,
    add_temporary_route,
    answer_error,
)
from agent.web.gradio_compat.application import (
    DIAGRAMS,
    STATIC_FILES,
    inputs_of_events,
    later_parts,
    login_reader,
    mount,
    prepare_queue,
    root_url,
    styles_of,
    without_applications,
)
from agent.web.gradio_compat.event_queue import BoundedQueue, EventStreamMiddleware
from agent.web.health import Health, Watchdog
from agent.web.heavy_work import RequestLimit
from agent.web.housekeeping import Chore, free_memory_when_idle, run_housekeeping
from agent.web.link_routes import LinkPageRoutes, LinkRoutes
from agent.web.media_route import add_media_route
from agent.web.message_routes import ComposerRoutes, LinkFetcher, MessageRoutes
from agent.web.middleware.isolation import IsolationMiddleware, visitor_id_of
from agent.web.middleware.origins import Origins, is_loopback
from agent.web.middleware.page_delivery import ChosenLanguage, PageRewriteMiddleware, StaticFilesMiddleware
from agent.web.middleware.requests import BodyLength, BodyTimeout
from agent.web.middleware.uploads import UploadMiddleware
from agent.web.middleware.visitor_cookie import VisitorCookies
from agent.web.openai_routes import OpenAIRoutes
from agent.web.privacy import make_private
from agent.web.python_files import PythonFiles
from agent.web.run_event_routes import AnswerFrames, Frames, RunEventRoutes
from agent.web.transfer_routes import TransferRoutes
from agent.web.ui.events import build
from agent.web.ui.layout import i18n
from agent.web.ui.page_files import START, PageFacts, PageFiles, page_files
from agent.web.ui.page_head import ICONS, MANIFEST, STATIC, PageChanges, manifest
from agent.web.ui.theme import theme
from agent.web.unsent_files import UnsentFiles
from agent.web.voice_routes import VoiceRoutes

EVENTS_KEPT = timedelta(hours=1)
"""The time for which the events of an ended answer are kept, for a page that was away."""
STREAMS = 300
"""Events that can run at once; Gradio's own default is 40."""


@dataclass(frozen=True, slots=True)
class _Services:
    """The services that the page is built on. The application owns them and closes them at its end."""

    settings: Settings
    store: HistoryStore
    is_only: IsOnly
    media: MediaStore
    models: LocalModels
    unsent_files: UnsentFiles
    conversations: Conversations
    importer: Importer
    visitors: VisitorCookies
    ratings: Ratings

    async def aclose(self) -> None:
        await self.conversations.aclose()
        await self.models.aclose()
        await self.store.aclose()
        self.unsent_files.close()
        if self.ratings.dataset is not None:
            await self.ratings.dataset.aclose()


async def create_app(settings: Settings, *, say: Callable[[str], None] = print) -> FastAPI:
    """Build the whole application from the settings. Touches no network. Raises `AgentError`."""
    services = await _build_services(settings, say)
    conversations, models = services.conversations, services.models
    if settings.public:
        say(_spending(settings.public, conversations.models.shared_models, speech=settings.speech))
    with without_applications():
        page = build(conversations, services.visitors.guest_token)
        queue = prepare_queue(page, STREAMS)
    origins = _origins(settings)
    links, python = ChatLinks(services.store, settings), PythonFiles(settings.python, ROOT)
    parts = later_parts(page)
    files = page_files(_page_facts(settings, links, python), parts, styles_of(parts))
    app = FastAPI(
        lifespan=lambda app: _lifespan(services, app.state.watchdog),
        exception_handlers={AgentError: answer_error, OSError: answer_error},
        middleware=_middleware(services, page, queue, origins, files, python),
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
    )
    app.state.conversations, app.state.origins, app.state.page, app.state.queue = conversations, origins, page, queue
    health = _health(services, lambda: queue.problem)
    app.state.watchdog = health.watchdog
    add_health_routes(app, models, conversations.live_runs, health)
    add_page_routes(app, settings.title, settings.root_path)
    add_media_route(app, services.media)
    python.add_to(app)
    owner_of = partial(_owner_of, services.visitors)
    _add_event_route(app, services, owner_of)
    importer = services.importer
    name_model = conversations.models.name_of
    limit = RequestLimit.of_page(public=settings.public is not None)
    TransferRoutes(services.store, services.media, importer, services.unsent_files, owner_of, name_model, limit).add_to(
        app
    )
    own_data = OwnData(conversations, services.store, services.media, importer)
    OwnDataRoutes(own_data, services.unsent_files, owner_of, limit).add_to(app)
    add_temporary_route(app, conversations.temporary, owner_of)
    OpenAIRoutes(conversations.models, conversations.runs.rate_limiter, settings, owner_of).add_to(app)
    passages = CitedPassages(services.store, services.media)
    ConversationRoutes(conversations.list, passages, conversations.views, owner_of, limit).add_to(app)
    FolderRoutes(conversations, owner_of, limit).add_to(app)
    MessageRoutes(conversations, owner_of, login_reader(page), limit, services.ratings).add_to(app)
    guard = Guard(allow=() if settings.public else settings.fetch_from)
    fetcher = LinkFetcher(guard, conversations.runs.rate_limiter, max_bytes=settings.max_upload_bytes)
    ComposerRoutes(conversations, fetcher, owner_of, login_reader(page), limit).add_to(app)
    VoiceRoutes(conversations, speech_server(settings.speech, settings.speech_voice), owner_of).add_to(app)
    LinkRoutes(links, owner_of, conversations.running.is_busy, limit).add_to(app)
    copies = ChatCopies(services.media, importer)
    LinkPageRoutes(links, copies, services.media, settings, name_model).add_to(app)
    _mount(app, page, queue, settings, files)
    return app


def _mount(app: FastAPI, page: gr.Blocks, queue: BoundedQueue, settings: Settings, files: PageFiles) -> None:
    mount(
        *(app, page, queue),
        root_path=settings.root_path,
        max_file_size=settings.max_upload_bytes,
        theme=theme(),
        head=files.gradio_head(),
        js=START,
        i18n=i18n(settings.retention_days),
    )


def _page_facts(settings: Settings, links: ChatLinks, python: PythonFiles) -> PageFacts:
    return PageFacts(
        links=links.is_on,
        diagrams=DIAGRAMS,
        space=settings.space.id if settings.space else "",
        rates=bool(settings.ratings or settings.ratings_dataset),
        python=python.address,
    )


def _add_event_route(app: FastAPI, services: _Services, owner_of: Callable[[Request], str]) -> None:
    frames = AnswerFrames(services.conversations.views.running_turn)

    def frames_of(live: RunningAnswer, request: Request) -> Awaitable[Frames]:
        return frames.of(live, translator_for(request.headers))

    public, running = services.settings.public is not None, services.conversations.running
    RunEventRoutes(running, services.store, owner_of, frames_of, public=public).add_to(app)


def _health(services: _Services, queue_problem: Callable[[], str]) -> Health:
    catalog = services.conversations.models.catalog
    return Health(services.store, services.media, services.models, catalog, discover, queue_problem)


async def _build_services(settings: Settings, say: Callable[[str], None]) -> _Services:
    make_private(settings.data_dir)
    use_table_in(settings.data_dir)
    temporary = TemporaryMemory()
    opened = await open_store(settings.store, folder=settings.data_dir, is_secret=settings.public is not None)
    is_only = join_processes(path_of(settings.store, settings.data_dir))
    store = TemporaryStore(opened, temporary)
    unsent_files = UnsentFiles(settings.upload_dir or settings.data_dir / "uploads", settings.uploads)
    os.environ["GRADIO_TEMP_DIR"] = str(unsent_files.folder)  # Gradio takes files that a visitor names from here
    models = LocalModels(settings.local, say=say)
    place = open_place(settings.media_url)
    media = TemporaryMedia(place, temporary)
    conversations = build_conversations(
        *(settings, store, media, models, _tools(settings)),
        memory=temporary,
        quota=partial(StorageQuota, settings.public, store, media, place.path("") or settings.data_dir),
    )
    importer = Importer(settings, store, media, conversations.quota, conversations.list.is_in_use, _check_rendering)
    visitors = VisitorCookies.in_folder(settings.data_dir)
    ratings = Ratings.of(settings)
    return _Services(settings, store, is_only, media, models, unsent_files, conversations, importer, visitors, ratings)


def build_conversations(
    settings: Settings,
    store: HistoryStore,
    media: MediaStore,
    models: Models,
    tools: Sequence[Tool | Toolset] = (),
    *,
    memory: TemporaryMemory | None = None,
    quota: Callable[[IsBusy], StorageQuota] | None = None,
) -> Conversations:
    """Compose the chat service. `store` and `media` must know the chats in `memory`.

    `quota` makes the storage quota from what tells which conversations are in use. By default there is no limit.
    """
    public, periods, menu = settings.public, RetentionPeriods.of(settings), ModelMenu.of(settings, models)
    live_runs = LiveRuns(settings.grace_seconds if public else None)  # a private page finishes every answer
    running, replies, titles = RunningAnswers(store, live_runs), Replies(), Titles(settings, store, menu)
    listed = ConversationList(store, media, running, replies, titles.is_pending, periods)
    histories = RecentHistories(store)

    def forget(conversation: str) -> None:
        for part in (histories, replies, listed):
            part.forget(conversation)

    temporary = TemporaryChats(memory or TemporaryMemory(), live_runs, forget)
    room = quota(listed.is_in_use) if quota else StorageQuota(None, store, media, settings.data_dir, listed.is_in_use)
    return Conversations(
        settings=settings,
        store=store,
        media=media,
        models=menu,
        tools=tools,
        transcriber=Transcriber(settings.local.cache_dir, downloads=settings.local.downloads),
        attachment_limits=PUBLIC_LIMITS if public else PRIVATE_LIMITS,
        storage=StorageStatus(store),
        live_runs=live_runs,
        running=running,
        replies=replies,
        titles=titles,
        list=listed,
        views=ChatViews(store, running, replies, menu.name_of),
        temporary=temporary,
        branches=Branches(store, media, room, periods, running.is_busy, temporary),
        quota=room,
        runs=AnswerRuns(
            *(settings, media, menu, tools),
            histories=histories,
            live_runs=live_runs,
            rate_limiter=RateLimiter(public),
            quota=room,
            titles=titles,
            temporary=temporary,
            folders=Folders(store, periods),
        ),
    )


@asynccontextmanager
async def _lifespan(services: _Services, watchdog: Watchdog) -> AsyncGenerator[None]:
    """Start what runs beside the page, and close everything in order at the end."""
    conversations = services.conversations
    services.models.start()
    chores = [
        services.unsent_files.expire,
        _expiry_chore(services),
        partial(_remove_events, services.store),
        conversations.running.lost.end_all,
    ]
    if _knows_all_messages(services.settings):
        chores.append(OrphanedFiles(services.store, services.media, is_only=services.is_only).remove)

    def is_busy() -> bool:
        return conversations.live_runs.count > 0 or services.importer.is_running

    tasks = [
        asyncio.create_task(watchdog.run()),
        asyncio.create_task(conversations.live_runs.keep_leases(services.store)),
        asyncio.create_task(preload_models(conversations.models, is_busy)),
        asyncio.create_task(run_housekeeping(chores, services.settings.housekeeping_minutes * 60)),
        asyncio.create_task(free_memory_when_idle(is_busy)),
    ]
    if services.ratings.dataset is not None:
        tasks.append(asyncio.create_task(services.ratings.dataset.run()))
    # Everything loaded so far stays. Without `freeze` each collection looks at it again, which is 40 % of the cost of a
    # long page. A few thousand of these objects are garbage and stay too: finding them takes a quarter of a second.
    gc.freeze()
    gc.set_threshold(20_000, 10, 500)  # the middle one looks at 200,000 objects, which takes 0.03 s
    gc.enable()
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await services.aclose()


def _knows_all_messages(settings: Settings) -> bool:
    """Return False if another history, which the store does not know, may name stored files."""
    others = other_histories(settings.store, settings.data_dir)
    return not others and not (settings.is_in_memory and settings.media)


def _expiry_chore(services: _Services) -> Chore:
    """Return the chore that deletes expired conversations. Its first round sets the expiry of those that have none."""
    conversations, importer, store = services.conversations, services.importer, services.store
    has_added_expiry = False

    def is_importing(owner: str) -> bool:
        return importer.is_storing(owner) or conversations.branches.is_copying(owner)

    periods, in_use = RetentionPeriods.of(services.settings), conversations.list.is_in_use
    expired = ExpiredConversations(store, services.media, in_use, is_importing, periods, services.is_only)

    async def delete() -> int:
        nonlocal has_added_expiry
        if not has_added_expiry:
            await add_missing_expiry(store, services.settings)
            has_added_expiry = True
        deleted = await expired.delete()
        await conversations.replies.forget_deleted(store)
        return deleted

    return delete


async def _remove_events(store: HistoryStore) -> int:
    """Remove the events of answers that ended a while ago, by the store's clock: this process's own can be wrong."""
    await store.runs.remove(await store.retention.time() - EVENTS_KEPT)
    return 0


def _check_rendering(entries: Sequence[Entry]) -> None:
    """Render entries as the page does, one turn at a time."""
    for turn in to_turns(entries):
        render_turn(turn)


def _owner_of(visitors: VisitorCookies, request: Request) -> str:
    """Return the owner that a request speaks for: by its cookie, else by a guest's token."""
    return visitor_id_of(request.scope) or visitors.read_guest_token(request.query_params.get("guest")) or ""


async def preload_models(
    models: ModelMenu, is_busy: Callable[[], bool], sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
) -> None:
    """Import what the first message and the first choice of a model need, after the first page has had its time.

    A vendor's SDK takes seconds, in which the page would wait. None is imported while an answer is being written, or
    for models that no visitor can choose.
    """
    await sleep(3)
    dialects: list[Dialect] = ["chat", *(spec.dialect for spec in models.choosable(""))]
    for dialect in dict.fromkeys(dialects):
        while is_busy():
            await sleep(1)
        await preloaded(dialect)


def _middleware(
    services: _Services,
    page: gr.Blocks,
    queue: BoundedQueue,
    origins: Origins,
    files: PageFiles,
    python: PythonFiles,
) -> list[Middleware]:
    """Return the middleware in front of the page, the outermost first."""
    settings = services.settings

    changes = PageChanges(settings.title, settings.root_path, files, has_login=settings.has_login)
    isolation = Middleware(
        IsolationMiddleware,
        visitors=services.visitors,
        root_path=settings.root_path,
        framed_by=settings.framed_by,
        login=settings.has_login,
        origins=origins,
        icons=tuple(ICONS),
        events=inputs_of_events(page),
        owns_event=queue.owns_event,
        calls={str(event.api_name): number for number, event in page.fns.items() if event.api_visibility == "public"},
        session_of=queue.session_of,
        limit=RequestLimit.of_page(public=settings.public is not None),
        python_site=python.site,
    )
    uploads = Middleware(
        UploadMiddleware,
        uploads=services.unsent_files,
        most_bytes=settings.max_upload_bytes,
        translate_error=lambda accepted, error: negotiate(accepted)(error.text),
        limit=RequestLimit.of_page(public=settings.public is not None),
    )
    return [
        Middleware(ClientAddressMiddleware, any_proxy=trusted_proxies(settings) == ANY),
        Middleware(ChosenLanguage, languages=LANGUAGES),
        Middleware(BodyLength),
        Middleware(BodyTimeout),
        isolation,
        uploads,
        Middleware(EventStreamMiddleware, events=queue),
        Middleware(StaticFilesMiddleware, folder=STATIC_FILES, ours=files.contents),
        Middleware(
            PageRewriteMiddleware,
            change=changes.change,
            same_page=changes.same_page,
            limit=RequestLimit.of_page(public=settings.public is not None),
        ),
    ]


def _spending(public: PublicSettings, lent: Sequence[str], *, speech: str) -> str:
    """Return a line that tells the owner of a public page what strangers can spend."""
    models = f"with your keys they may use {', '.join(lent)}" if lent else "none of your keys is used for them"
    return (
        f"Open to everybody: {public.messages} messages a minute for each visitor, {public.messages_in_all} for all; "
        f"{public.answers_each} answers at once for each, {public.answers} for all; {models} ([public] models)."
        + (" The server of SPEECH reads answers aloud for everybody." if speech else "")
    )


def _origins(settings: Settings) -> Origins:
    """Return the names of the page. If other machines can reach it, any name is valid unless the settings list some."""
    urls = (f"//{settings.space.host}" if settings.space else "", settings.root_path)
    hosts = [found for url in urls if (found := urlsplit(url).hostname)]
    here = is_loopback(settings.host) and settings.space is None
    return Origins((*settings.hosts, *hosts), any_host=not (here or settings.hosts))


def trusted_proxies(settings: Settings) -> str:
    """Return the trusted proxies. On a Space these are all, because only the hub's proxy can reach it."""
    return os.environ.get("FORWARDED_ALLOW_IPS", ANY if settings.space else "127.0.0.1").strip()


def _tools(settings: Settings) -> list[Tool | Toolset]:
    """Load the tools that the settings name (see `agent.tools.presets.load_presets`). Raises `ConfigError`."""
    public = settings.public
    return [load_presets(name) for name in settings.tools if public is None or name in public.tools]


Handler = Callable[[Request], Awaitable[Response]]


def add_health_routes(app: FastAPI, models: Models, live_runs: LiveRuns, health: Health) -> None:
    """Add `/healthz`, which answers as long as the process lives, and `/readyz`, which says if it takes messages."""

    async def healthz(_: Request) -> Response:
        return JSONResponse({"status": "ok", "model": models.status.phase})

    async def readyz(_: Request) -> Response:
        problem = "The server is going down." if live_runs.is_closing else await health.problem()
        lag = round(health.watchdog.longest_lag, 3)
        answer = {"ready": not problem, "reason": problem, "loop_lag_seconds": lag}
        return JSONResponse(answer, status_code=503 if problem else 200)

    app.add_api_route("/healthz", healthz)
    app.add_api_route("/readyz", readyz)


ABOUT_ROUTES = """\
# {title}

> A chat page for AI models. A person can open {root}/ and type. Programs use these routes, with JSON bodies.

Visitors are known by the cookie that `GET {root}/` sets: send it with each request. Chats belong to their visitor.

- `{root}/?prompt=TEXT&model=NAME` opens the page with a text in the box and a chosen model. It sends nothing.
- `POST {root}/conversations` with `{{"text": "..."}}` begins a chat: `{{"conversation": "ID", "run": "RUN"}}`.
- `GET {root}/runs/RUN/events` streams the answer as Server-Sent Events, up to the event `end`.
- `POST {root}/conversations/ID/messages` with `{{"text": "..."}}` sends the next message.
- `POST {root}/conversations/ID/stop` stops the answer that is being written.
- `GET {root}/conversations` lists the chats of the visitor, with `?q=WORDS` those that have these words.
- `GET {root}/export/ID?format=markdown` returns a chat as text.
- `GET {root}/healthz` says that the server lives, and `GET {root}/readyz` that it takes messages.
- `GET {root}/v1/models` and `POST {root}/v1/chat/completions` speak OpenAI's API, unless the owner has closed them.

An error has a status of 400 or more and a sentence in `detail`. 429 means: wait for as long as it says.
"""


def add_page_routes(app: FastAPI, title: str, root_path: str) -> None:
    """Add the manifest, the icons, and `/llms.txt` and `/agents.md`, which tell programs how to use the app."""

    async def app_manifest(request: Request) -> Response:
        return JSONResponse(manifest(title, root_url(request, root_path)), media_type="application/manifest+json")

    async def llms(request: Request) -> Response:
        return PlainTextResponse(ABOUT_ROUTES.format(title=title, root=root_url(request, root_path).rstrip("/")))

    app.add_api_route(MANIFEST, app_manifest)
    for path in ("/llms.txt", "/agents.md"):
        app.add_api_route(path, llms)
    for path, (name, kind) in ICONS.items():
        headers = {"cache-control": "public, max-age=86400"}
        app.add_route(path, _always(Response((STATIC / name).read_bytes(), media_type=kind, headers=headers)))


def _always(answer: Response) -> Handler:
    """Return a handler that gives this answer to every request."""

    async def handler(_: Request) -> Response:
        return answer

    return handler
