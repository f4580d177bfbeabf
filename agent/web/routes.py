"""Our own routes beside the page: health, manifest and icons."""

from collections.abc import Awaitable, Callable

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse

from agent.providers import Models
from agent.web.chat.answers import LiveRuns
from agent.web.gradio_compat.application import root_url
from agent.web.health import Health
from agent.web.ui.page_head import ICONS, MANIFEST, STATIC, manifest

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


def add_page_routes(app: FastAPI, title: str, root_path: str) -> None:
    """Add the manifest and the icons of the page."""

    async def app_manifest(request: Request) -> Response:
        return JSONResponse(manifest(title, root_url(request, root_path)), media_type="application/manifest+json")

    app.add_api_route(MANIFEST, app_manifest)
    for path, (name, kind) in ICONS.items():
        headers = {"cache-control": "public, max-age=86400"}
        app.add_route(path, _always(Response((STATIC / name).read_bytes(), media_type=kind, headers=headers)))


def _always(answer: Response) -> Handler:
    """Return a handler that gives this answer to every request."""

    async def handler(_: Request) -> Response:
        return answer

    return handler
