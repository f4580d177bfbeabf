"""Signals to the app: which answers may finish, what is stored, which processes end, and the exit status.

Each app here is a process, or `make run`, in its own session, so that a test can signal its whole process group as a
terminal does. Its clients are real: `gradio_client`, which reads a long-lived event stream, and Chromium.
"""

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import psutil
import pytest
from gradio_client import Client
from gradio_client.client import Job
from gradio_client.exceptions import AppError
from playwright.sync_api import expect
from pydantic_ai.messages import ModelResponse, TextPart

from agent.history.codec import load_entries
from agent.models.weights import SMOLLM2, fetch
from agent.web.server import REPEAT_SECONDS
from tests.conftest import CONFIG, ROOT, App, Visit, Visitor
from tests.support.launched_servers import write_program
from tests.support.ports import free_port
from tests.support.scripted_server import Config, Running, running
from tests.support.waiting import command_of

GONE = "The server is going down."
# A shell ignores SIGINT in background jobs, and these tests can run in one. A terminal does not do that.
MAKE = ["env", "--default-signal=INT", "make", "--no-print-directory", "-o", ".venv/.app", "run"]
"""The usual command, without the check of the installation."""
SLOWDOWN = 6
Start = Callable[..., App]


@pytest.fixture
def start(app: App, tmp_path: Path) -> Iterator[Start]:
    """Start an app with any command, in its own session. Its remaining processes are killed at the end of the test."""
    started: list[App] = []

    def begin(command: list[str] | None = None, drain: float = 10.0, **env: str) -> App:
        (tmp_path / "app.toml").write_text(f"[server]\ndrain_seconds = {drain}\n{CONFIG}")
        port = free_port()
        folders = {"SWITCHBOARD_DATA": str(tmp_path / "data"), "SWITCHBOARD_CONFIG": str(tmp_path / "app.toml")}
        own = App(tmp_path, {**app.env, **folders, "GRADIO_SERVER_PORT": str(port), **env}, port)
        own.imported = app.imported
        started.append(own)
        launch(own, command)
        return own

    yield begin
    for own in started:
        if own.process is not None and own.process.poll() is None:
            for process in family(own.process.pid):
                with suppress(psutil.Error):
                    process.kill()
            own.process.wait(60)


def launch(own: App, command: list[str] | None = None) -> None:
    """Start it and return when it answers."""
    path = own.folder / "app.log"
    if command is None and own.imported and own.imported.can_start(own.env):
        own.process = own.imported.start(own.env, (os.devnull, path, path), own_session=True)
    else:
        command = command or [sys.executable, "app.py"]
        with path.open("ab") as log:
            own.process = subprocess.Popen(
                command, cwd=ROOT, env=own.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
    until(lambda: answers(own, "healthz") or own.process.poll() is not None)
    assert own.process.poll() is None, own.log


def until(holds: Callable[[], Any], seconds: float = 60.0) -> Any:
    """Return the first true result of `holds`, within `seconds`."""
    end = time.monotonic() + seconds
    while not (found := holds()):
        assert time.monotonic() < end, "it is still not true"
        time.sleep(0.02)
    return found


def answers(own: App, path: str) -> tuple[int, dict[str, Any]] | None:
    """Return status and JSON of a GET without its measurements, or None without an answer."""
    try:
        with urlopen(f"{own.url}/{path}", timeout=10) as answer:
            status, said = answer.status, json.load(answer)
    except HTTPError as error:
        status, said = error.code, json.load(error)
    except OSError:
        return None
    said.pop("loop_lag_seconds", None)
    return status, said


def family(pid: int) -> list[psutil.Process]:
    """Return a process and all its descendants."""
    with suppress(psutil.NoSuchProcess):
        parent = psutil.Process(pid)
        return [parent, *parent.children(recursive=True)]
    return []


def left(processes: list[psutil.Process]) -> list[psutil.Process]:
    return [one for one in processes if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]


def ended(own: App, seconds: float = 30.0) -> int:
    """Wait for the app's end and return the exit status."""
    assert own.process is not None
    status = own.process.wait(seconds)
    own.process = None
    return status


@contextmanager
def connected(own: App) -> Iterator[Client]:
    """Connect a client. Its threads end with the block."""
    client = Client(own.url, verbose=False, analytics_enabled=False)
    try:
        yield client
    finally:
        client.close()


def ask(client: Client, text: str, **options: Any) -> Job:
    return client.submit({"text": text, "files": []}, "", options, api_name="/chat")


def writing(job: Job, word: str) -> None:
    """Wait until the client has read this word."""
    until(lambda: job.outputs() and word in job.outputs()[-1]["text"])


def kept(own: App) -> list[tuple[str, str | None, str]]:
    """Return the stored answers: text, ending, and detail of the ending."""
    path = own.folder / "data" / "history.sqlite"
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as base:
        texts = [row[0] for row in base.execute("SELECT entry FROM entries ORDER BY rowid")]
    return [
        (
            "".join(part.content for part in one.message.parts if isinstance(part, TextPart)),
            one.note.ended,
            one.note.detail,
        )
        for one in load_entries(texts)
        if isinstance(one.message, ModelResponse)
    ]


def cut_short(own: App, word: str) -> None:
    """Assert that the one answer is stored with its text so far and with the reason for its end."""
    ((text, how, why),) = kept(own)
    assert word in text
    assert how == "cancelled"
    assert "because the server was shut down" in why


# One signal


def test_drain_finishes_answer_and_starts_no_other(start: Start, model_server: Running) -> None:
    own = start()
    with connected(own) as reader, connected(own) as late:
        job = ask(reader, "!tokens 400 @200 hold 100 drained")
        writing(job, "word20")
        own.process.send_signal(signal.SIGTERM)
        until(lambda: answers(own, "readyz") == (503, {"ready": False, "reason": GONE}))
        assert answers(own, "healthz")[0] == 200
        with pytest.raises(AppError, match="The server is restarting"):
            ask(late, "!text too late").result(60)
        assert not job.done()
        model_server.release("drained")
        assert job.result(60)["finish_reason"] == "stop"
        assert job.outputs()[-1]["text"].split()[-1].startswith("word399")
    assert ended(own) == 0
    assert [(text.split()[-1][:7], how) for text, how, _ in kept(own)] == [("word399", "stop")]
    assert "one answer may go on" in own.log


def test_long_answer_is_cut_and_stored(start: Start, model_server: Running) -> None:
    own = start(drain=2.5)
    before = len(model_server.journal())
    with connected(own) as reader:
        job = ask(reader, "!tokens 9000 @200")
        writing(job, "word20")
        began = time.monotonic()
        own.process.send_signal(signal.SIGTERM)
        assert job.result(60)["finish_reason"] == "cancelled"
        assert time.monotonic() - began > 0.9
        assert ended(own) == 0
    cut_short(own, "word100")
    model_server.wait_for(lambda journal: journal[before]["ended"] == "client_closed")


def test_uninterruptible_tool_does_not_delay_exit(start: Start, model_server: Running) -> None:
    own = start(drain=1)
    with connected(own) as reader:
        job = ask(reader, '!tool block {"seconds": 60}', tools=True)
        until(lambda: job.outputs() and job.outputs()[-1]["bubbles"])
        own.process.send_signal(signal.SIGTERM)
        assert ended(own) == 0
    assert [how for _, how, _ in kept(own)][-1] == "cancelled"


# Two signals


def test_second_signal_ends_at_once_and_stores_text(start: Start) -> None:
    own = start(drain=60)
    with connected(own) as reader:
        job = ask(reader, "!tokens 9000 @200")
        writing(job, "word20")
        own.process.send_signal(signal.SIGINT)
        until(lambda: "Going down" in own.log)
        assert own.process.poll() is None
        time.sleep(REPEAT_SECONDS)  # an earlier SIGTERM counts as the first signal
        own.process.send_signal(signal.SIGTERM)
        assert ended(own) == 128 + signal.SIGTERM
    cut_short(own, "word20")


def test_second_signal_does_not_wait_for_stuck_model(start: Start, tmp_path: Path) -> None:
    stubborn = tmp_path / "bin" / "vllm"
    stubborn.parent.mkdir()
    write_program(stubborn, STUBBORN)
    own = start(VLLM_BASE_URL="", MODEL="any/model", PATH=f"{stubborn.parent}:{os.environ['PATH']}")
    until(lambda: (tmp_path / "bin" / "ready").exists())
    processes = family(own.process.pid)
    assert any(str(stubborn) in command_of(one) for one in processes)
    own.process.send_signal(signal.SIGINT)
    until(lambda: (tmp_path / "bin" / "asked").exists())
    own.process.send_signal(signal.SIGINT)
    assert ended(own) == 130
    assert left(processes), "it waited for the model's process"
    until(lambda: left(processes) == [])


STUBBORN = """
import pathlib, signal, time
here = pathlib.Path(__file__)
signal.signal(signal.SIGTERM, lambda *_: here.with_name("asked").touch())
here.with_name("ready").touch()
time.sleep(120)
"""


# make run


def test_sigterm_to_make_run_reaches_app_once(start: Start) -> None:
    own = start(MAKE, drain=2.5)
    processes = family(own.process.pid)
    with connected(own) as reader:
        job = ask(reader, "!tokens 9000 @200")
        writing(job, "word20")
        os.kill(own.process.pid, signal.SIGTERM)
        assert job.result(60)["finish_reason"] == "cancelled"
        assert ended(own) == -signal.SIGTERM
    assert left(processes) == []
    cut_short(own, "word100")


# The model's process


@pytest.fixture
def with_llama(start: Start, tmp_path: Path) -> Callable[..., App]:
    """Yield a function that starts an app with its own llama.cpp and the real SmolLM2."""
    path = asyncio.run(fetch(SMOLLM2, ROOT / ".cache", report=lambda _have, _total: None))

    def begin(**how: Any) -> App:
        own = start(VLLM_BASE_URL="", LOCAL_MODEL=str(path), SWITCHBOARD_CACHE=str(tmp_path), **how)
        until(lambda: answers(own, "readyz")[0] == 200, 60)
        return own

    return begin


LONG_STORY = "Go on with this for as long as you can, and never stop: " + "ha " * 200
"""At temperature 0, the model continues this until its token limit."""


@pytest.mark.weights
def test_no_llama_cpp_outlives_app(with_llama: Callable[..., App]) -> None:
    own = with_llama(drain=60)
    processes = family(own.process.pid)
    with connected(own) as reader:
        job = ask(reader, LONG_STORY, max_tokens=1000, temperature=0)
        until(lambda: job.outputs() and job.outputs()[-1]["text"])
        own.process.kill()
        assert ended(own) == -signal.SIGKILL
        until(lambda: left(processes) == [])
    assert kept(own) == []


# The page


def slow_down(visitor: Visitor) -> None:
    """Give the page a slow processor, which takes seconds to move an answer to the stored turns."""
    session = visitor.page.context.new_cdp_session(visitor.page)
    session.send("Emulation.setCPUThrottlingRate", {"rate": SLOWDOWN})


@pytest.mark.gate("A shutdown is announced and keeps typed text.")
def test_page_announces_shutdown_and_keeps_typed_text(start: Start, visit: Visit) -> None:
    own = start(drain=20)
    watching, typing = visit(own.url), visit(own.url)
    slow_down(watching)
    watching.say("!tokens 900 @200")
    expect(watching.chat).to_contain_text("word20")
    own.process.send_signal(signal.SIGTERM)
    until(lambda: answers(own, "readyz")[0] == 503)
    typing.say("my precious thought")
    expect(typing.hint).to_contain_text("The server is restarting. Try again in a minute")
    expect(typing.box).to_have_value("my precious thought")
    expect(typing.mine).to_have_count(0)
    typing.shot("going-down")
    expect(watching.chat).to_contain_text("word899")
    expect(watching.caption).to_contain_text("900 tokens")
    watching.idle()
    assert ended(own) == 0
    expect(typing.box).to_have_value("my precious thought")
    launch(own)
    typing.page.reload()  # as Gradio does when it notices the lost server
    expect(typing.box).to_have_value("my precious thought")
    typing.idle()
    typing.box.press("Enter")
    expect(typing.mine).to_have_text("my precious thought")
    typing.idle()
    typing.page.reload()
    expect(typing.mine).to_have_text("my precious thought")
    expect(typing.box).to_have_value("")


# Readiness


def test_readyz_follows_model_server(start_app: Start) -> None:
    port = free_port()
    own = start_app(VLLM_BASE_URL=f"http://name:hidden@127.0.0.1:{port}/v1")
    status, said = until(lambda: (found := answers(own, "readyz")) and "yet" not in found[1]["reason"] and found)
    assert (status, said) == (503, {"ready": False, "reason": "No model answers."})
    with running(Config(), port=port):
        assert until(lambda: (found := answers(own, "readyz")) and found[0] == 200 and found)[1]["reason"] == ""
    assert until(lambda: (found := answers(own, "readyz")) and found[0] == 503 and found)[1] == said
    assert answers(own, "healthz")[0] == 200


def test_keys_make_hosted_models_ready(start_app: Start) -> None:
    own = start_app(VLLM_BASE_URL="http://127.0.0.1:9/v1", XAI_API_KEY="xai-hidden")
    assert answers(own, "readyz") == (200, {"ready": True, "reason": ""})


def test_locked_store_is_not_ready(start_app: Start) -> None:
    own = start_app()
    until(lambda: answers(own, "readyz")[0] == 200)
    with closing(sqlite3.connect(own.folder / "data" / "history.sqlite", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        until(lambda: answers(own, "readyz") == (503, {"ready": False, "reason": "Nothing can be stored."}))
        assert answers(own, "healthz")[0] == 200
        other.execute("ROLLBACK")
    until(lambda: answers(own, "readyz")[0] == 200)


def test_missing_store_is_not_ready(start_app: Start) -> None:
    own = start_app()
    until(lambda: answers(own, "readyz")[0] == 200)
    with closing(sqlite3.connect(own.folder / "data" / "history.sqlite")) as base:
        base.execute("ALTER TABLE conversations RENAME TO lost")
        base.commit()
    assert answers(own, "readyz") == (503, {"ready": False, "reason": "The history store does not answer."})
    assert answers(own, "healthz")[0] == 200
