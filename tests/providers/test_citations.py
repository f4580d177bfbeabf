"""Citations of the hosted dialects: they stay with the text that they are about, in the result and in every store."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from pydantic_ai.messages import (
    BinaryContent,
    Citation,
    ContentCitationAnchor,
    ModelResponse,
    TextPart,
    ThinkingPart,
    WebCitationSource,
)

from agent import Agent, Context, Endpoint, connect
from agent.history import Entry
from agent.history.codec import dump_entries, load_entries
from agent.models.catalog import load_catalog
from agent.responses import finalize
from agent.result import RunResult
from agent.transfer.imported import FileLinks
from agent.transfer.portable import renewed
from tests.support import dialects
from tests.support.dialect_server import Playing, Reply
from tests.support.documents import pdf
from tests.support.replies import anthropic_messages as messages
from tests.support.replies import google_generate_content as generate
from tests.support.replies import openai_responses as responses

URL, TITLE = "https://example.org/rain", "Rain"
LINK = f"[example.org]({URL})"
running_server, server = dialects.running_server, dialects.server


def link(text: str, url: str = URL, at: int | None = None) -> dict[str, Any]:
    start = text.index(LINK) if at is None else at
    where = {"start_index": start, "end_index": start + len(LINK)}
    return {"type": "url_citation", "url": url, "title": TITLE, **where}


def anthropic() -> Reply:
    found = {"type": "web_search_result_location", "url": URL, "title": TITLE, "cited_text": "It rained."}
    cited = messages.delta(1, type="citations_delta", citation={**found, "encrypted_index": "Eo8B"})
    opened, *words, closed = messages.text(1, "it rained.")
    return messages.reply(
        messages.begin(), messages.text(0, "Yes: "), [opened, cited, *words, closed], messages.ends("end_turn")
    )


def google(text: str, cited: str) -> Reply:
    last = generate.end()
    start = len(text[: text.index(cited)].encode())
    last["candidates"][0]["groundingMetadata"] = {
        "groundingChunks": [{"web": {"uri": URL, "title": TITLE}}],
        "groundingSupports": [
            {
                "segment": {"startIndex": start, "endIndex": start + len(cited.encode()), "text": cited},
                "groundingChunkIndices": [0],
            }
        ],
    }
    return generate.reply(generate.chunk(generate.text(text)), last)


async def ask(server: Playing, model: str, path: str, replies: Sequence[Reply]) -> RunResult:
    server.play(*replies)
    async with Agent(connect(load_catalog().find(model), Endpoint(server.url + path, "a-key"))) as agent:
        return (await agent.ask("Did it rain?")).checked()


WET = f"Köln was wet 👋 {LINK}."
CASES = {
    "responses": ("openai:gpt-6-luna", "/v1", responses.cited(WET, link(WET)), LINK),
    "messages": ("anthropic:claude-sonnet-5-5", "", anthropic(), "it rained."),
    "generate": ("google:gemini-3.8-flash", "", google("Köln: it rained. Yes.", "it rained."), "it rained."),
}


@pytest.mark.parametrize("dialect", CASES)
async def test_citation_points_at_its_text(server: Playing, dialect: str) -> None:
    model, path, reply, about = CASES[dialect]
    result = await ask(server, model, path, [reply])
    [citation] = result.citations
    [source] = citation.sources
    assert isinstance(source, WebCitationSource)
    assert (source.url, source.title) == (URL, TITLE)
    assert citation.anchor is not None
    assert result.text[citation.anchor.start : citation.anchor.end] == about
    question, answer = (Entry(parent_id=None, message=one) for one in result.context.messages)
    entries = [question, replace(answer, parent_id=question.id)]
    imported = [*renewed(entries, FileLinks(lambda _: None))]
    for again in (load_entries(dump_entries(entries)), imported):
        kept = Context(messages=tuple(one.message for one in again))
        assert replace(result, context=kept).citations == result.citations
    assert result.dropped_citations == 0


async def test_citation_that_points_nowhere_is_counted(server: Playing) -> None:
    reply = responses.cited(WET, link(WET), link(WET, "javascript:alert(1)"), link(WET, ""))
    result = await ask(server, "openai:gpt-6-luna", "/v1", [reply])
    assert len(result.citations) == 1
    assert result.dropped_citations == 2


ABOUT = "the rent is 812 euros"
"""The words of `rent` that cite a page."""


def rent(*names: int) -> Reply:
    """Return an answer in the form of Claude, which begins a new text for each citation."""
    citations = [messages.page_citation(7, "The rent of the hall is 812 euros.", number) for number in names]
    texts = [messages.text(0, "In short, "), messages.cited(1, ABOUT, *citations), messages.text(2, " ", "a month.")]
    return messages.reply(messages.begin(), *texts, messages.ends("end_turn"))


def claude(server: Playing) -> Agent:
    return Agent(connect(load_catalog().find("anthropic:claude-sonnet-5-5"), Endpoint(server.url, "a-key")))


async def test_claude_cites_pages_of_documents(server: Playing) -> None:
    files = [BinaryContent(pdf(["Rent"]), media_type="application/pdf", identifier=name) for name in ("a.pdf", "b.pdf")]
    server.play(rent(1, 0), messages.answer("Yes."))
    async with claude(server) as agent:
        run = agent.run(["What is the rent?", *files])
        streamed = "".join([str(response.content) async for response in run])
        result = (await run.finished()).checked()
        await agent.ask("Sure?", context=result.context)
    assert streamed == result.text == f"In short, {ABOUT} a month.", "it is one text"
    [citation] = result.citations
    assert citation.anchor is not None
    assert result.text[citation.anchor.start : citation.anchor.end] == ABOUT
    assert [(one.title, one.excerpts) for one in citation.sources] == [
        (name, ["The rent of the hall is 812 euros."]) for name in ("b.pdf#page=7", "a.pdf#page=7")
    ]
    first, second = (request.json["messages"] for request in server.requests)
    documents = [block for block in first[0]["content"] if block["type"] == "document"]
    assert [block["citations"] for block in documents] == 2 * [{"enabled": True}]
    assert [block["text"] for block in second[1]["content"]] == [result.text]


@pytest.mark.parametrize("number", [1, -1], ids=["no such document", "negative"])
async def test_unknown_document_gets_no_name(server: Playing, number: int) -> None:
    file = BinaryContent(pdf(["Rent"]), media_type="application/pdf", identifier="a.pdf")
    server.play(rent(number))
    async with claude(server) as agent:
        result = (await agent.ask(["What is the rent?", file])).checked()
    assert [source.title for source in result.citations[0].sources] == ["#page=7"]


def cited(text: str, start: int, end: int) -> TextPart:
    source = WebCitationSource(url=URL)
    return TextPart(text, citations=[Citation([source], anchor=ContentCitationAnchor(start=start, end=end))])


def test_citation_moves_with_trimmed_text() -> None:
    response = ModelResponse([ThinkingPart("Hm."), cited("\n\nRain.", 2, 6)])
    kept = finalize(response, state="complete")
    part = kept.parts[-1]
    assert isinstance(part, TextPart)
    assert part.citations == cited("Rain.", 0, 4).citations
    assert finalize(kept, state="complete") == kept


@pytest.mark.parametrize("part", [cited("\nRain.", 0, 3), cited("Rain.", 2, 9)], ids=["trimmed", "past the end"])
def test_citation_of_no_text_is_dropped(part: TextPart) -> None:
    kept = finalize(ModelResponse([ThinkingPart("Hm."), part]), state="complete")
    assert kept.parts[-1] == TextPart("Rain.")
    assert kept.metadata == {"dropped_citations": 1}
