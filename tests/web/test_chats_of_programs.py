"""Chats that programs store beside those of the page: no visitor reaches them, and housekeeping leaves them alone."""

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from agent import Agent, Chat, Endpoint, connect
from agent.history import PROGRAM, now
from agent.web.chat.expiry import RetentionPeriods
from tests.conftest import App
from tests.support.foreign_requests import MATRIX, filled, send_row
from tests.support.http_client import HttpVisitor, marker
from tests.support.models import QWEN3
from tests.support.scripted_server import Running

IDS = {"conversation", "shared", "entry", "owner", "marker"}
ROWS = [row for row in MATRIX if {*re.findall(r"\$(\w+)", row[3] + (row[4] or ""))} <= IDS and "$" in row[3]]


@pytest.mark.parametrize("id_", ["customer-42", uuid4().hex], ids=["word", "id like those of the page"])
def test_no_visitor_reaches_chat_of_a_program(start_app: Callable[..., App], server: Running, id_: str) -> None:
    app, word = start_app(VLLM_BASE_URL=server.base_url), marker()
    url = f"sqlite:///{app.folder}/data/history.sqlite"

    def open_chat() -> Chat:
        return Chat(Agent(connect(QWEN3, Endpoint(server.base_url))), store=url, id=id_)

    with open_chat() as chat:
        chat.say(f"!text {word}")
        kept = chat.messages
    ids = {"conversation": id_, "shared": id_, "entry": uuid4().hex, "owner": PROGRAM, "marker": word}
    assert len(ROWS) > 15
    for visitor in (HttpVisitor(app.url), HttpVisitor(app.url, None)):
        for row in ROWS:
            said = send_row(visitor, row, ids)
            assert word not in said.text.replace(filled(row[3], ids), ""), row
        said = visitor.say("!text Mine.", new=True)
        assert "Mine." in said
    with open_chat() as chat:
        assert chat.messages == kept
        assert chat.say("!text More.").text == "More."


def test_page_never_expires_chat_of_a_program() -> None:
    periods = RetentionPeriods(guest=timedelta(hours=1), visitor=timedelta(days=1))
    assert periods.until(PROGRAM, running=False) is None
    other: Any = periods.until("0" * 32, running=False)
    assert other > now()
