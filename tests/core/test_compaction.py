"""Long conversations that fit the model: what is left out of requests, that it can be undone, and what stays valid."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from threading import current_thread, main_thread
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic_ai.messages import (
    BinaryContent,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ThinkingPart,
    UserPromptPart,
)

from agent import Agent, AgentError, Chat, Compaction, Context, InputError, Limits, RunResult, tool
from agent.events import ChildEvent, StepStarted
from agent.files.kinds import DOCX, PDF, Document
from agent.files.parts import document_text
from agent.files.passages import excerpt
from agent.messages.compaction import (
    NO_PICTURE,
    Summary,
    coverable_answers,
    covered,
    estimate,
    shortened,
    summary_of,
    transcript,
    with_summary,
)
from agent.messages.openai import to_openai
from agent.messages.repair import PAGE_BYTES, count_bytes, repair
from agent.models.catalog import ModelSpec
from agent.runtime import fitting
from agent.suspension.suspended_run import Approve
from tests.support.documents import pdf, word
from tests.support.fakes import SPEC, Call, FakeConnection, Step, Words
from tests.support.media_files import random_png
from tests.support.message_rules import assert_accepted
from tests.support.strategies import conversations
from tests.tiers import examples

LONG = "word " * 300
"""A prompt of about 500 tokens."""


def said(text: str) -> Step:
    return Step([Words("output_text", [text])])


def told(messages: Sequence[ModelMessage]) -> list[str]:
    """Return the kinds of the parts of a request, with the beginnings of their texts."""
    parts = [part for message in messages for part in message.parts]
    return [f"{part.part_kind}: {str(getattr(part, 'content', ''))[:50].strip()}" for part in parts]


def brief(messages: Sequence[ModelMessage]) -> str:
    return f"{len(messages)} messages"


SHORT = Compaction(at=1400, keep=2, summarize=brief)


async def talk(agent: Agent, *prompts: Any) -> RunResult:
    context = Context()
    result = None
    for prompt in prompts:
        result = (await agent.ask(prompt, context=context)).checked()
        context = result.context
    assert result is not None
    return result


# --- what is sent -----------------------------------------------------------------------------------------------------


async def test_summary_replaces_all_but_the_newest_messages() -> None:
    connection = FakeConnection([said(f"answer {n}") for n in range(4)])
    result = await talk(Agent(connection, compaction=SHORT), *[f"{n} {LONG}" for n in range(4)])
    assert [len(sent) for sent in connection.played.sent] == [1, 3, 3, 3]
    assert told(connection.played.sent[2])[0] == "user-prompt: [Summary of the conversation so far]\n\n2 messages"
    assert len(result.context.messages) == 8, "the conversation keeps everything"
    assert result.notes == ("2 earlier answers, and what came before them, were sent as a summary.",)


async def test_model_writes_the_summary_below_the_run() -> None:
    connection = FakeConnection([said("a"), said("b"), said("They greeted."), said("c"), said("d")])
    agent = Agent(connection, system_message="Be brief.", compaction=Compaction(at=1400, keep=2))
    context = (await talk(agent, LONG, LONG)).context
    run = agent.run(LONG, context=context)
    events = [event async for event in run.events()]
    below = [one.event for one in events if isinstance(one, ChildEvent) and isinstance(one.event, StepStarted)]
    assert len(below) == 1
    transcript = told(connection.played.sent[2])
    assert transcript[0].startswith("system-prompt: You summarize the beginning")
    assert transcript[1].startswith("user-prompt: User: word word")
    assert "They greeted." in str(connection.played.sent[3][0])
    result = run.result
    assert result is not None
    later = await agent.ask("Short", context=result.context)
    assert later.text == "d"
    assert "They greeted." in str(connection.played.sent[4][0]), "a later run uses the same summary"


async def test_summary_is_asked_with_the_headers_of_the_run() -> None:
    connection = FakeConnection([said("a"), said("b"), said("They greeted."), said("c")])
    agent = Agent(connection, compaction=Compaction(at=1400, keep=2))
    context = (await talk(agent, LONG, LONG)).context
    await agent.ask(LONG, context=context, headers={"x-key": "1"}, timeout=7, max_tokens=9)
    asked = [(one.get("extra_headers"), one.get("timeout"), one.get("max_tokens")) for one in connection.played.asked]
    assert asked[2:] == [({"x-key": "1"}, 7, asked[0][2]), ({"x-key": "1"}, 7, 9)]


async def test_long_history_is_looked_at_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = set[tuple[str, bool]]()

    def watched(name: str) -> Any:
        work = getattr(fitting, name)

        def looked(*args: Any) -> Any:
            seen.add((name, current_thread() is main_thread()))
            return work(*args)

        return looked

    for name in ("summary_of", "shortened", "estimate", "coverable_answers", "covered", "has_pictures"):
        monkeypatch.setattr(fitting, name, watched(name))
    entries = [[ModelRequest([UserPromptPart("word " * 50)]), ModelResponse([TextPart("a")])] for _ in range(2_000)]
    context = Context(messages=tuple(message for turn in entries for message in turn))
    connection = FakeConnection([said("c")])
    result = await Agent(connection, compaction=SHORT).ask("Short", context=context)
    assert len(connection.played.sent[0]) == 3, result.notes
    assert {name for name, _ in seen} >= {"summary_of", "shortened", "coverable_answers", "covered", "has_pictures"}
    assert [name for name, is_loop in seen if is_loop and name != "estimate"] == []


async def test_pictures_of_old_messages_are_left_out_first() -> None:
    picture = BinaryContent(random_png(), media_type="image/png")
    connection = FakeConnection([said("a"), said("b"), said("c")], spec=replace(SPEC, image=True))
    agent = Agent(connection, compaction=Compaction(at=1200, keep=2, summarize=brief))
    result = await talk(agent, ["Look", picture], ["And", picture], "So?")
    kinds = [str(getattr(part, "content", "")) for message in connection.played.sent[2] for part in message.parts]
    assert (NO_PICTURE in kinds[0], NO_PICTURE in kinds[2]) == (True, False)
    assert "Summary" not in kinds[0]
    assert result.notes == ("The pictures of earlier messages were not sent, so that the conversation fits.",)


async def test_long_run_is_shortened_between_its_steps() -> None:
    @tool
    async def look(x: int) -> str:
        """Look."""
        return f"{x} {LONG}"

    steps = [Step([Call("look", json.dumps({"x": n}), f"c{n}")], "tool_call") for n in range(4)]
    connection = FakeConnection([*steps, said("Done.")])
    result = await Agent(connection, tools=[look], compaction=SHORT).ask("Go")
    assert (result.text, max(len(sent) for sent in connection.played.sent)) == ("Done.", 5)
    for sent in connection.played.sent:
        assert_accepted(to_openai(sent, ""))
    assert told(connection.played.sent[-1])[0].startswith("user-prompt: [Summary")


@pytest.mark.parametrize("letters", ["word ", "北京", "서울 ", "é", "👩"])
@given(data=st.data())
@settings(max_examples=examples(20))
def test_transcript_fits_in_any_script(letters: str, data: st.DataObject) -> None:
    texts = data.draw(st.lists(st.integers(0, 9_000), min_size=1, max_size=12))
    messages: list[ModelMessage] = []
    for number, length in enumerate(texts):
        part = UserPromptPart(letters * length) if number % 2 == 0 else TextPart(letters * length)
        messages.append(ModelRequest([part]) if isinstance(part, UserPromptPart) else ModelResponse([part]))
    tokens = data.draw(st.integers(600, 20_000))
    told = transcript(messages, tokens)
    assert estimate([], told) <= tokens
    assert "\ufffd" not in told


async def test_text_of_a_document_counts() -> None:
    report = BinaryContent(word(("Report", "word " * 3_000)), media_type=DOCX)
    connection = FakeConnection([said("a"), said("b")], spec=replace(SPEC, context_tokens=20_000))
    await talk(Agent(connection, compaction=Compaction(at=4_000, keep=1, summarize=brief)), ["Read", report], "So?")
    assert [len(sent) for sent in connection.played.sent] == [1, 1]
    letter = BinaryContent(b"word " * 3_000, media_type="text/plain")
    connection = FakeConnection([said("a"), said("b")], spec=replace(SPEC, context_tokens=20_000))
    await talk(Agent(connection, compaction=Compaction(at=4_000, keep=1, summarize=brief)), ["Read", letter], "So?")
    assert [len(sent) for sent in connection.played.sent] == [1, 1]


async def test_summarized_document_is_named_by_its_pages() -> None:
    lease = Document(PDF, "", ("The rent is due on Friday.", "Three months of notice. " + "word " * 900))
    read = document_text("lease.pdf", lease, excerpt(lease, "", 10**6))
    connection = FakeConnection([said("a"), said("b"), said("Three months of notice (p. 2).")])
    result = await talk(Agent(connection, compaction=SHORT), ["Read", read], LONG, "How long?")
    assert "lease" not in str(connection.played.sent[2])
    [citation] = result.citations
    assert [source.title for source in citation.sources] == ["lease.pdf#page=2"]


@pytest.mark.parametrize(("pages", "filler", "counted"), [(1, 0, 1), (40, 0, 40), (1, 3_000_000, 61)])
def test_pdf_counts_by_its_pages(pages: int, filler: int, counted: int) -> None:
    """A large one, of which the pages would take long to count, does by its size."""
    data = pdf(["Page"] * pages) + b"%" * filler
    message = ModelRequest([UserPromptPart(["Read", BinaryContent(data, media_type="application/pdf")])])
    assert count_bytes(message) == len("Read") + counted * PAGE_BYTES


async def test_failed_summary_sends_everything_and_is_told() -> None:
    def fails(_messages: Sequence[ModelMessage]) -> str:
        raise AgentError("no summary today")

    connection = FakeConnection([said("a"), said("b"), said("c")])
    agent = Agent(connection, compaction=Compaction(at=1000, keep=1, summarize=fails))
    result = await talk(agent, LONG, LONG, LONG)
    assert [len(sent) for sent in connection.played.sent] == [1, 3, 5]
    assert result.notes == ("The earlier messages could not be summarized: no summary today",)


# --- kept and undone --------------------------------------------------------------------------------------------------


async def test_dropping_the_summary_sends_everything_again() -> None:
    connection = FakeConnection([said(f"answer {n}") for n in range(6)])
    agent = Agent(connection, compaction=SHORT)
    context = (await talk(agent, LONG, LONG, LONG)).context
    assert summary_of(context.messages).text == "2 messages"
    whole = context.without_summary()
    assert summary_of(whole.messages) == Summary()
    plain = Agent(connection)
    await plain.ask("Hello", context=whole)
    await plain.ask("Hello", context=context)
    assert [len(sent) for sent in connection.played.sent[3:]] == [7, 7]


async def test_summary_survives_the_json_of_a_context() -> None:
    agent = Agent(FakeConnection([said("a"), said("b"), said("c")]), compaction=SHORT)
    context = (await talk(agent, LONG, LONG, LONG)).context
    assert summary_of(Context.from_json(context.to_json()).messages) == summary_of(context.messages) != Summary()


@pytest.mark.parametrize("store", ["memory:", "sqlite:///chats.db", "json:folder"])
def test_stores_keep_the_summary(store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    first = Agent(FakeConnection([said("a"), said("b"), said("c")]), compaction=SHORT)
    connection = FakeConnection([said("d")])
    with Chat(first, store=store, id="long") as chat:
        for _ in range(3):
            chat.say(LONG)
        with Chat(Agent(connection, compaction=SHORT), store=store, id="long") as other:
            assert other.say("Short").text == "d"
            assert len(other.messages) == 8
    assert "[Summary of the conversation so far]" in str(connection.played.sent[0][0])


async def test_suspended_run_resumes_with_its_summary() -> None:
    @tool(needs_approval=True)
    async def pay() -> str:
        """Pay."""
        return "paid"

    paying = Step([Call("pay", "{}", "c1")], "tool_call")
    connection = FakeConnection([said("a"), said("b"), paying, said("Done.")])
    agent = Agent(connection, tools=[pay], compaction=SHORT)
    context = (await talk(agent, LONG, LONG)).context
    waiting = await agent.ask(LONG, context=context)
    assert waiting.finish_reason == "suspended"
    result = await agent.resume(waiting, Approve())
    assert result.text == "Done."
    assert "[Summary" in str(connection.played.sent[3][0])
    assert_accepted(to_openai(connection.played.sent[3], ""))


# --- results of tools -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("most", [20, 200, 50_000])
async def test_cut_result_is_told_to_model_and_caller(most: int) -> None:
    @tool
    async def look() -> str:
        """Look."""
        return "x" * 60_000

    connection = FakeConnection([Step([Call("look", "{}", "c1")], "tool_call"), said("Done.")])
    result = await Agent(connection, tools=[look], limits=Limits(tool_characters=most)).ask("Go")
    [returned] = connection.played.sent[1][-1].parts
    content = str(getattr(returned, "content", ""))
    assert "The result has 60000 characters. Only its beginning is here" in content[-100:]
    assert len(content) <= max(most, 100)
    told = f"The result of look was cut: it had 60,000 characters, and a result can have {most:,}."
    assert result.notes == (told,)
    assert result.note.omitted == result.notes[0]


async def test_whole_result_is_told_to_nobody() -> None:
    @tool
    async def look() -> str:
        """Look."""
        return "x" * 60_000

    connection = FakeConnection([Step([Call("look", "{}", "c1")], "tool_call"), said("Done.")])
    result = await Agent(connection, tools=[look], limits=Limits(tool_characters=60_000)).ask("Go")
    content = str(getattr(connection.played.sent[1][-1].parts[0], "content", ""))
    assert (len(content), result.notes) == (60_000, ())


# --- laws -------------------------------------------------------------------------------------------------------------


@settings(max_examples=examples(200))
@given(conversations(), st.integers(1, 8))
def test_calls_keep_their_results_at_any_cut(messages: list[ModelMessage], keep: int) -> None:
    messages = repair(messages)
    answers = coverable_answers(messages, keep)
    summary = Summary(answers=answers, text="So far." if answers else "")
    sent = shortened(messages, summary)
    assert repair(sent) == sent, "a call or a result is alone"
    assert not answers or isinstance(sent[0], ModelRequest)
    assert len(sent) >= min(keep, len(messages))
    kept = [one for one in sent if isinstance(one, ModelResponse)]
    own = [one for one in messages if isinstance(one, ModelResponse)]
    assert all(one is other for one, other in zip(kept, own[answers:], strict=True)), "an answer was changed"
    assert sum(isinstance(one, ModelResponse) for one in covered(messages, Summary(), answers)) == answers


@settings(max_examples=examples(100))
@given(conversations(), st.integers(1, 4))
def test_later_turns_send_the_same_beginning(messages: list[ModelMessage], keep: int) -> None:
    messages = repair(messages)
    if not (answers := coverable_answers(messages, keep)):
        return
    summary = Summary(answers=answers, text="So far.")
    before = shortened(messages, summary)
    more = [*messages, ModelResponse(parts=[]), ModelRequest(parts=[UserPromptPart("More")])]
    assert shortened(more, summary)[: len(before)] == before


def test_signed_reasoning_of_kept_answers_is_untouched() -> None:
    signed = ModelResponse(parts=[ThinkingPart("Hm", signature="s", provider_name="anthropic")])
    messages: list[ModelMessage] = []
    for n in range(4):
        messages += [ModelRequest(parts=[UserPromptPart(f"{n}")]), replace(signed)]
    sent = shortened(messages, Summary(answers=2, text="So far."))
    assert [one for one in sent if isinstance(one, ModelResponse)] == [messages[5], messages[7]]
    assert sent[1] is messages[5]


def test_summary_leaves_other_metadata_alone() -> None:
    response = ModelResponse(parts=[], metadata={"other": 1})
    marked = with_summary(response, Summary(answers=1, text="x"))
    assert summary_of([marked]) == Summary(answers=1, text="x")
    assert with_summary(marked, None) == response


# --- mistakes ---------------------------------------------------------------------------------------------------------

WRONG: dict[str, Any] = {
    "at is a part of the context such as 0.85, or a number of tokens, not 0": {"at": 0},
    "keep is the number of messages that stay as they are, 1 or more, not 0": {"keep": 0},
    "summarize is a function of messages that returns a text, not 'brief'": {"summarize": "brief"},
}


@pytest.mark.parametrize("sentence", WRONG)
def test_wrong_compaction_is_refused(sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        Compaction(**WRONG[sentence])
    assert str(caught.value) == sentence


def test_agent_wants_a_compaction() -> None:
    with pytest.raises(InputError, match=r"compaction takes a Compaction such as Compaction\(at=0.85, keep=6\)"):
        Agent(FakeConnection([]), compaction=0.85)  # pyright: ignore[reportArgumentType]


def test_part_of_the_context_or_tokens() -> None:
    spec = ModelSpec(id="x:y", name="y", label="Y", provider="x", context_tokens=1000)
    assert [Compaction(at=at).tokens(spec.context_tokens) for at in (0.5, 1, 5000)] == [500, 1000, 5000]
