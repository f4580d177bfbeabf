"""Guards of `agent/web/gradio_compat`: each fails with a clear message if Gradio has changed or a workaround can go.

`test_gradio_names.py` checks the names, `test_lazy.py` guards the import hook, and `test_event_queue.py` shows what the
bounded queue does.
"""

import asyncio
import importlib
import inspect
import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import module_from_spec
from types import ModuleType
from typing import Any, cast

import gradio as gr
import orjson
import pytest
from fastapi import FastAPI
from gradio import utils
from gradio.queueing import Event, Queue
from gradio.routes import App
from gradio.server_messages import CloseStreamMessage
from gradio.tunneling import Tunnel

from agent.web.gradio_compat.application import (
    PAGE_QUERY,
    STATIC_FILES,
    end_heartbeats,
    log_in_visitors,
    mount,
    prepare_queue,
    take_load_event,
    without_applications,
)
from agent.web.gradio_compat.event_queue import CLOSING

QUEUE_ATTRIBUTES = (
    *("ANALYTICS_MAX_EVENTS", "ANAYLTICS_CACHE_FREQUENCY", "_asyncio_tasks", "active_jobs", "event_ids_to_events"),
    *("event_queue_per_concurrency_id", "max_thread_count", "pending_event_ids_session"),
    *("pending_messages_per_session", "stopped"),
)


def fresh(name: str) -> ModuleType:
    """Import a second copy of a module of Gradio, without our changes."""
    spec = importlib.import_module(name).__spec__
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@contextmanager
def counted_applications(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[object]]:
    """Yield a list of the applications that Gradio creates inside the block."""
    made: list[object] = []
    by_itself = App.__dict__["create_app"].__func__

    def create(*given: object, **named: object) -> object:
        made.append(by_itself(*given, **named))
        return made[-1]

    with monkeypatch.context() as patch:
        patch.setattr(App, "create_app", staticmethod(create))
        yield made


@pytest.fixture
async def page() -> gr.Blocks:
    with without_applications(), gr.Blocks(analytics_enabled=False) as made:
        gr.Textbox()
        gr.HTML()
    return made


@pytest.fixture
async def plain_queue(page: gr.Blocks) -> Queue:
    """Gradio's own queue."""
    return Queue(True, 4, 1, None, page)


async def test_queue_has_the_attributes_in_use(plain_queue: Queue, page: gr.Blocks) -> None:
    missing = [name for name in QUEUE_ATTRIBUTES if not hasattr(plain_queue, name)]
    assert not missing, f"Gradio's queue has no {missing} any more: adapt agent/web/gradio_compat/event_queue.py."
    assert isinstance(vars(page).get("_queue"), Queue), "Gradio keeps a page's queue elsewhere: adapt `bound_queue`."
    assert {"_id", "alive"} <= vars(event(page)).keys(), "Gradio's events have changed: adapt event_queue.py."


def event(page: gr.Blocks) -> Event:
    fn = next(iter(page.fns.values()), None) or cast(Any, type("Fn", (), {"concurrency_id": "one"}))
    return Event("page", fn, cast(Any, None), None)


async def test_gradio_builds_too_many_applications(monkeypatch: pytest.MonkeyPatch) -> None:
    with counted_applications(monkeypatch) as made:
        with gr.Blocks(analytics_enabled=False) as page:
            gr.Textbox()
        page.queue()
    assert len(made) > 1, "Gradio builds a page as one application: `without_applications` can go."


async def test_queue_polls_and_summarises_too_often(plain_queue: Queue) -> None:
    for loop in (Queue.start_processing, Queue.start_progress_updates):
        polls = "asyncio.sleep" in inspect.getsource(loop)
        assert polls, f"Gradio's queue does not poll any more: look if `BoundedQueue.{loop.__name__}` can go."
    recorded = plain_queue.ANAYLTICS_CACHE_FREQUENCY < 1000 and plain_queue.ANALYTICS_MAX_EVENTS > 1
    assert recorded, "Gradio summarises events rarely: `prepare_queue` need not prevent it."


async def test_queue_ends_after_failure(plain_queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise KeyError("a session that is gone")

    monkeypatch.setattr(plain_queue, "get_events", fail)
    monkeypatch.setattr(Queue, "__len__", lambda _: 1)
    plain_queue.active_jobs = [None]
    with pytest.raises(KeyError):
        await asyncio.wait_for(plain_queue.start_processing(), 60)
    assert plain_queue.stopped, "Gradio's queue survives a failure: `BoundedQueue.start_processing` can go."


def test_unread_messages_are_unlimited() -> None:
    assert "AsyncQueue()" in inspect.getsource(Queue.push), (
        "Gradio no longer keeps any number of unread messages: look if `UnreadMessages` can go."
    )


async def test_session_keeps_values(page: gr.Blocks) -> None:
    state, key = fresh("gradio.state_holder").SessionState(page), next(iter(page.blocks))
    state._update_value_in_config(key, "a typed key")
    assert "a typed key" in str(state.config_values), "Gradio keeps no values: `release_memory` need not prevent it."


async def test_mounted_page_ends_its_heartbeats(page: gr.Blocks) -> None:
    app = FastAPI()
    mount(app, page, prepare_queue(page, 4), root_path="", max_file_size=1000)
    stop: Any = getattr(cast(Any, page).app, "stop_event", None)
    assert stop is not None, "Gradio ends heartbeats in another way: adapt `end_heartbeats`."
    assert not stop.is_set()
    end_heartbeats(page)
    assert stop.is_set()


async def test_page_depends_on_two_fields_of_its_query(page: gr.Blocks) -> None:
    """`PAGE_QUERY` has the fields for which no kept page is sent."""
    mount(FastAPI(), page, prepare_queue(page, 4), root_path="", max_file_size=1000)
    fields = [
        field.name
        for route in cast(Any, page).app.routes
        if getattr(route, "path", None) == "/"
        for field in cast(Any, route).dependant.query_params
    ]
    assert set(fields) == set(PAGE_QUERY)


def test_ended_tunnel_prints(capsys: pytest.CaptureFixture[str]) -> None:
    parameters = list(inspect.signature(importlib.import_module("gradio.networking").setup_tunnel).parameters)
    expected = ["local_host", "local_port", "share_token", "share_server_address", "share_server_tls_certificate"]
    assert parameters == expected, "Gradio opens tunnels in another way: adapt agent/web/gradio_compat/application.py."
    tunnel = Tunnel("relay", 1, "127.0.0.1", 2, "token", None)
    tunnel.proc = cast(Any, type("Process", (), {"terminate": lambda _: None})())
    tunnel.kill()
    assert capsys.readouterr().out, "Gradio ends a tunnel silently: `close_tunnels` can call `Tunnel.kill`."


def test_gradio_must_be_told_of_its_space(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPACE_ID", "ann/page")
    monkeypatch.setenv("SYSTEM", "")
    assert utils.get_space() is None, "Gradio recognises a Docker Space: `log_in_visitors` can go."
    log_in_visitors()
    assert utils.get_space() == "ann/page", "Gradio recognises a Space in another way: adapt `log_in_visitors`."


async def test_gradio_lists_the_login_event() -> None:
    for ours in (False, True):
        with without_applications(), gr.Blocks(analytics_enabled=False) as page:
            button = gr.LoginButton(icon=None)
            label = take_load_event(button) if ours else None
        listed = [event.api_name for event in page.fns.values() if event.fn and event.api_visibility == "public"]
        assert bool(listed) is not ours, "Gradio does not list the login event: `take_load_event` can go."
        assert callable(label) is ours


def test_stream_says_that_it_closes() -> None:
    sent = orjson.dumps(CloseStreamMessage().model_dump())
    assert CLOSING in sent, f"Gradio closes streams with {sent!r}: adapt agent/web/gradio_compat/event_queue.py."


@pytest.mark.parametrize(
    ("pattern", "part"),
    [
        (rb"navigator\.language", "its language"),
        (rb"upload_id=.{0,200}this\.fetch\(|this\.fetch\(.{0,40}method:`POST`", "the progress of uploads"),
        (rb"/run\$\{", "the address of an event"),
        (rb"matchMedia\?\.\(`\(prefers-color-scheme: dark\)`\)", "its colours"),
    ],
)
def test_gradio_scripts_need_the_module(pattern: bytes, part: str) -> None:
    """The module `gradio.js` gives Gradio's scripts what they ask the browser for."""
    scripts = [path.read_bytes() for path in STATIC_FILES.glob("[Iir][nu]*.js")]
    assert any(re.search(pattern, one) for one in scripts), f"Gradio finds {part} in another way: adapt gradio.js."
