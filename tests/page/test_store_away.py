"""A page whose history is on a server that goes away and comes back: nothing that was typed is lost."""

import signal
from collections.abc import Callable, Iterator

import httpx
import pytest
from playwright.sync_api import expect

from tests.conftest import App, Visit, becomes
from tests.support.http_client import marker
from tests.support.postgres_server import PASSWORD, QUOTED, PostgresServer
from tests.support.scripted_server import Running

LINE = "Nothing can be kept at the moment, so no message can be sent."


@pytest.fixture
def postgres() -> Iterator[PostgresServer]:
    server = PostgresServer()
    yield server
    server.remove()


def readiness(app: App) -> tuple[int, str]:
    answer = httpx.get(app.url + "/readyz", trust_env=False, timeout=60)
    return answer.status_code, answer.json()["reason"]


def unfinished(server: PostgresServer) -> object:
    ((count,),) = server.run_sql("SELECT count(*) FROM runs WHERE ended_at IS NULL")
    return count


def has_stored_words(server: PostgresServer) -> bool:
    ((count,),) = server.run_sql(
        "SELECT count(*) FROM run_events JOIN runs ON runs.id = run_id WHERE ended_at IS NULL AND events LIKE '%word%'"
    )
    return bool(count)


@pytest.mark.gate("A message is not lost while the server of the history is away.")
def test_page_waits_for_its_history(
    start_app: Callable[..., App], visit: Visit, postgres: PostgresServer, model_server: Running
) -> None:
    app = start_app("[history]\nhousekeeping_minutes = 0.02", SWITCHBOARD_STORE=postgres.url())
    assert readiness(app) == (503, "The history store does not answer.")
    ann = visit(app.url)
    line = ann.page.locator("#notice")
    expect(line).to_contain_text(LINE)
    ann.say("say kept in the composer")
    expect(ann.hint).to_contain_text(f"the history database postgres at 127.0.0.1:{postgres.port} cannot be reached")
    expect(ann.box).to_have_value("say kept in the composer")
    assert ann.page.request.get(app.url + "/conversations").status == 503
    ann.shot("store-away")
    if ann.pictures:
        bob = visit(app.url, phone=True, dark=True, locale="de")
        expect(bob.page.locator("#notice p.failed")).to_be_visible()
        bob.shot("store-away-phone")

    postgres.start()
    expect(line).not_to_contain_text(LINE)
    becomes((200, ""), lambda: readiness(app))
    ann.ask("say kept in the composer")
    expect(ann.mine).to_have_count(1)

    postgres.stop()
    ann.say("say the second message")
    expect(line).to_contain_text(LINE)
    expect(ann.box).to_have_value("say the second message")
    expect(ann.mine).to_have_count(1)
    postgres.start()
    expect(line).not_to_contain_text(LINE)
    ann.ask("say the second message")

    # The server of the page is killed in the middle of an answer, and starts again before its database does.
    held = marker()
    ann.say(f"!tokens 100 hold 40 {held}")
    becomes(True, lambda: has_stored_words(postgres))  # without any, there is nothing to go on with
    app.stop(signal.SIGKILL)
    model_server.release(held)
    postgres.stop(signal.SIGQUIT)
    app.start()
    postgres.start()
    becomes(0, lambda: unfinished(postgres))
    ann.open(app.url)
    expect(ann.mine).to_have_count(3)
    go_on = ann.chat.get_by_role("button", name="Continue", exact=True)

    def has_the_rest() -> bool:
        if go_on.is_visible():  # the answer was ended as lost before a page could ask for its rest
            go_on.click()
        return "word99" in ann.chat.inner_text()

    becomes(True, has_the_rest)
    expect(ann.box).to_have_value("")

    for secret in (PASSWORD, QUOTED):
        assert secret not in app.log
    assert "housekeeping failed" not in app.log
    assert "housekeeping waits for the next round: Nothing can be kept at the moment" in app.log
