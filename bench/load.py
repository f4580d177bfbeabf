"""Many visitors at once, each on the page's own path: send a message through the queue, then read the event stream.

Every visitor has a cookie and a page session, as a browser has them. The model server, the app and this client run on
one machine. It ends only processes that it started.

    python -m bench.load [--visitors 20,50,100,200] [--idle 0]
"""

import argparse
import asyncio
import json
import re
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.request import urlopen
from uuid import uuid4

import httpx
import psutil

from bench.process import CpuMeter, started, wait_until_up
from tests.support.ports import free_port

TOKENS, RATE = 300, 30
IDEAL_S = TOKENS / RATE
ARRIVAL_S = 2.0
"""Seconds over which the visitors send their messages, because a hundred people never press Enter in one moment."""
VISIT_S = 120.0
API = "/gradio_api/queue/"
TOKEN = re.compile(r"word(\d+)")


@dataclass
class Visit:
    """The visit of one person. Times are in epoch seconds. `at` has the arrival of each token's number."""

    number: int
    sent: float = 0.0
    at: dict[int, float] = field(default_factory=dict[int, float])
    ended: float = 0.0
    failure: str = ""

    @property
    def prompt(self) -> str:
        """The message, which names the visitor in the server's journal."""
        return f"!tokens {TOKENS} @{RATE} visitor-{self.number}-"


class PageClient:
    """A page without a browser: its cookie, its session and the numbers of its events."""

    def __init__(self, url: str) -> None:
        self.http = httpx.AsyncClient(base_url=url, timeout=VISIT_S, trust_env=False)
        self.session = uuid4().hex[:11]
        self._events: dict[str, dict[str, Any]] = {}
        self._names: dict[int, str] = {}
        self._values: dict[int, Any] = {}

    async def open(self) -> None:
        """Load the page, as a browser does."""
        await self.http.get("/")
        config = (await self.http.get("/config")).json()
        self._events = {event["api_name"]: event for event in config["dependencies"]}
        self._names = {one["id"]: one["props"].get("elem_id") or "" for one in config["components"]}
        self._values = {one["id"]: one["props"].get("value") for one in config["components"]}
        await self.run("page_loaded", {})

    async def run(self, event: str, values: dict[str, Any]) -> dict[str, Any]:
        """Run an event of the page. Return its outputs by the ids of their elements, "" for those without one."""
        found = self._events[event]
        data = [values.get(self._names[one], self._values[one]) for one in found["inputs"]]
        body = {"data": data, "fn_index": found["id"], "session_hash": self.session}
        joined = await self.http.post(API + "join", json=body)
        if joined.status_code != 200:
            raise RuntimeError(f"{event} was refused: {joined.status_code} {joined.text[:200]}")
        outputs: dict[str, Any] = {}
        async for message in events(self.http, API + "data", {"session_hash": self.session}):
            said = json.loads(message)
            if said["msg"] in ("process_generating", "process_completed"):
                if not said["success"]:
                    raise RuntimeError(f"{event} failed: {said['output']}")
                new = dict(zip((self._names[one] for one in found["outputs"]), said["output"]["data"], strict=True))
                outputs |= {name: value for name, value in new.items() if value != []}
            if said["msg"] == "close_stream":
                break
        return outputs

    async def close(self) -> None:
        """Close the connections."""
        await self.http.aclose()


async def events(http: httpx.AsyncClient, path: str, params: dict[str, str]) -> AsyncIterator[str]:
    """Yield the data of each event of a stream, until it ends."""
    async with http.stream("GET", path, params=params) as answer:
        if answer.status_code != 200:
            raise RuntimeError(f"{path} was refused: {answer.status_code}")
        async for line in answer.aiter_lines():
            if line.startswith("data: "):
                yield line.removeprefix("data: ")


async def visit(url: str, visit: Visit, start: float) -> None:
    """Open the page, send a message at `start`, and read the answer to its end. Notes a failure instead of raising."""
    client = PageClient(url)
    try:
        await client.open()
        await asyncio.sleep(max(0.0, start - time.time()))
        visit.sent = time.time()
        outputs = await client.run("submit", {"composer": {"text": visit.prompt, "files": []}})
        live = next(value["live"] for value in outputs.values() if isinstance(value, dict) and "live" in value)
        async for frame in events(client.http, "/" + live.partition("?")[0], dict(re.findall(r"(\w+)=(\w+)", live))):
            now = time.time()
            for number in TOKEN.findall(frame):
                visit.at.setdefault(int(number), now)
        visit.ended = time.time()
        if len(visit.at) != TOKENS:
            visit.failure = f"{len(visit.at)} of {TOKENS} tokens"
    except Exception as error:
        visit.failure = f"{type(error).__name__}: {error}"[:200]
    finally:
        await client.close()


async def idle_pages(url: str, count: int) -> list[PageClient]:
    """Open pages that do nothing. Each keeps its heartbeat open, as a browser does."""
    pages = [PageClient(url) for _ in range(count)]
    for page in pages:
        await page.open()
    return pages


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value that this share of all values does not exceed."""
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(share * len(ranked)))]


def row(visits: Sequence[Visit], sent: dict[int, dict[int, float]], cpu_s: float, rss_mb: float) -> dict[str, Any]:
    """Return the figures of one load. `sent` has the times at which the server sent tokens, by visitor and number."""
    done = [one for one in visits if not one.failure]
    first = [min(one.at.values()) - one.sent for one in done]
    delays = [
        one.at[number] - at for one in done for number, at in sent.get(one.number, {}).items() if number in one.at
    ]
    return {
        "visitors": len(visits),
        "finished": len(done),
        "first_p50_ms": round(1000 * statistics.median(first)) if first else None,
        "first_p95_ms": round(1000 * percentile(first, 0.95)) if first else None,
        "delay_p50_ms": round(1000 * statistics.median(delays)) if delays else None,
        "delay_p95_ms": round(1000 * percentile(delays, 0.95)) if delays else None,
        "longest_of_ideal": round(max(one.ended - one.sent for one in done) / IDEAL_S, 2) if done else None,
        "cpu_ms_per_token": round(1000 * cpu_s / (len(visits) * TOKENS), 3),
        "rss_mb": round(rss_mb),
        "failures": sorted({one.failure for one in visits if one.failure})[:3],
    }


def sent_times(base_url: str) -> dict[int, dict[int, float]]:
    """Return when the model server sent tokens, by the visitor in the prompt."""
    with urlopen(f"{base_url.removesuffix('/v1')}/journal?bodies=1&after=0", timeout=60) as answer:
        lines = json.load(answer)["requests"]
    times: dict[int, dict[int, float]] = {}
    for line in lines:
        found = re.search(r"visitor-(\d+)-", json.dumps(line))
        if found:
            times[int(found[1])] = {mark["n"] - 1: mark["epoch_ms"] / 1000 for mark in line["marks"]}
    return times


async def load(url: str, count: int, idle: int) -> list[Visit]:
    """Let this many visitors come within `ARRIVAL_S` seconds, beside idle pages."""
    pages = await idle_pages(url, idle)
    visits = [Visit(number) for number in range(count)]
    start = time.time() + 2 + count * 0.04  # all pages are open by then
    try:
        await asyncio.gather(*(visit(url, one, start + ARRIVAL_S * one.number / count) for one in visits))
    finally:
        for page in pages:
            await page.close()
    return visits


def measure(count: int, idle: int) -> dict[str, Any]:
    """Start the model server and the app anew, and measure one load."""
    with tempfile.TemporaryDirectory() as name:
        folder, ports = Path(name), [free_port(), free_port()]
        base_url, url = f"http://127.0.0.1:{ports[0]}/v1", f"http://127.0.0.1:{ports[1]}"
        env = {
            "VLLM_BASE_URL": base_url,
            "GRADIO_SERVER_PORT": str(ports[1]),
            "SWITCHBOARD_DATA": str(folder / "data"),
            "SWITCHBOARD_OFFLINE": "1",
        }
        model = [sys.executable, "-m", "tests.support.scripted_server", "--port", str(ports[0])]
        with (
            started(model, folder / "model.log") as server,
            started([sys.executable, "app.py"], folder / "app.log", env) as app,
        ):
            wait_until_up(server, f"http://127.0.0.1:{ports[0]}/health", folder / "model.log", 20)
            wait_until_up(app, url, folder / "app.log", 60)
            time.sleep(4)  # the app imports its provider some time after it is up
            meter = CpuMeter(app)
            before = meter.seconds()
            visits = asyncio.run(asyncio.wait_for(load(url, count, idle), VISIT_S))
            figures = row(visits, sent_times(base_url), meter.seconds() - before, _rss(app))
    return figures | {"idle_pages": idle}


def _rss(app: psutil.Popen) -> float:
    return psutil.Process(app.pid).memory_info().rss / 2**20


def main() -> None:
    """Measure and print one line of JSON per load."""
    parser = argparse.ArgumentParser(description="Many visitors at once, on the page's own path.")
    parser.add_argument("--visitors", default="20,50,100,200", help="comma-separated")
    parser.add_argument("--idle", type=int, default=0, help="pages that are open and do nothing")
    given = parser.parse_args()
    for count in map(int, given.visitors.split(",")):
        print(json.dumps(measure(count, given.idle)), flush=True)


if __name__ == "__main__":
    main()
