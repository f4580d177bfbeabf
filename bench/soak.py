"""`make soak`: 200 visitors for five minutes. No text may cross from one to another, and their memory must come back.

Every visitor has a cookie and a page, sends messages with a marker of its own, reads its answers, and leaves. Some come
back, and others come in their place. Each byte that a visitor receives is searched for the markers of others. Visitors
also ask for each other's answers, conversations and files by their ids. These must look missing to them. It ends only
processes that it started, within ten minutes, and exits with 1 if something was wrong.

    python -m bench.soak [--visitors 200] [--seconds 300]
"""

import argparse
import asyncio
import json
import random
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import httpx
import psutil

from bench.page_client import SECONDS, OurPage, PageConfig
from bench.process import OutOfTime, bounded, started, wait_until_up
from tests.support.ports import free_port

LIMIT_S = 600
MARKER = re.compile(rb"marker-[0-9a-f]{16}")
LONGEST = 64
"""Bytes of a stream that are kept, so that a marker that is cut in two is found."""
WARM_ANSWERS, WARM_SECONDS = 2, 120.0
"""A first crowd stays until it has so many answers for each visitor, or for so long. The memory is measured after it:
by then the app has its working size, on a slow machine too."""
QUIET_S = 20.0
"""Seconds after the last visitor has left until the memory is measured."""
WORDS, RATE = 60, 30
NEW_SHARE = 0.4
"""The share of visitors that do not come back; somebody else comes."""
RETURN_SHARE = 0.15
"""The most that the memory may be above its start afterwards, as a share of it."""
SESSION_KB = 50.0
FOREIGN = (
    "/runs/{run}/events?wait=0",
    "/runs/{run}/events?format=blocks&wait=0",
    "/conversations/{conversation}",
    "/export/{conversation}?format=json",
    "/c/{conversation}",
)
OPENING_ROUTES = ("/c/{conversation}",)
"""Routes that answer everybody, with a page that must not contain the conversation."""


@dataclass
class Report:
    """Counts of one soak, and what was wrong."""

    done: Counter[str] = field(default_factory=Counter[str])
    faults: list[str] = field(default_factory=list[str])

    def fault(self, text: str) -> None:
        """Note a fault. The first hundred are kept."""
        self.done["faults"] += 1
        if len(self.faults) < 100:
            self.faults.append(text)


@dataclass(frozen=True, slots=True)
class Ids:
    """The ids of something that one visitor has, and a marker that is in it."""

    marker: bytes
    run: str
    conversation: str


class Watching(httpx.AsyncHTTPTransport):
    """Searches all that a visitor receives for the markers of others."""

    def __init__(self, marker: bytes, report: Report) -> None:
        super().__init__()
        self._marker, self._report = marker, report

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send the request, and watch its response."""
        response = await super().handle_async_request(request)
        response.stream = _WatchedStream(response.stream, self._marker, self._report, request.url.path)
        return response


class _WatchedStream(httpx.AsyncByteStream):
    def __init__(self, stream: object, marker: bytes, report: Report, path: str) -> None:
        assert isinstance(stream, httpx.AsyncByteStream)
        self._stream, self._marker, self._report, self._path = stream, marker, report, path

    async def __aiter__(self) -> AsyncIterator[bytes]:
        end = b""
        async for piece in self._stream:
            for found in MARKER.findall(end + piece):
                self._report.done["markers"] += 1
                if found != self._marker:
                    self._report.fault(f"{self._path} gave {found.decode()} to {self._marker.decode()}")
            end = (end + piece)[-LONGEST:]
            yield piece

    async def aclose(self) -> None:
        await self._stream.aclose()


class Visitor:
    """One person after the other. `all_ids` has what all visitors have, to ask for what others have."""

    def __init__(self, url: str, config: PageConfig, report: Report, all_ids: list[Ids]) -> None:
        self._url, self._config, self._report, self._all_ids = url, config, report, all_ids
        self._marker, self._cookies = _new_marker(), httpx.Cookies()

    async def stay(self, staying: Callable[[], bool]) -> None:
        """Open pages, chat, and leave them, as long as `staying` says so."""
        while staying():
            page = OurPage(self._url, self._config)
            await page.http.aclose()
            page.http = self._client()
            try:
                await self._visit(page, staying)
            except Exception as error:
                self._report.fault(f"{type(error).__name__}: {error}"[:200])
                await asyncio.sleep(1)
            finally:
                self._cookies = page.http.cookies
                await page.close()
            if random.random() < NEW_SHARE:
                self._marker, self._cookies = _new_marker(), httpx.Cookies()

    def _client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            base_url=self._url,
            timeout=SECONDS,
            cookies=self._cookies,
            transport=Watching(self._marker, self._report),
            headers={"accept-encoding": "identity"},
        )

    async def _visit(self, page: OurPage, staying: Callable[[], bool]) -> None:
        await page.open()
        self._report.done["pages"] += 1
        for _ in range(random.randint(1, 3)):
            if staying():
                await self._talk(page)
                await self._pry(page.http)
                await asyncio.sleep(random.uniform(0, 2))

    async def _talk(self, page: OurPage) -> None:
        """Send a message with the marker, and read the answer, which must have it."""
        words = " ".join(f"{random.randrange(10**6)}" for _ in range(WORDS))
        async with aclosing(page.ask(f"!pace {RATE} !text {self._marker.decode()} {words}")) as frames:
            async for _ in frames:
                self._report.done["frames"] += 1
        self._report.done["answers"] += 1
        run, answer = page.run_id, json.dumps(await page.stored())
        if answer.count(self._marker.decode()) < 2:
            self._report.fault("a stored chat lacks the marker in its message or its answer")
        events = (await page.http.get(f"/runs/{run}/events?wait=0")).text
        begun = json.loads(events.partition("data: ")[2].partition("\n")[0])
        self._all_ids.append(Ids(self._marker, run, begun["conversation"]))

    async def _pry(self, http: httpx.AsyncClient) -> None:
        """Ask for something of somebody else, and for the same of one's own."""
        foreign = [ids for ids in self._all_ids[-400:] if ids.marker != self._marker]
        own = [ids for ids in self._all_ids[-400:] if ids.marker == self._marker]
        if not foreign or not own:
            return
        for route in FOREIGN:
            theirs = await http.get(_filled(route, random.choice(foreign)))
            mine = await http.get(_filled(route, own[-1]))
            self._report.done[f"{route} {mine.status_code}"] += 1
            if theirs.status_code < 400 and route not in OPENING_ROUTES:
                self._report.fault(f"{route} of another visitor answered {theirs.status_code}")


def _new_marker() -> bytes:
    return b"marker-" + uuid4().hex[:16].encode()


def _filled(route: str, ids: Ids) -> str:
    return route.format(run=ids.run, conversation=ids.conversation)


async def crowd(
    url: str, config: PageConfig, report: Report, visitors: int, seconds: float, answers: float = float("inf")
) -> None:
    """Let so many visitors stay for that long, or until they have so many answers."""
    until, all_ids = time.monotonic() + seconds, list[Ids]()

    def staying() -> bool:
        return time.monotonic() < until and report.done["answers"] < answers

    await asyncio.gather(*(Visitor(url, config, report, all_ids).stay(staying) for _ in range(visitors)))


async def soak(url: str, child: psutil.Popen, visitors: int, seconds: float) -> tuple[Report, float, float]:
    """Return the report, and the memory of the app before and after, in MB."""
    config = await PageConfig.read(url)
    first, report = Report(), Report()
    await crowd(url, config, first, visitors, WARM_SECONDS, WARM_ANSWERS * visitors)
    await asyncio.sleep(QUIET_S)
    before = _memory_mb(child)
    print(f"first crowd: {first.done['answers']} answers on {first.done['pages']} pages")
    await crowd(url, config, report, visitors, seconds)
    await asyncio.sleep(QUIET_S)
    return report, before, _memory_mb(child)


def _memory_mb(child: psutil.Popen) -> float:
    return psutil.Process(child.pid).memory_full_info().uss / 2**20


def main() -> None:
    """Soak, print the counts, and exit with 1 if something was wrong."""
    parser = argparse.ArgumentParser(description="Many visitors with markers, for a while.")
    parser.add_argument("--visitors", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=300)
    given = parser.parse_args()
    wrong = True
    with suppress(OutOfTime), bounded(LIMIT_S), tempfile.TemporaryDirectory() as name:
        folder, ports = Path(name), [free_port(), free_port()]
        env = {
            "VLLM_BASE_URL": f"http://127.0.0.1:{ports[0]}/v1",
            "GRADIO_SERVER_PORT": str(ports[1]),
            "SWITCHBOARD_DATA": str(folder / "data"),
            "SWITCHBOARD_OFFLINE": "1",
        }
        url = f"http://127.0.0.1:{ports[1]}"
        model = [sys.executable, "-m", "tests.support.scripted_server", "--port", str(ports[0])]
        with (
            started(model, folder / "model.log") as server,
            started([sys.executable, "app.py"], folder / "app.log", env) as child,
        ):
            wait_until_up(server, f"http://127.0.0.1:{ports[0]}/health", folder / "model.log", 20)
            wait_until_up(child, url, folder / "app.log", 60)
            report, before, after = asyncio.run(soak(url, child, given.visitors, given.seconds))
            errors = [line for line in (folder / "app.log").read_text().splitlines() if "Traceback" in line]
        wrong = _print(report, before, after, errors)
    sys.exit(wrong)


def _print(report: Report, before: float, after: float, errors: list[str]) -> bool:
    """Print the counts, and return True if something is wrong."""
    pages = report.done["pages"] or 1
    each = (after - before) * 1024 / pages
    for name, number in sorted(report.done.items()):
        print(f"{name}: {number}")
    print(f"memory of the app: {before:.0f} MB before, {after:.0f} MB after, {each:.1f} KB for each closed page")
    faults = [*report.faults, *(f"the app logged {line}" for line in errors)]
    if after > before * (1 + RETURN_SHARE):
        faults.append(f"the memory did not come back to within {RETURN_SHARE:.0%}")
    if each > SESSION_KB:
        faults.append(f"a closed page costs more than {SESSION_KB:.0f} KB")
    if not report.done["answers"] or not report.done["markers"]:
        faults.append("nobody got an answer, so nothing was tested")
    print(*faults[:20], sep="\n")
    return bool(faults)


if __name__ == "__main__":
    main()
