"""Turns as bubbles of blocks: live as after a reload, in the order of the responses, at a constant cost, and safe."""

import asyncio
import json
import re
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import replace
from itertools import accumulate, pairwise
from operator import is_
from typing import Any, cast

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic_ai.messages import (
    Citation,
    ContentCitationAnchor,
    DocumentCitationSource,
    DocumentUrl,
    ImageUrl,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
    WebCitationSource,
)

from agent import Agent
from agent.history import Entry, Note, Timings
from agent.i18n.translator import ENGLISH, LANGUAGES, Translator
from agent.rendering import markdown
from agent.rendering.bubbles import Turn as ShownTurn
from agent.rendering.bubbles import edits
from agent.responses import BubbleMarker, Piece, Response
from agent.web.chat.answers import LiveRuns
from agent.web.chat.transcript import NO_ENDING, ConversationTurn, fold_responses, relabel_last, to_turns
from agent.web.chat.turns import TurnRenderer, caption_of, render_turn
from agent.web.chat.views import RunningTurn
from agent.web.run_event_routes import TurnFrames
from tests.support.fakes import FakeConnection, Step, Words
from tests.support.history_stores import prompt
from tests.support.scripted_runs import chunks
from tests.support.turn_edits import applied, check_turn
from tests.support.views import unstored
from tests.tiers import examples

USER = Entry(parent_id=None, message=prompt("Add."), note=Note(run_id="r"))
LOST = NO_ENDING.detail
END = Note(run_id="r", ended="stop", timings=Timings(first_token=0.1, total=5.0))


def call(id_: str) -> Piece:
    return "tool_call", {"id": id_, "name": "add", "arguments": {"a": id_}}


def result(id_: str, *, is_error: bool) -> Piece:
    return "tool_call_result", {"id": id_, "name": "add", "content": f"<b>{id_}", "is_error": is_error}


TEXTS = st.tuples(st.sampled_from(["output_text", "reasoning"]), chunks()).map(
    lambda one: [(one[0], text) for text in one[1] if text]
)
CALLS = st.permutations([("1", True), ("2", False), ("1", False)]).map(
    lambda some: [call(id_) for id_, _ in some[:2]] + [result(id_, is_error=failed) for id_, failed in some[1::-1]]
)
PIECES = st.lists(TEXTS | CALLS, max_size=5).map(
    lambda many: cast("list[Piece]", [one for some in many for one in some])
)
DEFINED: list[Piece] = [("output_text", "[a]: https://a.example\n\nSee [a]"), ("output_text", ".")]


def said(pieces: Sequence[Piece]) -> list[Response]:
    return [*map(BubbleMarker(), pieces)]


@given(pieces=PIECES, sizes=st.lists(st.integers(1, 4), max_size=8), is_relabelled=st.booleans())
@example(pieces=DEFINED, sizes=[1], is_relabelled=False)
@settings(max_examples=examples(120))
def test_grown_turn_is_the_stored_one(pieces: list[Piece], sizes: list[int], is_relabelled: bool) -> None:
    """And the edits of each step change one state into the next."""
    renderer, shown, bubbles, now = TurnRenderer(), None, list[Any](), 0.0
    responses = said(pieces)
    bounds = sorted({*(min(one, len(responses)) for one in accumulate(sizes)), len(responses)})
    turn = ConversationTurn(user=USER, bubbles=bubbles, note=None)
    for first, after in zip([0, *bounds], bounds, strict=False):
        fold_responses(bubbles, responses[first:after], [now] * (after - first))
        now += 1
        new = renderer.render(replace(turn, watched_since=now, quiet_since=now), "In line")
        shown = applied(shown, json.loads(json.dumps(edits(shown or cast(Any, {"bubbles": []}), new))))
        assert shown == json.loads(json.dumps(new))
    if is_relabelled and bubbles and bubbles[-1].first.type == "output_text":
        relabel_last(bubbles, "reasoning")
        renderer.render(replace(turn, watched_since=now))
    ended = replace(turn, note=END, reasoning=(1.0, 2.0))
    assert renderer.render(ended) == render_turn(ended)


@given(pieces=PIECES)
@settings(max_examples=examples(120))
def test_bubble_begins_where_the_type_is_switched(pieces: list[Piece]) -> None:
    """Results alone are moved: each is behind its call."""
    responses, bubbles = said(pieces), list[Any]()
    fold_responses(bubbles, responses)
    begun = [one.type for one in responses if one.is_type_switched]
    texts = [bubble.text for bubble in bubbles]
    kinds = [kind for kind, text in zip(begun, texts, strict=True) if kind != "output_text" or text.strip()]
    shown = render_turn(ConversationTurn(user=USER, bubbles=bubbles, note=END))["bubbles"]
    mine = [one["kind"] for one in shown if one["kind"] not in ("user", "steps")]
    if not any(kind == "output_text" for kind in kinds[-1:]):
        mine = [kind for kind in mine if kind != "error"]  # of the empty answer
    assert sorted(mine) == sorted(kinds)
    assert [one for one in mine if one != "tool_call_result"] == [one for one in kinds if one != "tool_call_result"]
    for before, one in pairwise(shown):
        assert not one.get("inside") or before["kind"] in ("tool_call", "tool_call_result")


def entries_of(*messages: ModelMessage, ended: str = "stop", detail: str = "") -> list[Entry]:
    entries = [Entry(parent_id=None, message=one, note=Note(run_id="r")) for one in (prompt("Add."), *messages)]
    entries[-1] = replace(entries[-1], note=replace(END, ended=cast(Any, ended), detail=detail, model="m"))
    return entries


def shown_of(*messages: ModelMessage, ended: str = "stop", language: str = "en") -> ShownTurn:
    return render_turn(to_turns(entries_of(*messages, ended=ended))[-1], Translator(language))


def kinds(turn: ShownTurn) -> list[str]:
    return [f"{one['kind']} {one['state']} {one.get('title', '')}".strip() for one in turn["bubbles"]]


TWO = ModelResponse([ThinkingPart("Hm."), ToolCallPart("add", {}, "1"), ToolCallPart("set_timer", {}, "2")])


def test_steps_are_folded_and_results_are_inside() -> None:
    failed = ToolReturnPart("set_timer", "ValueError: No.", "2", outcome="failed")
    results = ModelRequest([ToolReturnPart("add", "3", "1"), failed])
    turn = shown_of(TWO, results, ModelResponse([TextPart("Three.")]))
    assert kinds(turn) == [
        *("user done", "steps failed Thought · 2 tools · 1 failed", "reasoning done Reasoning", "tool_call done Add"),
        *("tool_call_result done Result", "tool_call failed Set timer · failed: No"),
        *("tool_call_result failed Failed", "output_text done"),
    ]
    assert [one.get("inside", False) for one in turn["bubbles"][3:7]] == [False, True, False, True]
    assert turn["bubbles"][1].get("steps") == 5
    assert turn.get("can_branch")


def test_question_has_its_choices_and_reply() -> None:
    asked = ToolCallPart("ask_user", {"question": "Which <b>?", "choices": ["A", "B"]}, tool_call_id="1")
    turn = shown_of(ModelResponse([asked]), ended="suspended")
    assert kinds(turn)[-1] == "question waiting"
    assert [one["label"] for one in turn.get("buttons", [])] == ["A", "B"]
    assert turn["bubbles"][-1]["blocks"][0] == "<p>Which &lt;b&gt;?</p>"
    answered = shown_of(ModelResponse([asked]), ModelRequest([ToolReturnPart("ask_user", "A", "1")]))
    assert kinds(answered)[:3] == ["user done", "question done", "user done"]
    assert [one["value"]["do"] for one in answered.get("buttons", [])] == ["retry"], "no text came after it"
    permitted = shown_of(ModelResponse([ToolCallPart("send", {"to": "Ann"}, tool_call_id="2")]), ended="suspended")
    assert kinds(permitted)[1:] == ["tool_call waiting Send · waiting for you", "question waiting"]


CAPTIONS = {
    "cut": (Note(ended="length"), "Reached the length limit"),
    "estimated": (
        Note(
            ended="stop", timings=Timings(first_token=1, generating=2, generated=60, output_tokens=60, estimated=True)
        ),
        "1.00 s to first token · ≈ 60 tokens · ≈ 30 tokens/s",
    ),
    "costs": (Note(ended="stop", cost=0.0341), "$0.034"),
    "an older message": (Note(ended="stop", left_out=1), "1 earlier message no longer fits and was not sent"),
    "older messages": (Note(ended="stop", left_out=3), "3 earlier messages no longer fit and were not sent"),
    "pictures": (Note(ended="stop", omitted="It takes no <pictures>."), "It takes no &lt;pictures&gt;"),
    "stopped in line": (
        Note(ended="cancelled", detail="Stopped.", timings=Timings(queued=3.2, first_token=0.5, total=4.0)),
        "Stopped · 3 s in line · 0.50 s to first token · 0 tokens",
    ),
}


@pytest.mark.parametrize(("note", "said"), CAPTIONS.values(), ids=CAPTIONS)
def test_caption_says_what_happened(note: Note, said: str) -> None:
    assert caption_of(note, ENGLISH, "", "") == said


@pytest.mark.parametrize("ended", ["error", "cancelled"])
def test_ending_is_in_the_language_of_the_page(ended: Any) -> None:
    entry = Entry(parent_id=USER.id, message=ModelResponse([TextPart("So")]), note=Note(ended=ended, detail=LOST))
    shown = render_turn(to_turns([USER, entry])[0], Translator("de"))
    said = json.dumps([shown["bubbles"], shown.get("caption", "")], ensure_ascii=False)
    assert "Der Server fiel aus, bevor die Antwort fertig war" in said
    assert "the server" not in said


def test_cited_sources_are_numbers_and_a_list() -> None:
    anchor = ContentCitationAnchor(start=0, end=5)
    page = WebCitationSource(url="https://a.example/x", title="A", excerpts=["x"])
    paper = DocumentCitationSource(title="b.pdf#page=3", excerpts=["y"])
    text = TextPart("Seven of 9.", citations=[Citation([page], anchor=anchor), Citation([paper], anchor=anchor)])
    turn = shown_of(ModelResponse([text]))
    [block] = turn["bubbles"][1]["blocks"]
    assert re.sub(r' (?:rel|type)="[^"]*"', "", block).strip() == (
        '<p>Seven<a class="mark" data-source="1" data-passage="1" href="https://a.example/x">1</a>'
        '<button class="mark" data-source="2" data-passage="1">2</button> of 9.</p>'
    )
    assert kinds(turn)[2] == "sources done"
    assert [one["passages"] for one in turn.get("sources", [])] == [["x"], ["y"]]
    assert turn.get("sources", [])[1]["page"] == 3


HOSTILE = (
    '"><img src=x onerror=alert(1)>',
    "</summary></details><script>alert(1)</script>",
    "[a](javascript:alert(1)) <svg/onload=alert(1)>",
    "{\ufdd01.1 https://e.example\ufdd1",
    '" style="position:fixed',
    "&lt;b&gt;</pre><b>",
    "\0\u2028\ufdd0",
)


@pytest.mark.parametrize("language", LANGUAGES)
@given(text=st.lists(st.sampled_from(HOSTILE), min_size=1, max_size=3).map("".join))
@settings(max_examples=examples(25))
def test_no_text_yields_what_is_not_allowed(language: str, text: str) -> None:
    cited = Citation([WebCitationSource(url=f"https://a.example/{text}", title=text, excerpts=[text])])
    paper = Citation([DocumentCitationSource(title=text, excerpts=[text])])
    files = [
        ImageUrl(f"/media/{'0' * 32}.png", identifier=f"{text}.png"),
        DocumentUrl(f"/media/{'1' * 32}.pdf", media_type="application/pdf", identifier=f"{text}.pdf"),
        ImageUrl(f"javascript:{text}", media_type="image/png"),
    ]
    question = ModelRequest([UserPromptPart([text, f"{text}.txt:\n```\n{text}\n```", *files])])
    messages = [
        ModelResponse([ThinkingPart(text), ToolCallPart(text, {text: text}, "1"), ToolCallPart("add", {}, "2")]),
        ModelRequest([ToolReturnPart(text, [text, *files], "1"), ToolReturnPart("add", text, "2", outcome="failed")]),
        ModelResponse([TextPart(text, citations=[cited, paper]), ToolCallPart("ask_user", {"question": text}, "3")]),
    ]
    for ended in ("error", "cancelled", "suspended"):
        asked, *others = entries_of(*messages, ended=ended, detail=text)
        [turn] = to_turns([replace(asked, message=question), *others])
        check_turn(render_turn(replace(turn, model=text, model_name=text), Translator(language)))


def test_cost_of_an_update_does_not_depend_on_what_came_before(monkeypatch: pytest.MonkeyPatch) -> None:
    rendered, render = list[int](), markdown._MARKDOWN.renderer.render  # pyright: ignore[reportPrivateUsage]

    def counted(*given: Any) -> str:
        rendered.append(1)
        return render(*given)

    monkeypatch.setattr(markdown._MARKDOWN.renderer, "render", counted)  # pyright: ignore[reportPrivateUsage]
    renderer, bubbles, stamp = TurnRenderer(), list[Any](), BubbleMarker()
    turn, before = ConversationTurn(user=USER, bubbles=bubbles, note=None), None
    for number in range(20):
        pieces: list[Piece] = [("reasoning", "Hm."), call(str(number)), result(str(number), is_error=False)]
        fold_responses(bubbles, map(stamp, pieces))
    for number in range(150):
        rendered.clear()
        fold_responses(bubbles, [stamp(("output_text", f"A *paragraph* {number}.\n\n"))])
        shown = renderer.render(turn)
        if number:
            assert len(rendered) <= 4
            assert before is None or len(json.dumps(edits(before, shown))) < 400
            assert before is None or all(map(is_, before["bubbles"][:-1], shown["bubbles"]))
        before = shown


async def test_frames_lead_to_the_stored_turn() -> None:
    """Whichever frames a reader has missed: it continues at any of them, or begins anew."""
    runs = LiveRuns(None)
    words = [Words("reasoning", ["Hm. ", "So."]), Words("output_text", [f"Part {number}.\n\n" for number in range(20)])]
    live = runs.start(Agent(FakeConnection([Step(words)])).run("Hi."), unstored())
    running = RunningTurn(live, [], {})
    frames, turn, last = TurnFrames(running, ENGLISH), None, ""
    async with aclosing(live.updates()) as updates:
        async for _ in updates:
            for id_, data in [*await frames.after(last)]:
                last, frame = id_, json.loads(data)
                turn = frame["turn"] if "turn" in frame else applied(turn, frame["edits"])
    assert turn is not None
    assert turn == json.loads(json.dumps(render_turn(running.turn(0.0))))
    [(again, whole)] = await frames.after("other-3")
    assert json.loads(whole) == {"turn": turn}
    assert (again, list(await frames.after(last))) == (last, [])
    await runs.close()
    await asyncio.sleep(0)


def test_new_page_sees_what_the_next_edits_change() -> None:
    """The text has grown since the last edits. With them, the page would get that twice."""
    bubbles = list[Any]()
    fold_responses(bubbles, said([("reasoning", "Hm."), ("output_text", "```pytho")]), [1.0, 2.0])
    renderer, turn = TurnRenderer(), ConversationTurn(user=USER, bubbles=bubbles, note=None)
    last = renderer.render(turn)
    bubbles[-1].texts.append("n\nprint(1)")
    first = renderer.render(turn, is_first=True)
    assert first == last
    assert applied(first, edits(last, renderer.render(turn))) == render_turn(turn)


def test_seconds_change_only_with_their_bubble() -> None:
    bubbles = list[Any]()
    fold_responses(bubbles, said([("reasoning", "Hm.")]), [1.0])
    renderer, turn = TurnRenderer(), ConversationTurn(user=USER, bubbles=bubbles, note=None)
    first = renderer.render(replace(turn, watched_since=3.0))
    assert first["bubbles"][1].get("seconds") == 2.0
    later = replace(turn, watched_since=9.0)
    assert edits(first, renderer.render(later)) == [], "the page counts on"
    assert renderer.render(later, is_first=True)["bubbles"][1].get("seconds") == 8.0
    assert edits(first, renderer.render(later)) == [], "another page has come meanwhile"
