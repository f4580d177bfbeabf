"""Answers of a real vLLM that the app starts on a GPU: straight from vLLM, through the package, and through the page.

The model has the shape of Qwen3-8B and random weights: its words mean nothing, but its speed is that of the real one.
The app starts vLLM itself, as `make run MODEL=FOLDER` does. All ways ask the same server, one after the other, and the
server's own counter says how many tokens it wrote. It ends only processes that it started, within ten minutes.

    python -m bench.gpu [--chats 1,8,64] [--size 8B] [--rounds 2]

vLLM must be installed where the app finds it (see docs/gpu.md).
"""

import argparse
import asyncio
import html
import json
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import httpx
import psutil
from pydantic_ai.settings import ModelSettings

from agent import Agent, Endpoint, ModelSpec, connect, tool
from agent.models.catalog import load_catalog
from agent.providers.chat_completions import ChatCompletionsConnection
from agent.providers.connection import Reasoning
from agent.providers.discovery import discover
from bench.gpu_model import LETTERS, SHAPES, write_model
from bench.load import percentile
from bench.page_client import OurPage, PageConfig
from bench.process import bounded, started
from tests.support.ports import free_port
from tests.support.vllm_server import VllmServer

ANSWER_TOKENS = 256
START_S, LIMIT_S = 300.0, 570
WORDS = re.compile(rf"(?: [{LETTERS}]{{5}}){{2}}")
"""Text of the model: see `gpu_model.words`. Other frames of the page say what it waits for."""


@dataclass
class Timed:
    """One answer: epoch seconds at which it was asked for, at which its texts came, and at which it ended."""

    sent: float = 0.0
    at: list[float] = field(default_factory=list[float])
    ended: float = 0.0

    async def read(self, texts: AsyncGenerator[object]) -> None:
        """Note when each text comes."""
        self.sent = time.time()
        async with aclosing(texts):
            async for _ in texts:
                self.at.append(time.time())
        self.ended = time.time()


def found_server(app: psutil.Popen, log: Path) -> VllmServer:
    """Return the vLLM that the app has started. Its address and key are those of its process."""
    supervisor = next(one for one in app.children(recursive=True) if "serve" in one.cmdline())
    argv, key = supervisor.cmdline(), supervisor.environ()["VLLM_API_KEY"]
    root, model = f"http://127.0.0.1:{argv[argv.index('--port') + 1]}", argv[argv.index("serve") + 1]
    return VllmServer(root=root, key=key, log=log, pid=supervisor.pid, model=model)


async def idle(server: VllmServer, seconds: float) -> float:
    """Return the seconds until the engine works on nothing. Raises TimeoutError."""
    began = time.monotonic()

    def works() -> bool:
        return bool(server.running_requests() or server.metric("vllm:num_requests_waiting"))

    while await asyncio.to_thread(works):  # a stop that is measured goes on meanwhile
        if time.monotonic() - began > seconds:
            raise TimeoutError(f"the engine still works after {seconds:.0f} s")
        await asyncio.sleep(0.02)
    return time.monotonic() - began


Way = Callable[[str], AsyncGenerator[object]]
"""Asks a question and yields the texts of its answer."""


def straight(server: VllmServer, http: httpx.AsyncClient) -> Way:
    """Ask vLLM itself. Its chunks are not parsed."""

    async def ask(prompt: str) -> AsyncGenerator[object]:
        body = {"model": server.model, "stream": True, "messages": [{"role": "user", "content": prompt}]}
        headers = {"Authorization": f"Bearer {server.key}"}
        async with http.stream("POST", f"{server.url}/chat/completions", json=body, headers=headers) as answer:
            answer.raise_for_status()
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    yield line

    return ask


def through_package(agent: Agent) -> Way:
    """Ask with a run of the package."""

    async def ask(prompt: str) -> AsyncGenerator[object]:
        run = agent.run(prompt)
        async for response in run:
            yield response
        if run.finish_reason not in ("stop", "length"):
            raise RuntimeError(f"a run ended with {run.finish_reason}: {run.ending}")

    return ask


def through_page(pages: Sequence[OurPage]) -> Way:
    """Ask on new pages, each question on one of its own, so that no earlier answer is read again."""
    free = iter(pages)

    async def ask(prompt: str) -> AsyncGenerator[object]:
        page = next(free)
        async with aclosing(page.ask(prompt)) as frames:
            async for frame in frames:
                if WORDS.search(frame):
                    yield frame
        await page.finish()

    return ask


@dataclass(frozen=True, slots=True)
class Row:
    """The figures of one way with so many chats at once. Rates are in tokens of vLLM's counter a second, times in ms.

    `cpu` is that of the app for the page, and of this process for the other ways.
    """

    way: str
    chats: int
    rate: float
    first: float
    pause: float
    cpu: float

    def line(self, straight: "Row") -> str:
        """Return the row of the table, beside that of vLLM itself."""
        share = self.rate / straight.rate
        cells = [str(self.chats), self.way, f"{self.rate:,.0f}", f"{share:.2f}", f"{self.first:.0f}"]
        return "| " + " | ".join([*cells, f"{self.pause:.0f}", f"{self.cpu:.3f}"]) + " |"


def cpu_seconds(process: psutil.Process) -> float:
    """Return the CPU seconds of a process so far, without those of its children, of which vLLM is one."""
    times = process.cpu_times()
    return times.user + times.system


async def measure(name: str, ask: Way, chats: int, server: VllmServer, process: psutil.Process) -> Row:
    """Ask on so many chats at once, and return the figures."""
    await idle(server, 60)
    tokens, answers = server.metric("vllm:generation_tokens_total"), [Timed() for _ in range(chats)]
    cpu = cpu_seconds(process)
    await asyncio.gather(*(one.read(ask(f"Question {time.time():.3f} {at}")) for at, one in enumerate(answers)))
    tokens = server.metric("vllm:generation_tokens_total") - tokens
    seconds = max(one.ended for one in answers) - min(one.sent for one in answers)
    pauses = [after - before for one in answers for before, after in zip(one.at, one.at[1:], strict=False)]
    return Row(
        way=name,
        chats=chats,
        rate=tokens / seconds,
        first=1000 * statistics.median(one.at[0] - one.sent for one in answers),
        pause=percentile(pauses, 0.95) or 0.0,
        cpu=1000 * (cpu_seconds(process) - cpu) / tokens,
    )


async def open_pages(url: str, config: PageConfig, count: int) -> list[OurPage]:
    """Open so many pages, a few at a time."""
    pages, gate = [OurPage(url, config) for _ in range(count)], asyncio.Semaphore(8)

    async def open_(page: OurPage) -> None:
        async with gate:
            await page.open()

    await asyncio.gather(*map(open_, pages))
    return pages


async def compare(server: VllmServer, url: str, app: psutil.Process, counts: Sequence[int], rounds: int) -> None:
    """Print the table. Each way is measured `rounds` times in turn, and the round with the highest rate counts."""
    (spec,) = await server_models(server)
    config, limits = await PageConfig.read(url), httpx.Limits(max_connections=max(counts))
    async with (
        httpx.AsyncClient(timeout=120, limits=limits, trust_env=False) as http,
        Agent(connect(spec, Endpoint(server.url, server.key))) as agent,
    ):
        ways = {"vLLM": straight(server, http), "package": through_package(agent)}

        async def row(name: str, chats: int) -> Row:
            if name in ways:
                return await measure(name, ways[name], chats, server, psutil.Process())
            pages = await open_pages(url, config, chats)
            try:
                return await measure(name, through_page(pages), chats, server, app)
            finally:
                for page in pages:
                    await page.close()

        for name in (*ways, "page"):
            await row(name, 1)  # the first answer of each way is slower
        print("| chats | way | tokens/s | of vLLM's own | first text ms | pause p95 ms | CPU ms/token |")
        print("|---|---|---|---|---|---|---|", flush=True)
        for chats in counts:
            best: dict[str, Row] = {}
            for _ in range(rounds):
                for name in (*ways, "page"):
                    new = await row(name, chats)
                    best[name] = max(new, best.get(name, new), key=lambda one: one.rate)
            for one in best.values():
                print(one.line(best["vLLM"]), flush=True)


async def stop(server: VllmServer, url: str) -> None:
    """Stop an answer on a page. Print when the engine is free."""
    page = OurPage(url, await PageConfig.read(url))
    await page.open()
    async with aclosing(page.ask("Stop this")) as frames:
        seen = 0
        async for _ in frames:
            seen += 1
            if seen == 4:
                break
        stopping = asyncio.create_task(page.stop())
        print(f"stopped on the page: the engine is free after {1000 * await idle(server, 10):.0f} ms", flush=True)
        await stopping
    await page.close()


class Forced(ChatCompletionsConnection):
    """A connection whose model must call a tool, because random words hardly ever make a call."""

    def settings(self, reasoning: Reasoning | None) -> ModelSettings:
        """Return the settings of a request."""
        return {**super().settings(reasoning), "tool_choice": "required"}


@tool
def weather(city: Literal["Paris", "Rome"]) -> str:
    """The weather of a city."""
    return f"Rain in {city}."


async def check(server: VllmServer) -> None:
    """Print what runs of the package get: reasoning on and off, a call of a tool, and a prompt that is too long."""
    endpoint, spec = Endpoint(server.url, server.key), (await server_models(server))[0]
    async with Agent(connect(spec, endpoint)) as agent:
        for reasoning in (True, False):
            run = agent.run("Hello", reasoning=reasoning, max_tokens=32)
            kinds = {response.type async for response in run}
            print(f"reasoning={reasoning}: {kinds}, {run.finish_reason}", flush=True)
        run = agent.run("much too long " * 3_000)
        said = [response.content async for response in run if response.type == "error"]
        print(f"a prompt that is too long: {run.finish_reason}, {said}", flush=True)
    forced = Forced(spec, endpoint, load_catalog().providers["vllm"])
    async with Agent(forced, tools=[weather]) as agent:
        run = agent.run("Is it raining?", reasoning=False, max_tokens=128)
        async for response in run:
            if response.type in ("tool_call", "tool_call_result", "error"):
                print(f"tools: {response.type} {response.content}", flush=True)
            if response.type == "tool_call_result":
                run.cancel()


async def server_models(server: VllmServer) -> tuple[ModelSpec, ...]:
    """Return the models that the server lists, as the app reads them."""
    return await discover(Endpoint(server.url, server.key))


def used_mb() -> int:
    """Return the MiB of GPU memory in use, 0 without a GPU."""
    if not shutil.which("nvidia-smi"):
        return 0
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[0])


async def wait_until_ready(app: psutil.Popen, url: str, log: Callable[[], str]) -> None:
    """Return when the app's vLLM is ready. Print what the page says meanwhile. Raises RuntimeError."""
    until, began, said = time.monotonic() + START_S, time.monotonic(), ""
    while app.poll() is None and time.monotonic() < until:
        with suppress(OSError, httpx.HTTPError):
            page = OurPage(url, await PageConfig.read(url))
            shown = json.dumps(await page.run(page.config.event("page_loaded")))
            await page.close()
            step = html.unescape(next(iter(re.findall(r"vLLM, [^\"]*?: ([^\".]+)\.", shown)), ""))
            if step and step != said:
                print(f"after {time.monotonic() - began:.1f} s the page says: {step}", flush=True)
            said = step or said
        if re.search(r"vLLM with \S+ answers after", log()):
            return
        await asyncio.sleep(0.5)
    raise RuntimeError(log()[-6000:])


def main() -> None:
    """Start the app with the model, measure, and end it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chats", default="1,8,64")
    parser.add_argument("--size", default="8B", choices=tuple(SHAPES))
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=ANSWER_TOKENS)
    options = parser.parse_args()
    counts = [int(one) for one in options.chats.split(",")]
    with bounded(LIMIT_S), tempfile.TemporaryDirectory() as name:
        folder, port, before = Path(name), free_port(), used_mb()
        model, log, url = folder / f"qwen3-{options.size}", folder / "app.log", f"http://127.0.0.1:{port}"
        write_model(model, options.size, answer_tokens=options.tokens)
        env = {"MODEL": str(model), "GRADIO_SERVER_PORT": str(port), "SWITCHBOARD_DATA": str(folder / "data")}
        with started([sys.executable, "app.py"], log, env | {"SWITCHBOARD_OFFLINE": "1"}) as app:
            began = time.monotonic()
            asyncio.run(wait_until_ready(app, url, lambda: log.read_text(errors="replace")))
            server = found_server(app, log)
            print(f"vLLM is ready {time.monotonic() - began:.1f} s after the start of the app", flush=True)
            asyncio.run(compare(server, url, app, counts, options.rounds))
            asyncio.run(stop(server, url))
            asyncio.run(check(server))
            family = [app, *app.children(recursive=True)]
            began = time.monotonic()
            app.send_signal(signal.SIGTERM)
            _, left = psutil.wait_procs(family, timeout=30)
            print(f"ended {time.monotonic() - began:.1f} s after SIGTERM; processes left: {len(left)}")
            print(f"GPU memory in use before, after: {before}, {used_mb()} MiB")


if __name__ == "__main__":
    main()
