"""Resumable downloads from the model hub into files.

Does not know the right bytes; `weights.py` does.
"""

import asyncio
import os
import ssl
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, TypeVar
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import httpx2

from agent.errors import LocalModelError
from agent.i18n import LocalizedText, _

Progress = Callable[[int, int], None]  # bytes so far, bytes in all

PUBLIC_HUB = "https://huggingface.co"
_TRIES = 3
_CHUNK = 2**20
_T = TypeVar("_T")


async def in_thread(work: Callable[[], _T]) -> _T:
    """Run `work()` in a thread. If cancelled, it still waits for the thread, so that no file is left half written."""
    task = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        raise


def hub_url(env: Mapping[str, str] = os.environ) -> str | None:
    """Return the model hub (HF_ENDPOINT, else the public one), or None if HF_HUB_OFFLINE is set."""
    if env.get("HF_HUB_OFFLINE", "").lower() in ("1", "on", "yes", "true"):
        return None
    return (env.get("HF_ENDPOINT") or PUBLIC_HUB).rstrip("/")


def new_client() -> httpx2.AsyncClient:
    """Return a client for downloads. It follows redirects and uses the user's proxies and certificate store."""
    store = os.environ.get("PIP_CERT") or os.environ.get("REQUESTS_CA_BUNDLE")
    verify = ssl.create_default_context(cafile=store) if store and Path(store).is_file() else True
    return httpx2.AsyncClient(verify=verify, follow_redirects=True, timeout=httpx2.Timeout(20, connect=5))


async def reachable(url: str, *, seconds: float = 2.0) -> bool:
    """Return True if the host of `url`, or the proxy in front of it, accepts a connection. Never raises."""
    target = urlsplit(url)
    proxy = getproxies().get(target.scheme) or getproxies().get("all")
    if proxy and not proxy_bypass(target.hostname or ""):
        target = urlsplit(proxy)
    with suppress(OSError, TimeoutError, ValueError):
        async with asyncio.timeout(seconds):
            _, writer = await asyncio.open_connection(
                target.hostname, target.port or (443 if target.scheme == "https" else 80)
            )
            writer.close()
            return True
    return False


async def download(
    client: httpx2.AsyncClient, url: str, out: BinaryIO, *, what: str, limit: int, report: Progress
) -> None:
    """Append `url` to `out`. If `out` has the first bytes already, they are not requested again.

    A broken connection resumes, until `_TRIES` attempts in a row have added nothing. `limit` is the greatest size of
    `out` in bytes. `report` gets the bytes so far and in all. Raises `LocalModelError` with `what` as the name of the
    file; a full disk raises `OSError` (ENOSPC).
    """

    async def attempt() -> None:
        start = out.tell()
        headers = {"Accept-Encoding": "identity"}
        if start:
            headers["Range"] = f"bytes={start}-"
        async with client.stream("GET", url, headers=headers) as answer:
            if start and answer.status_code in (200, 416):  # no range support, or a wrong range: restart
                out.seek(0)
                out.truncate()
                if answer.status_code == 416:
                    raise httpx2.ReadError("the part on disk is longer than the file")
            total = out.tell() + int(_raise_for_status(answer).headers.get("content-length") or 0)
            if total > limit:
                raise _too_large(what)
            async for data in answer.aiter_bytes(_CHUNK):
                await in_thread(lambda data=data: out.write(data))
                if out.tell() > limit:
                    raise _too_large(what)
                report(out.tell(), total)

    await _retry(attempt, what, bytes_so_far=out.tell)


async def _retry(
    attempt: Callable[[], Awaitable[_T]], what: str, *, bytes_so_far: Callable[[], int] | None = None
) -> _T:
    failures, before = 0, bytes_so_far() if bytes_so_far else 0
    while True:
        try:
            return await attempt()
        except (httpx2.TransportError, httpx2.HTTPStatusError) as error:
            now = bytes_so_far() if bytes_so_far else 0
            failures = 1 if now > before else failures + 1
            before = now
            if failures >= _TRIES or (isinstance(error, httpx2.HTTPStatusError) and _is_final(error)):
                raise LocalModelError(
                    _("{what} could not be fetched: {reason}.", what=what, reason=_reason(error))
                ) from error
            await asyncio.sleep(0.5 * failures)


def _is_final(error: httpx2.HTTPStatusError) -> bool:
    return error.response.status_code < 500 and error.response.status_code not in (408, 416, 429)


def _reason(error: Exception) -> LocalizedText:
    """Return the reason without addresses: the address of a mirror can contain a password."""
    match error:
        case httpx2.HTTPStatusError():
            return _("the server answered {status}", status=error.response.status_code)
        case httpx2.TimeoutException():
            return _("the server did not answer in time")
        case httpx2.ConnectError():
            return _("the server cannot be reached")
        case _:
            return _("the connection broke off")


def _raise_for_status(answer: httpx2.Response) -> httpx2.Response:
    if answer.is_error:
        raise httpx2.HTTPStatusError("refused", request=answer.request, response=answer)
    return answer


def _too_large(what: str) -> LocalModelError:
    return LocalModelError(_("{what} is larger than it should be and was refused.", what=what))
