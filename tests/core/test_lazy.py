"""A model's provider loads only its own SDK, and all SDKs together fit in a small machine's memory."""

import asyncio
import gc
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from fastapi import FastAPI
from gradio.routes import App

from agent.settings import ROOT, LocalSettings, Settings
from agent.web.app import create_app

pytestmark = pytest.mark.slow

SDKS = ("openai", "anthropic", "google.genai")
VENDORS = {
    "openai:gpt-6-luna": "openai",
    "xai:grok-4.6": "openai",
    "huggingface:Qwen/Qwen3-8B": "openai",
    "vllm:Qwen/Qwen3-8B": "openai",
    "anthropic:claude-sonnet-5-5": "anthropic",
    "google:gemini-3.8-flash": "google.genai",
}
# Forks after importing the agent, because each model needs a process without another's SDK.
OPEN = """
import asyncio, os, sys
from agent import Endpoint, connect
from agent.models.catalog import load_catalog
async def main(model):
    connection = connect(load_catalog().find(model), Endpoint("http://127.0.0.1:1/v1", "key"))
    connection.model()
    await connection.aclose()
for model in sys.argv[2:]:
    if os.fork() == 0:
        asyncio.run(main(model))
        print(model, *[name for name in sys.argv[1].split() if name in sys.modules], flush=True)
        os._exit(0)
    os.wait()
"""


GRADIO = """
import sys
stubs = []
def note(event, given):
    if event == "open" and str(given[0]).endswith(".pyi"):
        stubs.append(given[0])
sys.addaudithook(note)
finders = list(sys.meta_path)
{how}
others = ("mcp", "pandas.core", "gradio.cli", "gradio.external", "gradio.workflow")
print(len(stubs), *(int(name in sys.modules) for name in others), int(sys.meta_path == finders))
import agent.tools.mcp
from concurrent.futures import ThreadPoolExecutor
import gradio, gradio.caching
with ThreadPoolExecutor(8) as pool:
    assert list(pool.map(lambda _: len(gradio.caching.pd.DataFrame({{"a": [1, 2]}})), range(8))) == [2] * 8
import pandas
assert gradio.caching.pd.Series is pandas.Series
from gradio.cli import deploy
from gradio.external import load
from gradio.workflow import Workflow
assert load.__module__ == "gradio.external"
assert isinstance(Workflow, type)
"""


@pytest.fixture(scope="module")
def imported_sdks() -> dict[str, list[str]]:
    """The SDKs that are imported for each model."""
    command = [sys.executable, "-c", OPEN, " ".join(SDKS), *VENDORS]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=True)
    return {model: sdks for model, *sdks in map(str.split, done.stdout.splitlines())}


@pytest.mark.full
@pytest.mark.parametrize(("model", "sdk"), VENDORS.items(), ids=VENDORS)
def test_each_vendor_imports_only_its_sdk(imported_sdks: dict[str, list[str]], model: str, sdk: str) -> None:
    assert imported_sdks[model] == [sdk]


def test_page_starts_without_unused_imports() -> None:
    """Importing Gradio reads no stubs and loads no unused packages. `import_hook.py` can go if Gradio does so."""

    def imported(how: str) -> tuple[int, ...]:
        command = [sys.executable, "-c", GRADIO.format(how=how)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=True)
        return tuple(int(word) for word in done.stdout.split())

    by_itself = imported("import gradio")
    assert by_itself[0] > 50
    assert by_itself[1:] == (1, 1, 1, 1, 1, 1)
    ours = "from agent.web.gradio_compat.import_hook import import_gradio as ours; ours(); ours()"
    assert imported(ours) == (0, 0, 0, 0, 0, 0, 1)


@asynccontextmanager
async def built(folder: Path) -> AsyncIterator[FastAPI]:
    """Build the app, and close at the end what it owns."""
    before = gc.get_threshold()
    local = LocalSettings(cache_dir=folder, downloads=False)
    made = await create_app(Settings(data_dir=folder, store="memory", local=local))
    try:
        yield made
    finally:
        async with made.router.lifespan_context(made):
            pass
        gc.set_threshold(*before)  # the app changes it


async def test_page_is_built_as_one_application(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []
    by_itself = App.__dict__["create_app"].__func__

    def counted(*given: object, **named: object) -> object:
        made.append(by_itself(*given, **named))
        return made[-1]

    monkeypatch.setattr(App, "create_app", staticmethod(counted))
    async with built(tmp_path) as ours:
        assert made == [ours.state.page.app]


async def test_idle_queue_sleeps_and_events_are_not_summarised(tmp_path: Path) -> None:
    """Gradio would look for events every 10 ms, and summarise the last 10,000 events after each event."""
    async with built(tmp_path) as made:
        queue = made.state.queue
        looks, get_events = list[None](), queue.get_events
        queue.get_events = lambda: looks.append(None) or get_events()
        queue.active_jobs = [None]
        processing = asyncio.create_task(queue.start_processing())
        await asyncio.wait_for(queue.start_progress_updates(), 60)
        await asyncio.sleep(0.1)
        assert len(looks) == 1
        queue.close()
        await asyncio.wait_for(processing, 60)
        queue.events_recorded = 20_000
        event = {"time": 1.0, "status": "success", "process_time": 0.1, "function": "f", "session_hash": "page"}
        assert queue.compute_analytics_summary([event]) == {"functions": {}}
