"""Searches in the web that a provider makes for its model: asked for, shown, cited, and sent back to it alone."""

from pathlib import Path
from typing import Any

import pytest
from pydantic_ai.messages import ModelResponse, NativeToolCallPart, NativeToolReturnPart, TextPart

from agent import Agent, Endpoint, connect, tool
from agent.errors import Limited
from agent.history import Conversation, Entry
from agent.history.codec import dump_entries, load_entries
from agent.messages.adapt import adapt
from agent.models.catalog import load_catalog
from agent.rendering.steps import call_title
from agent.responses import BubbleMarker, Response, finalize, pieces_of
from agent.result import RunResult
from agent.runtime.model_request import MOST_SEARCHES
from agent.settings import PublicSettings
from agent.web.chat.choices import Choices
from agent.web.chat.rate_limit import RateLimiter
from agent.web.chat.visitor import Visitor
from tests.support import dialects
from tests.support.asgi_requests import running_app
from tests.support.clocks import Clock
from tests.support.dialect_server import Playing, Reply
from tests.support.replies import anthropic_messages as messages
from tests.support.replies import google_generate_content as generate
from tests.support.replies import openai_responses as responses

URL, TITLE = "https://example.org/rain", "Rain"
running_server, server = dialects.running_server, dialects.server


def openai() -> Reply:
    item = {"id": "ws_1", "type": "web_search_call", "status": "in_progress", "action": {"type": "search", "query": ""}}
    found = {"type": "search", "query": "rain", "sources": [{"type": "url", "url": URL}]}
    at = {"item_id": "ws_1", "output_index": 1}
    search = [
        responses.event("response.output_item.added", output_index=1, item=item),
        *(responses.event(f"response.web_search_call.{name}", **at) for name in ("in_progress", "searching")),
        responses.event("response.web_search_call.completed", **at),
        responses.event(
            "response.output_item.done", output_index=1, item={**item, "status": "completed", "action": found}
        ),
    ]
    text = responses.text("It rains", " (example).", index=2)
    cited = responses.url_citation("It rains (example).", "(example)", URL, TITLE)
    where = {"item_id": "msg_1", "output_index": 2, "content_index": 0, "annotation_index": 0}
    added = responses.event("response.output_text.annotation.added", **where, annotation=cited)
    done = next(n for n, one in enumerate(text) if one["type"] == "response.output_text.done")
    thought = responses.reasoning("Look it up.")
    return responses.reply(
        responses.created(), thought, search, text[:done], [added], text[done:], responses.completed()
    )


def anthropic(**content: Any) -> Reply:
    found = {"type": "web_search_result", "url": URL, "title": TITLE, "encrypted_content": "Eq4C", "page_age": None}
    result = content.get("result", [found])
    location = {"type": "web_search_result_location", "url": URL, "title": TITLE, "cited_text": "It rains."}
    cited = messages.cited(3, "It rains.", {**location, "encrypted_index": "Eo8B"})
    asked = [
        messages.opens(1, type="server_tool_use", id="srvtoolu_1", name="web_search", input={}),
        *(messages.delta(1, type="input_json_delta", partial_json=one) for one in ('{"query": ', '"rain"}')),
        messages.closes(1),
        messages.opens(2, type="web_search_tool_result", tool_use_id="srvtoolu_1", content=result),
        messages.closes(2),
    ]
    first = messages.text(0, "I look it up.")
    return messages.reply(messages.begin(), first, asked, cited, messages.ends("end_turn"))


def google(*queries: str) -> Reply:
    last = generate.end()
    last["candidates"][0]["groundingMetadata"] = {
        "webSearchQueries": [*(queries or ["rain"])],
        "groundingChunks": [{"web": {"uri": URL, "title": TITLE}}],
        "groundingSupports": [
            {"segment": {"startIndex": 0, "endIndex": 9, "text": "It rains."}, "groundingChunkIndices": [0]}
        ],
    }
    return generate.reply(generate.chunk(generate.text("It rains.")), last)


def searches_again() -> Reply:
    """Return an answer of Anthropic with two searches, which calls a tool."""
    blocks = [
        [
            messages.opens(at, type="server_tool_use", id=f"srvtoolu_{at}", name="web_search", input={}),
            messages.closes(at),
            messages.opens(at + 1, type="web_search_tool_result", tool_use_id=f"srvtoolu_{at}", content=[]),
            messages.closes(at + 1),
        ]
        for at in (0, 2)
    ]
    called = messages.call(4, "toolu_1", "{}", name="look")
    return messages.reply(messages.begin(), *blocks, called, messages.ends("tool_use"))


CASES = {
    "openai": ("openai:gpt-6-luna", "/v1", openai, {"type": "web_search"}),
    "anthropic": ("anthropic:claude-sonnet-5-5", "", anthropic, {"name": "web_search"}),
    "google": ("google:gemini-3.8-flash", "", google, {"googleSearch": {}}),
    "xai": ("xai:grok-4.6", "/v1", openai, {"type": "web_search"}),
}


async def ask(server: Playing, case: str, reply: Reply, *, wanted: bool = True) -> tuple[RunResult, list[Response]]:
    model, path, _, _ = CASES[case]
    server.play(reply)
    async with Agent(connect(load_catalog().find(model), Endpoint(server.url + path, "a-key"))) as agent:
        run = agent.with_search(wanted).run("Does it rain?")
        said = [response async for response in run]
        return (await run.finished()).checked(), said


@pytest.mark.parametrize("case", CASES)
async def test_search_of_a_provider_is_a_step_with_sources(server: Playing, case: str) -> None:
    _, _, reply, tool = CASES[case]
    result, said = await ask(server, case, reply())
    [offered] = server.requests[0].json["tools"]
    assert tool.items() <= offered.items()
    [call] = [one.content for one in said if one.type == "tool_call"]
    [found] = [one.content for one in said if one.type == "tool_call_result"]
    assert (call["name"], call["arguments"], call["id"]) == ("web_search", {"query": "rain"}, found["id"])
    assert not found["is_error"]
    assert "Eq4C" not in found["content"]
    shown = "Search the web: rain" if case == "google" else "Searched the web for “rain”: 1 result"
    assert str(call_title(call["name"], call["arguments"], found["content"])) == shown
    [citation] = result.citations
    assert [one.url for one in citation.sources] == [URL]  # pyright: ignore[reportAttributeAccessIssue]
    answer = result.context.messages[-1]
    mark, live = BubbleMarker(), [(one.type, one.content) for one in said]
    again = [
        mark(piece)
        for piece in pieces_of(load_entries(dump_entries([Entry(parent_id=None, message=answer)]))[0].message)
    ]
    assert bubbles(live) == bubbles([(one.type, one.content) for one in again])


def bubbles(said: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Return the responses with the texts of one bubble joined."""
    out: list[tuple[str, Any]] = []
    for kind, content in said:
        if out and out[-1][0] == kind and isinstance(content, str):
            out[-1] = kind, out[-1][1] + content
        else:
            out.append((kind, content))
    return out


@pytest.mark.parametrize("case", CASES)
async def test_nothing_is_searched_unasked(server: Playing, case: str) -> None:
    await ask(server, case, CASES[case][2](), wanted=False)
    assert not server.requests[0].json.get("tools")


async def test_failed_search_of_a_provider_says_so(server: Playing) -> None:
    fault = {"type": "web_search_tool_result_error", "error_code": "max_uses_exceeded"}
    _, said = await ask(server, "anthropic", anthropic(result=fault))
    [found] = [one.content for one in said if one.type == "tool_call_result"]
    assert (found["content"], found["is_error"]) == ("The search failed: max_uses_exceeded.", True)


async def test_only_its_provider_gets_a_search_back(server: Playing) -> None:
    result, _ = await ask(server, "anthropic", anthropic())
    catalog = load_catalog()
    own, other = (adapt(result.context.messages, catalog.find(CASES[one][0])) for one in ("anthropic", "openai"))
    kinds = [{type(part) for part in one.messages[-1].parts} for one in (own, other)]
    assert {NativeToolCallPart, NativeToolReturnPart} <= kinds[0]
    assert kinds[1] == {TextPart}


@pytest.mark.parametrize(
    ("case", "second"),
    [("openai", responses.answer("Yes.")), ("anthropic", messages.answer("Yes.")), ("google", generate.HI)],
)
async def test_chat_goes_on_after_a_search(server: Playing, case: str, second: Reply) -> None:
    model, path, reply, _ = CASES[case]
    server.play(reply(), second, second)
    async with Agent(connect(load_catalog().find(model), Endpoint(server.url + path, "a-key"))) as agent:
        first = (await agent.with_search(True).ask("Does it rain?")).checked()
        for wanted in (True, False):  # the visitor can turn it off
            assert (await agent.with_search(wanted).ask("Sure?", context=first.context)).checked().text
    assert all("It rains" in str(request.json) for request in server.requests[1:])


@pytest.mark.parametrize("state", ["complete", "interrupted"])
def test_search_without_its_result_is_not_kept(state: Any) -> None:
    search = NativeToolCallPart("web_search", {"query": "rain"}, "1", provider_name="anthropic")
    assert finalize(ModelResponse([TextPart("Hm."), search]), state=state).parts == [TextPart("Hm.")]


def counting(limiter: RateLimiter, owner: str = "ann") -> Any:
    return lambda: limiter.reserve_search(Visitor(owner=owner, address="5.6.7.8"))


@pytest.mark.parametrize("case", CASES)
async def test_each_search_of_a_provider_counts(server: Playing, case: str) -> None:
    """A request that may search is refused before it is made. Only Anthropic takes a limit for one request."""
    model, path, reply, _ = CASES[case]
    count = counting(RateLimiter(PublicSettings(messages=2), Clock()))
    server.play(*[reply()] * 3)
    async with Agent(connect(load_catalog().find(model), Endpoint(server.url + path, "a-key"))) as agent:
        counted = agent.with_search(True, count)
        for _ in range(2):
            (await counted.ask("Does it rain?")).checked()
        with pytest.raises(Limited, match="Limit: 2 searches and pages a minute"):
            (await counted.ask("Does it rain?")).checked()
        (await agent.with_search(False, count).ask("Does it rain?")).checked()
    assert [bool(request.json.get("tools")) for request in server.requests] == [True, True, False]
    most = [request.json["tools"][0].get("max_uses") for request in server.requests[:2]]
    assert most == [MOST_SEARCHES if case == "anthropic" else None] * 2


async def test_answer_that_has_searched_enough_goes_on(server: Playing) -> None:
    """Both searches of one request count. The next request of the run gets its tools, and no search."""

    @tool
    def look() -> str:
        """Look out of the window."""
        return "It rains."

    limiter = RateLimiter(PublicSettings(messages=2), Clock())
    server.play(searches_again(), messages.answer("Yes."))
    connection = connect(load_catalog().find(CASES["anthropic"][0]), Endpoint(server.url, "a-key"))
    async with Agent(connection, tools=[look]) as agent:
        result = (await agent.with_search(True, counting(limiter)).ask("Does it rain?")).checked()
    assert result.text == "Yes."
    offered = [{one["name"] for one in request.json["tools"]} for request in server.requests]
    assert offered == [{"look", "web_search"}, {"look"}]
    with pytest.raises(Limited):
        counting(limiter)()


@pytest.mark.parametrize("queries", [("rain", "snow"), ("rain", "snow", "rain", " ")])
async def test_each_query_that_google_reports_counts(server: Playing, queries: tuple[str, ...]) -> None:
    """Google tells all searches of an answer as one call. Queries that are repeated or empty do not count."""
    model, path, _, _ = CASES["google"]
    count = counting(RateLimiter(PublicSettings(messages=3), Clock()))
    server.play(*[google(*queries)] * 3)
    async with Agent(connect(load_catalog().find(model), Endpoint(server.url + path, "a-key"))) as agent:
        counted = agent.with_search(True, count)
        for _ in range(2):
            (await counted.ask("Does it rain?")).checked()
        with pytest.raises(Limited):
            (await counted.ask("Does it rain?")).checked()
    assert len(server.requests) == 2


@pytest.mark.parametrize("is_public", [True, False])
async def test_page_counts_the_searches_of_a_provider(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_public: bool
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "a-key")
    model, visitor = CASES["anthropic"][0], Visitor(owner="ann", address="5.6.7.8")
    public = PublicSettings(search=True, messages=1, models=(model,)) if is_public else None
    async with running_app(tmp_path, search="own", public=public) as app:
        runs, choices = app.state.conversations.runs, Choices(model=model, web=True)
        async with runs.permit(visitor, choices, None) as permit:
            setup = await runs.set_up(Conversation(owner="ann", title="Rain"), choices, permit, ["Does it rain?"])
    assert setup.agent.has_search
    count = setup.agent.count_search
    assert (count is not None) is is_public
    if count is not None:
        with count(), pytest.raises(Limited):
            count()
