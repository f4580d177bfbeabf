"""`make bench`: our app against the naive page and the bare reader, on one scripted server.

Plain answers come after 0, 40 and 400 earlier turns, and answers in Markdown have 4,000 and 16,000 tokens. It stops
within 25 minutes, ends only processes that it started, and writes `results.md` and `results.json` beside it.

    python -m bench.run [--quick] [--only ours|naive|reader] [--answer tokens:1000:40] [--open-webui PROGRAM]
    python -m bench.run --goals   ours alone in six minutes, against its goals

`--open-webui` names the program of an installed Open WebUI, which then runs with a folder of its own, without login.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import psutil
from playwright.sync_api import Page

from bench.page import GRADIO, OPEN_WEBUI, Place, Seen, ask, browser_page, open_chat, renderer_clock, warm_up
from bench.process import ROOT, CpuMeter, OutOfTime, bounded, started, wait_until_up
from bench.report import ANSWERS, Answer, Result, against_goals, middle, report
from tests.support.ports import free_port

LIMIT_S = 1500
CAP_S = 2.0
"""The seconds after which a page is stopped, as a multiple of the time in which the tokens are sent."""
READY_S = 60.0
HERE = Path(__file__).resolve().parent


@dataclass(frozen=True, slots=True)
class Bench:
    """Resources of all measurements: the server, and a folder that is removed at the end."""

    base_url: str
    folder: Path
    open_webui: str = ""

    def journal(self, after: int) -> list[dict[str, Any]]:
        """Return the server's journal without the bodies."""
        with urlopen(f"{self.base_url.removesuffix('/v1')}/journal?bodies=0&after={after}", timeout=30) as answer:
            return json.load(answer)["requests"]


def measure_reader(bench: Bench, answer: Answer) -> Result:
    """Measure the bare reader in a separate process."""
    command = [sys.executable, "-m", "bench.reader", "--base-url", bench.base_url, "--turns", str(answer.turns)]
    done = subprocess.run(
        [*command, "--prompt", answer.prompt], cwd=ROOT, capture_output=True, text=True, timeout=180, check=True
    )
    read = json.loads(done.stdout)
    if read["tokens"] != answer.tokens:
        raise RuntimeError(f"the reader saw {read['tokens']} tokens")
    return Result(app="reader", answer=answer, cpu_ms=read["cpu_s"] * 1000 / answer.tokens)


def measure_naive(bench: Bench, answer: Answer) -> Result:
    """Measure the naive page. Its earlier turns are the chatbot's initial value."""
    port = free_port()
    command = [sys.executable, "-m", "bench.naive", "--base-url", bench.base_url, "--port", str(port)]
    return measure_app(bench, "naive", answer, [*command, "--turns", str(answer.turns)], port)


def measure_ours(bench: Bench, answer: Answer) -> Result:
    """Measure our app. It reads its earlier turns from the store: this visitor's latest conversation."""
    from bench.preload import preload, visitor_cookie  # late, because the naive row must run without the app

    port = free_port()
    data = Path(tempfile.mkdtemp(dir=bench.folder))
    cookie = None
    if answer.turns:
        owner = "bench-visitor"
        asyncio.run(preload(data, owner, answer.turns))
        cookie = visitor_cookie(data, owner)
    env = {
        "VLLM_BASE_URL": bench.base_url,
        "GRADIO_SERVER_PORT": str(port),
        "SWITCHBOARD_DATA": str(data),
        "SWITCHBOARD_OFFLINE": "1",
    }
    return measure_app(bench, "ours", answer, [sys.executable, "app.py"], port, env=env, cookie=cookie)


def measure_open_webui(bench: Bench, answer: Answer) -> Result:
    """Measure Open WebUI without earlier turns. It asks the model for nothing but the answer, and downloads nothing."""
    port = free_port()
    off = ("WEBUI_AUTH", "ENABLE_OLLAMA_API", "ENABLE_VERSION_UPDATE_CHECK", "ANONYMIZED_TELEMETRY")
    asked = ("TITLE", "TAGS", "FOLLOW_UP", "AUTOCOMPLETE")
    env = {
        **{name: "False" for name in (*off, *(f"ENABLE_{one}_GENERATION" for one in asked))},
        **{name: "True" for name in ("OFFLINE_MODE", "BYPASS_EMBEDDING_AND_RETRIEVAL", "DO_NOT_TRACK")},
        "OPENAI_API_BASE_URL": bench.base_url,
        "OPENAI_API_KEY": "none",
        "RAG_EMBEDDING_ENGINE": "openai",
        "HF_HUB_OFFLINE": "1",
        "DATA_DIR": tempfile.mkdtemp(dir=bench.folder),
        "WEBUI_SECRET_KEY": "bench",
    }
    command = [bench.open_webui, "serve", "--host", "127.0.0.1", "--port", str(port)]
    return measure_app(bench, "Open WebUI", answer, command, port, env=env, place=OPEN_WEBUI)


def measure_app(
    bench: Bench,
    app: str,
    answer: Answer,
    command: Sequence[str],
    port: int,
    *,
    env: dict[str, str] | None = None,
    cookie: tuple[str, str] | None = None,
    place: Place = GRADIO,
) -> Result:
    """Start an app, open its page, ask, and compare the server's journal with the times on the page."""
    url, log = f"http://127.0.0.1:{port}/", bench.folder / f"{app}.log"
    with browser_page() as page:
        if cookie:
            page.context.add_cookies([{"name": cookie[0], "value": cookie[1], "url": url}])
        begun = time.monotonic()
        with started(command, log, env) as child:
            wait_until_up(child, url, log, READY_S)
            up = time.monotonic() - begun
            box = open_chat(page, url, READY_S, place)
            wait_for_past(page, answer.turns)
            time.sleep(3.5)  # the app imports its provider some time after the page is ready
            meter, cap = CpuMeter(child), 10 + CAP_S * answer.tokens / 200
            meter.wait_until_idle()
            warm_up(page, box, place)
            last = max((line["id"] for line in bench.journal(0)), default=0)
            main_thread = renderer_clock(page)
            before = meter.seconds()
            seen = ask(
                page, box, answer.prompt, answer.tokens, chat=place.chat, cap=cap, clock=main_thread, tick=meter.seconds
            )
            cpu = meter.seconds() - before
            rss = psutil.Process(child.pid).memory_info().rss / 2**20
            line = max(bench.journal(last), key=lambda line: line["sent"], default=None)
    if line is None:
        raise RuntimeError(f"{app} sent no request to the model")
    complete = seen.shown == answer.tokens
    return Result(
        app=app,
        answer=answer,
        complete=complete,
        gap=seen.gap,
        browser_ms=seen.main_ms / max(seen.shown, 1),
        cpu_ms=cpu * 1000 / answer.tokens,
        received=seen.received / max(seen.shown, 1),
        rss_mb=rss,
        up_s=up,
        note="" if complete else f"{seen.shown} of {answer.tokens} shown after {seen.watched_s:.0f} s",
        **lags(seen, line),
    )


def wait_for_past(page: Page, turns: int) -> None:
    """Wait for the newest turn on the page, because a row of 400 turns must not measure an empty page."""
    if turns:
        page.locator("#chat").get_by_role("heading", name=f"Day {turns}", exact=True).wait_for(state="attached")


def lags(seen: Seen, line: dict[str, Any]) -> dict[str, float | None]:
    """Return the ms from Enter to the request, and from sending to showing for the first and the last token."""
    sent = {mark["n"]: mark["epoch_ms"] for mark in line["marks"]}
    each = [seen.at[n] - at for n, at in sent.items() if n in seen.at]
    waiting = [seen.ended - at for n, at in sent.items() if n not in seen.at]
    return {
        "request": line["at"]["epoch_ms"] - seen.enter,
        "first": seen.at[1] - line["first"]["epoch_ms"] if 1 in seen.at else None,
        "last": max(waiting) if waiting else each[-1],
    }


MEASURES = {
    "reader": measure_reader,
    "naive": measure_naive,
    "Open WebUI": measure_open_webui,
    "ours": measure_ours,
}


def measure(bench: Bench, app: str, answer: Answer) -> Result:
    """Measure one cell. A contender that cannot run becomes a row with the reason and does not end the bench."""
    print(f"{app}, {answer.name} ...", file=sys.stderr, flush=True)
    try:
        return MEASURES[app](bench, answer)
    except OutOfTime:
        raise
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        return Result(app=app, answer=answer, complete=False, note=f"{type(error).__name__}: {lines[-1][:160]}")


@contextmanager
def scripted(folder: Path, open_webui: str = "") -> Iterator[Bench]:
    """Run the model server in a separate process. Its context is long enough for 400 turns."""
    port, log = free_port(), folder / "server.log"
    command = [sys.executable, "-m", "tests.support.scripted_server", "--port", str(port), "--max-model-len", "1000000"]
    with started(command, log) as child:
        wait_until_up(child, f"http://127.0.0.1:{port}/health", log, 20)
        yield Bench(f"http://127.0.0.1:{port}/v1", folder, open_webui)


def grouped(results: Sequence[Result]) -> list[list[Result]]:
    """Group the results by answer and contender, in the order of both."""
    groups: dict[tuple[Answer, str], list[Result]] = {}
    for result in results:
        groups.setdefault((result.answer, result.app), []).append(result)
    answers = list(dict.fromkeys(result.answer for result in results))
    return [
        groups[key] for key in sorted(groups, key=lambda key: (answers.index(key[0]), list(MEASURES).index(key[1])))
    ]


def parsed(answer: str) -> Answer:
    """Return the answer that the command line names: script:tokens:turns:rounds. Raises ValueError."""
    script, *numbers = answer.split(":")
    return Answer(script, *map(int, numbers))


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description="Our app against the naive page and the bare reader.")
    parser.add_argument("--quick", action="store_true", help="one short answer after 40 turns")
    parser.add_argument("--only", action="append", choices=list(MEASURES), help="may be given again")
    parser.add_argument("--goals", action="store_true", help="our app alone, against its goals")
    parser.add_argument("--answer", action="append", type=parsed, help="script:tokens:turns:rounds; may be given again")
    parser.add_argument("--open-webui", default="", metavar="PROGRAM", help="measure this Open WebUI, too")
    given = parser.parse_args()
    given.only = ["ours"] if given.goals else given.only
    answers: Sequence[Answer] = given.answer or (ANSWERS[1:2] if given.quick else ANSWERS)
    results: list[Result] = []
    with (
        suppress(OutOfTime),
        bounded(LIMIT_S),
        tempfile.TemporaryDirectory() as folder,
        scripted(Path(folder), given.open_webui) as bench,
    ):
        # Round by round, so that other load on the machine affects all alike.
        for number in range(max(answer.rounds for answer in answers)):
            for answer in answers:
                for app in given.only or MEASURES:
                    if app == "Open WebUI" and (not given.open_webui or answer.turns):
                        continue
                    if number < (answer.rounds if app in ("ours", "reader") else 1):
                        results.append(measure(bench, app, answer))
    results = [middle(same) for same in grouped(results)]
    print(text := report(results))
    if given.goals:
        print(against_goals(results))
    if not (given.only or given.answer or given.quick):
        (HERE / "results.json").write_text(json.dumps([asdict(result) for result in results], indent=1) + "\n")
        (HERE / "results.md").write_text(text)


if __name__ == "__main__":
    main()
