"""The log contains no visitor's messages, settings, attachments or keys, at any level."""

import logging
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import expect

from agent.web import server
from agent.web.server import LogLimit
from tests.conftest import App, Visit

MARK = "cormorant"


@pytest.mark.gate("The log contains nothing of messages.")
def test_no_message_content_at_debug(start_app: Callable[..., App], visit: Visit, tmp_path: Path) -> None:
    app = start_app(LOG_LEVEL="DEBUG")
    visitor = visit(app.url)
    visitor.open_settings()
    visitor.page.get_by_label("System prompt").fill(f"{MARK} prompt")
    visitor.close_settings()
    (tmp_path / f"{MARK}.txt").write_text(f"{MARK} file")
    visitor.attach(tmp_path / f"{MARK}.txt")
    expect(visitor.page.locator("#attached li")).to_have_count(1)
    visitor.ask(f"!text {MARK} answer")
    visitor.ask(f"!status 400 {MARK}")
    visitor.ask(f"!tool calculate {MARK}")
    cookies = {str(one.get("name")): str(one.get("value")) for one in visitor.page.context.cookies()}
    with httpx.Client(base_url=f"{app.url}/gradio_api/queue", cookies=cookies, trust_env=False, timeout=60) as http:
        events = len(http.get(f"{app.url}/config").json()["dependencies"])
        for data in ([f"{MARK} alone"], [{"text": [MARK]}, MARK, MARK], [{"text": MARK, "files": MARK}, "", {}]):
            for number in range(events + 1):  # and one that does not exist
                given = {"data": data, "fn_index": number, "session_hash": f"logs{number}"}
                if http.post("/join", json=given).status_code == 200:
                    http.get("/data", params={"session_hash": f"logs{number}"})
    log = app.log
    assert "DEBUG" in log
    found = [line[:300] for line in log.splitlines() if MARK in line]
    assert not found
    assert "an event failed with" in log, "Gradio failed on no event"


def test_repeated_failure_is_logged_once_a_minute(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, logger = [1000.0], logging.getLogger("test of few failures")
    monkeypatch.setattr(server, "monotonic", lambda: now[0])
    logger.addFilter(LogLimit())

    def fail(kind: type[Exception]) -> None:
        try:
            raise kind("oh")
        except kind:
            logger.exception("Exception in ASGI application")

    for _ in range(5):
        fail(KeyError)
    fail(ValueError)
    now[0] += 61
    fail(KeyError)
    assert [record.getMessage() for record in caplog.records] == [
        "Exception in ASGI application",
        "Exception in ASGI application",
        "Exception in ASGI application (4 more like it since the last entry)",
    ]


def test_lines_of_one_place_are_limited(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """The text does not count, because it can contain what a client sent."""
    now, logger = [1000.0], logging.getLogger("test of few lines")
    monkeypatch.setattr(server, "monotonic", lambda: now[0])
    logger.addFilter(limit := LogLimit())
    logger.setLevel(logging.INFO)

    def warn(text: str) -> None:
        logger.warning("Invalid: %s", text)

    for number in range(560):
        warn(str(number))
        logger.info("asked for")
        logger.warning(f"line {number}")
    for record in caplog.records:
        assert limit.filter(record), "the other handler stops the same entries"
    lines = [record.getMessage() for record in caplog.records]
    assert lines.count("asked for") == 560
    assert [line for line in lines if line != "asked for"] == [
        line for number in range(10) for line in (f"Invalid: {number}", f"line {number}")
    ]
    now[0] += 61
    warn("later")
    assert caplog.records[-1].getMessage() == "Invalid: later (550 more like it since the last entry)"
