"""Renders turns as bubbles of blocks: the same while an answer is written as after a reload."""

import html
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from html import escape
from itertools import groupby
from typing import cast
from urllib.parse import quote, urlencode

from pydantic_ai.messages import AudioUrl, DocumentUrl, ImageUrl

from agent.files.parts import extracted_text_of, text_file_of
from agent.files.store import ROUTE, is_id, type_of_id
from agent.history import ALL_BAD, TIE, Entry, Note
from agent.i18n.text import LocalizedText, _, decimal, ngettext
from agent.i18n.translator import ENGLISH, Translator
from agent.rendering.bubbles import Bubble, BubbleKind, BubbleState, Button, Turn
from agent.rendering.bubbles import Versions as ShownVersions
from agent.rendering.html import (
    Room,
    around_file,
    as_written,
    fold,
    json_code,
    page_mark,
    source_list,
    without_mark_signs,
)
from agent.rendering.markdown import Blocks, to_blocks
from agent.rendering.sources import Sources
from agent.rendering.steps import (
    LEAST_STEPS,
    call_title,
    failure_reason,
    has_failed,
    refusal_reason,
    short_reason,
    steps_name,
    thought_name,
    tool_title,
    total_seconds,
)
from agent.system.threads import LOOKS
from agent.transfer.document import EXTRACTED, shown_text
from agent.web.chat import transcript
from agent.web.chat.attached_documents import pages_read
from agent.web.chat.questions import ASK_USER, Call, is_question, options, question
from agent.web.chat.sent_message import attached_name, count_files, has_typed_text, typed_text
from agent.web.chat.transcript import CUT, SILENCE_SECONDS, MessageVersions, call_id, content_parts, is_failed_as_empty
from agent.web.chat.views import ChatView, wait_text

LONGEST_MARKDOWN = 500_000
"""Characters of the stored texts of a turn that are read as Markdown. Of longer ones, which imports have, the beginning
is shown as written."""
LEAST_SHOWN = 20_000
"""Characters of such a text that are always shown."""
MOST_HTML = 2_000_000
"""Characters of the turns that are shown at once, if there is more than one."""
SHOWN_CHARACTERS = 3_000
"""Characters of a document that the page shows. The whole text would make each page of the chat heavy."""
SHOWN_OUTPUT = 80
"""Characters of a line of a running tool's output that the title of its row shows."""
LETTERS = "ABCD"
"""The names of answers whose models are hidden."""
STEPS = ("reasoning", "tool_call", "tool_call_result")

_Numbered = tuple[int, transcript.TurnBubble, bool]
Written = tuple[int, transcript.TurnBubble, Bubble]
"""The number of a bubble of the answer, that bubble, and how it is shown."""


async def newest_turns(view: ChatView, window: int, translator: Translator = ENGLISH) -> tuple[list[Turn], bool]:
    """Return the newest complete turns with at most `window` bubbles, but at least one, and if there are older ones.

    Threads render them in short steps.
    """
    turns = list[Turn]()
    async with aclosing(LOOKS.steps(_newest(view, window, translator))) as steps:
        async for some in steps:
            turns += some
    return turns[::-1], view.has_earlier or len(turns) < len(view.turns)


def _newest(view: ChatView, window: int, translator: Translator) -> Iterator[Turn]:
    turns, total, size = view.turns, 0, 0
    if view.has_earlier and turns and turns[0].user is None:
        turns = turns[1:]
    for number, turn in enumerate(reversed(turns)):
        shown = render_turn(turn, translator)
        total += len(shown["bubbles"])
        size += sum(len(block) for bubble in shown["bubbles"] for block in bubble["blocks"])
        if number and (total > window or size > MOST_HTML):
            return
        yield shown


def render_turn(turn: transcript.ConversationTurn, translator: Translator = ENGLISH) -> Turn:
    """Return a turn that does not grow."""
    return TurnRenderer(translator).render(turn)


class TurnRenderer:
    """Renders one turn again and again while it grows. What was rendered before costs nothing."""

    def __init__(self, translator: Translator = ENGLISH) -> None:
        self._translator = translator
        self._asked: list[str] | None = None
        self._room, self._written = LONGEST_MARKDOWN, Room(translator)
        self._texts = dict[int, _GrowingText]()
        self._values = dict[int, tuple[object, list[str]]]()
        """The blocks of calls and results, and of what they were made, by the numbers of their bubbles."""
        self._steps = dict[int, tuple[tuple[object, ...], Bubble]]()
        """The calls and results that have ended, and of what they were made, by the numbers of their bubbles."""
        self._before = list[tuple[object, int]]()
        self._steps_before: list[Bubble] | None = None
        """The bubbles before the text that grows, and how they are shown. None: no text grows."""
        self._shown: Turn | None = None
        self._columns = dict[str, TurnRenderer]()

    def render(self, turn: transcript.ConversationTurn, waiting: str = "", *, is_first: bool = False) -> Turn:
        """Return the turn. `waiting` says why a running turn gets nothing from the model.

        Seconds are counted up to `turn.watched_since`, and those of what has not changed since the last call stay.
        `is_first`, for a page that begins to watch: the turn of the last call, which the next edits change, with the
        seconds of now.
        """
        if turn.columns and turn.user is not None:
            return self._side_by_side(turn, turn.user, is_first=is_first)
        sources = Sources()
        bubbles = self._message(turn.user) if turn.user is not None else []
        bubbles += self._answer(turn, sources, is_first=is_first)
        bubbles += [shown_file(ROUTE + id_, self._translator) for id_ in turn.files]
        if sources:
            bubbles.append(_bubble("sources", [source_list(sources, self._translator)]))
        if turn.is_empty:
            bubbles.append(problem(self._translator(_("The model returned an empty answer."))))
        if (call := turn.question) is not None:
            bubbles += [*self._answered_below(turn), self._question(call)]
        if turn.summary:
            bubbles.append(summary_mark(turn.summary, self._translator))
        shown = self._with_fields(turn, bubbles, sources, waiting)
        if turn.is_blind:
            shown = self._nameless(shown)
            bubbles = shown["bubbles"]
        if is_first and self._shown is not None:
            return _with_seconds_of(shown, self._shown)
        if self._shown is not None:
            _keep_seconds(self._shown, shown)
            for number, (old, new) in enumerate(zip(self._shown["bubbles"], bubbles, strict=False)):
                if old == new:  # the next comparison is quick
                    bubbles[number] = old
        if not is_first:
            self._shown = shown
        return shown

    def _side_by_side(self, turn: transcript.ConversationTurn, user: Entry, *, is_first: bool) -> Turn:
        """Return a turn with the answers of several models, each rendered by itself."""
        ids = {one.user.id for one in turn.columns if one.user is not None}
        if (answer := turn.versions.answer) is not None and ids.issuperset(answer.ids):  # the columns show them
            turn = replace(turn, versions=replace(turn.versions, answer=None))
        mark = [summary_mark(turn.summary, self._translator)] if turn.summary else []
        shown = Turn(id=user.id, bubbles=[*self._message(user), *mark], is_running=turn.note is None)
        shown["columns"] = [self._column(one, turn, is_first=is_first) for one in turn.columns]
        if turn.is_blind:
            places = [*dict.fromkeys(user.note.compared)]
            numbers = [places.index(one.user.id) if one.user else at for at, one in enumerate(turn.columns)]
            shown["columns"] = [self._blind(one, n) for one, n in zip(shown["columns"], numbers, strict=True)]
            if all(one.note is not None for one in turn.columns):
                shown["buttons"] = self._votes(user.id, numbers)
        return _with_message_fields(shown, turn, user, self._translator)

    def _column(
        self, answer: transcript.ConversationTurn, turn: transcript.ConversationTurn, *, is_first: bool
    ) -> Turn:
        """Return one of several answers, without the message, and with what can be done with it."""
        id_, is_chosen = (answer.user.id if answer.user else ""), answer.user == turn.user
        renderer = self._columns.setdefault(id_, TurnRenderer(self._translator))
        alone = replace(answer, model_name="", versions=transcript.ONLY_ONE)
        whole = renderer.render(alone, wait_text(answer.wait, self._translator), is_first=is_first)
        shown: Turn = {**whole, "id": f"answer-{id_}", "bubbles": whole["bubbles"][1:]}
        shown["name"] = self._translator(answer.model_name or answer.model)
        buttons = shown.pop("buttons", []) if is_chosen and turn.note is not None else []
        if answer.note is None:
            buttons = [Button(label=self._translator(_("Stop")), value={"do": "stop", "run": answer.run})]
        elif turn.note is not None and not is_chosen and has_answer(answer):
            label = self._translator(_("Go on with this answer"))
            buttons = [Button(label=label, value={"do": "show", "entry": id_})]
        if answer.note is not None and (text := answer_text(answer)):
            shown["text"] = text
        shown["buttons"] = buttons
        shown["is_chosen"] = is_chosen
        return shown

    def _blind(self, column: Turn, number: int) -> Turn:
        """Return a column without what tells its model, with a letter for its place among all the messages."""
        buttons = [one for one in column.get("buttons", []) if one["value"]["do"] == "stop"]
        return {**self._nameless(column), "name": LETTERS[number], "buttons": buttons, "is_chosen": False}

    def _nameless(self, turn: Turn) -> Turn:
        """Return a turn without what tells its model: the name, figures, and what its server says."""
        failed = problem(self._translator(_("This answer failed.")))
        shown: Turn = {**turn, "bubbles": [failed if one["kind"] == "error" else one for one in turn["bubbles"]]}
        shown.pop("model", None)
        shown.pop("caption", None)
        if waiting := shown.get("waiting"):
            shown["waiting"] = {**waiting, "why": ""}
        return shown

    def _votes(self, entry: str, numbers: Sequence[int]) -> list[Button]:
        choices = {str(n): _("{letter} is better", letter=LETTERS[n]) for n in numbers}
        choices |= {TIE: _("Equally good"), ALL_BAD: _("All are bad")}
        return [
            Button(label=self._translator(text), value={"do": "vote", "entry": entry, "choice": choice})
            for choice, text in choices.items()
        ]

    def text(self, bubble: transcript.TurnBubble, number: int, sources: Sources, *, is_whole: bool) -> list[str]:
        """Return the blocks of a text or a thought. `is_whole` says that it does not grow any more."""
        known = self._texts.get(number)
        if known is None or not known.take(bubble.texts):
            known = self._texts[number] = _GrowingText()
            known.take(bubble.texts)
            if is_whole:
                self._room -= known.show_within(self._room, self._translator)
        return known.blocks(sources, bubble, is_whole=is_whole)

    def value(self, bubble: transcript.TurnBubble, number: int) -> list[str]:
        """Return the arguments of a call, or the text of its result."""
        known = self._values.get(number)
        if known is None or known[0] is not bubble.first:
            if bubble.first.type == "tool_call":
                blocks = [json_code(bubble.content["arguments"], self._written)]
            else:
                text = str(bubble.content["content"])
                blocks = ["".join(as_written(text, self._written))] if text else []
            known = self._values[number] = (bubble.first, blocks)
        return known[1]

    def step(self, number: int, given: tuple[object, ...], make: Callable[[], Bubble]) -> Bubble:
        """Return the same bubble again if it is made of the same as before."""
        known = self._steps.get(number)
        if known is None or known[0] != given:
            known = self._steps[number] = (given, make())
        return known[1]

    def _answer(self, turn: transcript.ConversationTurn, sources: Sources, *, is_first: bool) -> list[Bubble]:
        """Return the bubbles of the answer. Nothing before a text that grows is made again."""
        whole = _Answer(turn, self, sources, self._translator)
        before = [(one.first, len(one.texts)) for one in turn.bubbles[:-1]]
        if not is_first and self._steps_before is not None and before == self._before and whole.ends_with_text():
            return [*self._steps_before, *whole.last_text()]
        bubbles = whole.bubbles()
        if not is_first:
            is_growing = whole.ends_with_text() and [*whole.last_text()] == bubbles[-1:]
            self._before, self._steps_before = before, bubbles[:-1] if is_growing else None
        return bubbles

    def _message(self, entry: Entry) -> list[Bubble]:
        if self._asked is None:
            self._asked = [*_asked_blocks(entry, self._translator, self._written)]
        return [_bubble("user", self._asked)]

    def _answered_below(self, turn: transcript.ConversationTurn) -> Iterator[Bubble]:
        """Yield the questions of agents and servers that have a reply, and the replies, until all have one."""
        for call in turn.open_questions:
            if "by" in call and (reply := (turn.replies or {}).get(call["id"])) is not None:
                yield _bubble("question", [paragraph(question(call) or str(call["name"]))])
                yield _bubble("user", _typed_blocks(reply, self._translator))

    def _question(self, call: Call) -> Bubble:
        """Return the question that waits for a person."""
        translator = self._translator
        asker = [paragraph(translator(_("{name} asks:", name=tool_title(call["by"]))))] if "by" in call else []
        if is_question(call):
            hint = _("Choose, or write your answer below.") if options(call) else _("Write your answer below.")
            blocks = [paragraph(question(call))]
        else:
            hint = _("Or write below: other values as JSON, or your reason to refuse.")
            may_run = call.get("question") or translator(
                _("Allow {name} to run with these values?", name=str(call["name"]))
            )
            blocks = [paragraph(may_run), json_code(call["arguments"], Room(translator))]
        hinted = f'<p class="caption">{escape(translator(hint))}</p>'
        return _bubble("question", [*asker, *blocks, hinted], state="waiting")

    def _with_fields(
        self, turn: transcript.ConversationTurn, bubbles: list[Bubble], sources: Sources, waiting: str
    ) -> Turn:
        translator, user, note = self._translator, turn.user, turn.note
        shown = Turn(id=user.id if user else turn.run, bubbles=bubbles, is_running=note is None)
        if turn.model:
            shown["model"] = turn.model
        if note is not None and turn.question is None:
            if caption := caption_of(note, translator, turn.model_name, turn.model):
                shown["caption"] = caption
            if user is not None and (caption or turn.versions.answer or has_answer(turn)):
                shown["can_branch"] = True
        elif note is None and (waiting or turn.is_waiting):
            so_far = round(seconds_waited(turn), 1)
            shown["waiting"] = {"why": waiting, "seconds": so_far, "number": len(turn.bubbles)}
        if note is None and turn.can_steer:
            shown["can_steer"] = True
        if turn.steered:
            shown["steered"] = [*turn.steered]
        if turn.question is not None:
            choices = options(turn.question, turn.run, translator)
            shown["buttons"] = [{"label": one["label"], "value": one["value"]} for one in choices]
        elif user is not None and (button := button_of(turn)) is not None:
            label, do = button
            shown["buttons"] = [{"label": translator(label), "value": {"do": do, "entry": user.id}}]
        if sources:
            shown["sources"] = [
                {"number": one.number, "title": one.title, "url": one.url, "page": one.page, "passages": one.passages}
                for one in sources
            ]
        return shown if user is None else _with_message_fields(shown, turn, user, translator)


class _GrowingText:
    """A text that grows, and its blocks so far."""

    def __init__(self) -> None:
        self._texts: Sequence[str] = ()
        self._count, self._text, self._is_whole = 0, "", False
        self._blocks, self._marked, self._with_marks = Blocks(), "", list[str]()
        self._shown = list[str]()
        self._as_written: list[str] | None = None
        """The block of a text that is too long for Markdown."""

    def take(self, texts: Sequence[str]) -> bool:
        """Take the pieces of the text. Return False if it is another one, or goes on after it was whole."""
        if texts is not self._texts:  # an answer that goes on in a stored text has new lists with the same pieces
            count = len(texts)  # the list can grow meanwhile
            text = without_mark_signs("".join(texts[:count]))
            if not text.startswith(self._text) or (self._is_whole and text != self._text):
                return False
            self._texts, self._count, self._text = texts, count, text
        elif self._is_whole and len(texts) != self._count:
            return False
        else:
            count = len(texts)
            self._text += without_mark_signs("".join(texts[self._count : count]))
            self._count = count
        return True

    def show_within(self, room: int, translator: Translator) -> int:
        """Return the characters of a whole text that will be shown: all as Markdown, or the first ones as written."""
        if len(self._text) <= room:
            return len(self._text)
        self._as_written = _beginning(self._text, room, translator)
        return min(room, len(self._text))

    def blocks(self, sources: Sources, bubble: transcript.TurnBubble, *, is_whole: bool) -> list[str]:
        """Return the blocks of the text, with the numbers of sources that its citations get."""
        if self._as_written is not None:
            return self._as_written
        if bubble.citations:
            marked = sources.mark(self._text, bubble.citations, page_mark)
            if marked != self._marked:
                self._marked, self._with_marks = marked, to_blocks(marked)
            return self._with_marks
        if not self._is_whole:
            self._blocks.update(self._text, is_whole=is_whole)
            self._is_whole = is_whole
            self._shown = [*self._blocks.html]
        return self._shown


class _Answer:
    """The bubbles of the answer of one turn."""

    def __init__(
        self, turn: transcript.ConversationTurn, renderer: TurnRenderer, sources: Sources, translator: Translator
    ) -> None:
        self._turn, self._renderer, self._sources, self._translator = turn, renderer, sources, translator
        self._seconds = list(turn.reasoning)
        self._unanswered, self._failures, self._refusals = set[str](), dict[str, str](), dict[str, str]()
        self._found = dict[str, str]()
        """The results of the calls that have ended well, by the ids of the calls."""

    def ends_with_text(self) -> bool:
        """Return True if the answer is being written, ends with a text, and nothing in it is cited."""
        bubbles = self._turn.bubbles
        is_text = self._turn.note is None and bool(bubbles) and bubbles[-1].first.type == "output_text"
        return is_text and not any(bubble.citations for bubble in bubbles)

    def last_text(self) -> Iterator[Bubble]:
        """Yield the last bubble, which is a text."""
        return self._shown(len(self._turn.bubbles) - 1, self._turn.bubbles[-1], is_inside=False)

    def bubbles(self) -> list[Bubble]:
        """Return the bubbles in their order. A row stands before steps that follow one another."""
        turn = self._turn
        self._unanswered = {call["id"] for call in transcript.unanswered_tool_calls(turn.bubbles)}
        self._failures, self._refusals = failures(turn), refusals(turn)
        self._found = {one["id"]: str(one["content"]) for one in _results(turn) if not one["is_error"]}
        out, written = list[Bubble](), [*self._written()]
        for is_steps, group in groupby(written, key=lambda one: one[2]["kind"] in STEPS):
            steps = [*group]
            if is_steps and sum("inside" not in shown for _number, _bubble, shown in steps) >= LEAST_STEPS:
                out.append(self._row(steps, goes_on=self._turn.note is None and steps[-1] is written[-1]))
            out += [shown for _number, _bubble, shown in steps]
        return out

    def _written(self) -> Iterator[Written]:
        """Yield the bubbles. The files of results follow the steps, so that they are seen without opening these."""
        files = list[Written]()
        for number, bubble, is_inside in self._in_order():
            if not self._is_call_or_result(bubble):
                yield from files
                files.clear()
            yield from ((number, bubble, shown) for shown in self._shown(number, bubble, is_inside=is_inside))
            if bubble.first.type == "tool_call_result" and _given(bubble).get("files"):
                shown_files = (
                    shown_file(one["url"], self._translator, one["name"]) for one in bubble.content.get("files", ())
                )
                files += ((number, bubble, shown) for shown in shown_files)
        yield from files

    def _in_order(self) -> Iterator[_Numbered]:
        """Yield the bubbles with their numbers, each result behind its call if no other bubble is between them.

        True: the result is inside the bubble of its call.
        """
        numbered = enumerate(self._turn.bubbles)
        for is_calls, group in groupby(numbered, key=lambda one: self._is_call_or_result(one[1])):
            by_call, series = dict[object, list[_Numbered]](), list[list[_Numbered]]()
            for number, bubble in group:
                is_result = is_calls and bubble.first.type == "tool_call_result"
                if is_result and call_id(bubble) in by_call:
                    by_call[call_id(bubble)].append((number, bubble, True))
                    continue
                series.append([(number, bubble, False)])
                if is_calls and not is_result:
                    by_call[call_id(bubble)] = series[-1]
            for ones in series:
                yield from ones

    def _is_call_or_result(self, bubble: transcript.TurnBubble) -> bool:
        """Return False for a question that a person was asked, and for the reply, too."""
        if bubble.first.type == "tool_call":
            return not self.is_asked(bubble)
        return bubble.first.type == "tool_call_result" and not _is_reply(bubble)

    def is_asked(self, bubble: transcript.TurnBubble) -> bool:
        """Return False for a question that could not be asked: it is a failed call like any other, which says why."""
        id_ = call_id(bubble)
        return is_question(_given(bubble)) and not self._failures.get(id_) and id_ not in self._refusals

    def _shown(self, number: int, bubble: transcript.TurnBubble, *, is_inside: bool) -> Iterator[Bubble]:
        turn, renderer = self._turn, self._renderer
        is_last = bubble is turn.bubbles[-1]
        match bubble.first.type:
            case "output_text":
                is_whole = turn.note is not None or not is_last
                blocks = renderer.text(bubble, number, self._sources, is_whole=is_whole)
                if any(map(str.strip, bubble.texts)):
                    yield _bubble("output_text", blocks, state="done" if is_whole else "running")
            case "reasoning":
                yield self._thought(number, bubble, is_running=turn.note is None and is_last)
            case "tool_call" if self.is_asked(bubble):
                if bubble.content != turn.question:  # which is shown at the end of the turn
                    yield _bubble("question", [paragraph(question(bubble.content))])
                if (reply := (turn.replies or {}).get(call_id(bubble) or "")) is not None:
                    yield _bubble("user", _typed_blocks(reply, self._translator))
            case "tool_call":
                yield self._call(number, bubble)
            case "tool_call_result" if _is_reply(bubble):
                yield _bubble("user", _typed_blocks(str(bubble.content["content"]), self._translator))
            case "tool_call_result":
                yield from self._result(number, bubble, is_inside=is_inside)
            case "user_message":
                yield _bubble("user", _typed_blocks(bubble.text, self._translator))
            case "error":
                why = self._translator(turn.note.detail if turn.note else "") or bubble.text
                yield problem(why)

    def _thought(self, number: int, bubble: transcript.TurnBubble, *, is_running: bool) -> Bubble:
        seconds = self._seconds.pop(0) if self._seconds and not is_running else 0.0
        shown = _bubble(
            "reasoning",
            self._renderer.text(bubble, number, self._sources, is_whole=not is_running),
            title=thought_name(seconds, self._translator),
        )
        if is_running:
            return _running(shown, bubble, self._turn)
        if seconds:
            shown["seconds"] = round(seconds, 1)
        return shown

    def _call(self, number: int, bubble: transcript.TurnBubble) -> Bubble:
        turn, id_ = self._turn, call_id(bubble)
        is_open = id_ in self._unanswered
        given = (
            id(bubble.first),
            is_open and turn.replies is not None,
            self._refusals.get(id_),
            self._failures.get(id_),
            id_ in self._found,
        )
        shown = self._renderer.step(number, given, lambda: self._made_call(number, bubble))
        if turn.note is not None or not is_open:
            return shown
        shown = _running(shown, bubble, turn)
        return _with_output(shown, "".join(bubble.output), self._translator) if bubble.output else shown

    def _made_call(self, number: int, bubble: transcript.TurnBubble) -> Bubble:
        translator, id_ = self._translator, call_id(bubble)
        given = _given(bubble)
        name = translator(call_title(given["name"], given["arguments"], self._found.get(id_, "")))
        state: BubbleState = "done"
        if id_ in self._unanswered and self._turn.replies is not None:
            state, name = "waiting", translator(_("{name} · waiting for you", name=name))
        elif (why := self._refusals.get(id_)) is not None:
            short = short_reason(why, translator)
            said = _("{name} · refused: {why}", name=name, why=short) if why else _("{name} · refused", name=name)
            state, name = "refused", translator(said)
        elif (why := self._failures.get(id_)) is not None:
            short = short_reason(why, translator)
            said = _("{name} · failed: {why}", name=name, why=short) if why else _("{name} · interrupted", name=name)
            state, name = "failed", translator(said)
        return _bubble("tool_call", self._renderer.value(bubble, number), state=state, title=name)

    def _result(self, number: int, bubble: transcript.TurnBubble, *, is_inside: bool) -> Iterator[Bubble]:
        if self._renderer.value(bubble, number) or not _given(bubble).get("files"):
            given = (id(bubble.first), is_inside)
            yield self._renderer.step(number, given, lambda: self._made_result(number, bubble, is_inside=is_inside))

    def _made_result(self, number: int, bubble: transcript.TurnBubble, *, is_inside: bool) -> Bubble:
        content: Call = bubble.content
        failed = has_failed(content)
        state: BubbleState = "failed" if failed else "refused" if content.get("is_refused") else "done"
        title = self._translator(_("Failed") if failed else _("Result"))
        shown = _bubble("tool_call_result", self._renderer.value(bubble, number), state=state, title=title)
        if is_inside:
            shown["inside"] = True
        return shown

    def _row(self, steps: Sequence[Written], *, goes_on: bool) -> Bubble:
        translator = self._translator
        thoughts = [shown for _number, _bubble, shown in steps if shown["kind"] == "reasoning"]
        calls = {call_id(bubble) for _number, bubble, shown in steps if shown["kind"] != "reasoning"}
        failed = len(calls & self._failures.keys())
        seconds = total_seconds(one.get("seconds", 0.0) for one in thoughts if one["state"] == "done")
        parts = steps_name(0 if goes_on else len(thoughts), len(calls), failed, translator, seconds=seconds)
        title = " · ".join([translator(_("Working")), *parts] if goes_on else parts)
        row = _bubble("steps", [], state="failed" if failed else "done", title=title)
        row["steps"] = len(steps)
        return _running(row, steps[0][1], self._turn) if goes_on else row


def _given(bubble: transcript.TurnBubble) -> Call:
    """Return what a call or a result has, without the addresses of its files."""
    return cast(Call, bubble.first.content)


def answer_text(turn: transcript.ConversationTurn) -> str:
    """Return the texts of the answer and the questions that it asks, as the model wrote them."""
    answer, texts = _Answer(turn, TurnRenderer(), Sources(), ENGLISH), list[str]()
    for bubble in turn.bubbles:
        if bubble.first.type == "output_text":
            texts.append(bubble.text)
        elif bubble.first.type == "tool_call" and answer.is_asked(bubble):
            texts.append(question(_given(bubble)))
    return "\n\n".join(texts)


def plain_texts(turn: transcript.ConversationTurn) -> dict[str, str]:
    """Return what the visitor typed and the answer, for a thread: both can be long."""
    return {"message": typed_text(turn.user) if turn.user else "", "answer": answer_text(turn)}


def _is_reply(bubble: transcript.TurnBubble) -> bool:
    content: Call = _given(bubble)
    return content["name"] == ASK_USER and not content["is_error"]


def _bubble(kind: BubbleKind, blocks: list[str], *, state: BubbleState = "done", title: str = "") -> Bubble:
    shown = Bubble(kind=kind, state=state, blocks=blocks)
    if title:
        shown["title"] = title
    return shown


def _running(shown: Bubble, bubble: transcript.TurnBubble, turn: transcript.ConversationTurn) -> Bubble:
    """Return the bubble as running since its beginning, if that was observed."""
    so_far = turn.watched_since - bubble.began
    return {**shown, "state": "running", "seconds": round(so_far, 1) if so_far > 0 else 0.0}


def _with_output(shown: Bubble, text: str, translator: Translator) -> Bubble:
    """Return the bubble of a running call with the text that its tool has yielded, and its last line in the title."""
    last = next((line.strip() for line in reversed(text[-SHOWN_CHARACTERS:].splitlines()) if line.strip()), "")
    title = translator(_("{name} · {output}", name=shown.get("title", ""), output=last[:SHOWN_OUTPUT]))
    block = f'<pre class="output">{escape(text[-SHOWN_CHARACTERS:])}</pre>'
    return {**shown, "title": title if last else shown.get("title", ""), "blocks": [*shown["blocks"], block]}


def problem(text: str) -> Bubble:
    """Return the bubble that says that something went wrong."""
    return _bubble("error", [paragraph(text)], state="failed")


def summary_mark(text: str, translator: Translator) -> Bubble:
    """Return the bubble after the last turn for which a summary is sent: it shows the summary, and drops it."""
    title = translator(_("The model gets a summary of the messages up to here."))
    label = translator(_("Send the messages themselves"))
    undo = f'<button type="button" data-summary="drop">{escape(label)}</button>'
    return _bubble("summary", ["".join(fold(title, iter([*to_blocks(text), undo])))])


def paragraph(text: str) -> str:
    """Return a text as it is, with its lines. An import can have made it long: then only its beginning is shown."""
    text = text.strip()
    lines = escape(text if len(text) <= LEAST_SHOWN else f"{text[:LEAST_SHOWN]} …").replace("\n", "<br>")
    return f"<p>{lines}</p>"


def shown_file(url: str, translator: Translator, name: str = "") -> Bubble:
    """Return a bubble with a stored file."""
    return _bubble("file", [file_block(url, translator, name)])


def file_block(url: str, translator: Translator, name: str = "") -> str:
    """Return a stored file as a picture, a player or a link that saves it, and another file as its address."""
    id_ = url.removeprefix(ROUTE)
    if not is_id(id_):
        return paragraph(url)
    kind = type_of_id(id_)
    label = name or translator(_("attached picture") if kind.startswith("image/") else _("Save the file"))
    before, after = around_file(kind, label)
    query = f"?{urlencode({'name': name})}" if name else ""
    # relative, because a proxy may serve the page below a path
    return f"{before}{escape(url.removeprefix('/') + query)}{after}"


def _typed_blocks(text: str, translator: Translator, room: int = LONGEST_MARKDOWN) -> list[str]:
    """Return the blocks of a text that a person typed, which an import can have made long.

    `room` is how many characters of Markdown are read at most; a short text is always read.
    """
    is_short = len(text) <= max(room, LEAST_SHOWN)
    return to_blocks(text, is_typed=True) if is_short else _beginning(text, room, translator)


def _beginning(text: str, room: int, translator: Translator) -> list[str]:
    """Return the beginning of a long text as it is written, as blocks. A short text is there as a whole."""
    shown, rest = Room(translator, left=max(room, LEAST_SHOWN)).take(text)
    return [f"<pre>{escape(shown)}</pre>", *([rest] if rest else [])]


def _asked_blocks(entry: Entry, translator: Translator, written: Room) -> Iterator[str]:
    """Yield the text of a message as it was typed, and its files."""
    items, room = content_parts(entry), LONGEST_MARKDOWN
    for part, after in zip(items, [*items[1:], None], strict=True):
        if isinstance(part, str):
            file = text_file_of(part)
            if file is not None and file[1].strip():
                shown, rest = written.take(file[1])
                label = escape(file[0])
                yield f'<pre class="file" role="group" aria-label="{label}"><code>{escape(shown)}</code></pre>{rest}'
            else:
                text = shown_text(part, translator)
                yield from _typed_blocks(text, translator, room)
                room = max(0, room - len(text))
        elif isinstance(part, ImageUrl | AudioUrl | DocumentUrl):
            yield file_block(part.url, translator, attached_name(part, after))
        elif read := extracted_text_of(part):
            yield _extracted(read, translator, written)


def _extracted(read: Mapping[str, str], translator: Translator, room: Room) -> str:
    """Return the text that was extracted from a file, marked as such. Only the beginning of a document is shown."""
    text, is_document = read["read"], read["kind"] == "document"
    if is_document:
        text = text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + " …"
        title = translator(_("Text read from {name}: {pages}", name=read["name"], pages=pages_read(read)))
    else:
        title = translator(LocalizedText(EXTRACTED[read["kind"]], {"name": read["name"]}))
    return "".join(fold(title, as_written(text, room), "details" if is_document else "details open"))


def failures(turn: transcript.ConversationTurn) -> dict[str, str]:
    """Return why calls of the turn failed, by id. The value is "" for a call that will never get a result."""
    reasons = {one["id"]: failure_reason(str(one["content"])) for one in _results(turn) if has_failed(one)}
    lost = transcript.unanswered_tool_calls(turn.bubbles) if turn.note is not None and turn.replies is None else []
    return {call["id"]: "" for call in lost} | reasons


def refusals(turn: transcript.ConversationTurn) -> dict[str, str]:
    """Return why the visitor refused calls of the turn, by id. The value is "" without a reason."""
    return {one["id"]: refusal_reason(str(one["content"])) for one in _results(turn) if one.get("is_refused")}


def _results(turn: transcript.ConversationTurn) -> list[Call]:
    return [_given(bubble) for bubble in turn.bubbles if bubble.first.type == "tool_call_result"]


def has_answer(turn: transcript.ConversationTurn) -> bool:
    """Return True if the turn shows anything of an answer but an error."""
    return bool(turn.files) or any(bubble.first.type != "error" for bubble in turn.bubbles)


def seconds_waited(turn: transcript.ConversationTurn) -> float:
    """Return how long the wait for the model had been when the page began to watch."""
    in_text = bool(turn.bubbles) and turn.bubbles[-1].first.type == "output_text"
    return max(SILENCE_SECONDS if in_text else 0.0, turn.watched_since - turn.quiet_since)


def button_of(turn: transcript.ConversationTurn) -> tuple[str, str] | None:
    """Return the label of the button under an answer and its action."""
    ended = turn.note.ended if turn.note is not None else None
    types = [bubble.first.type for bubble in turn.bubbles if bubble.first.type != "error"]
    if turn.is_empty or is_failed_as_empty(turn.note) or (ended == "interrupted" and "output_text" not in types):
        return _("Try again"), "retry"
    if ended in ("error", "cancelled") and types[-1:] != ["output_text"]:
        return None
    return (_("Continue"), "continue") if ended in CUT else None


def _with_message_fields(shown: Turn, turn: transcript.ConversationTurn, user: Entry, translator: Translator) -> Turn:
    if not has_typed_text(user):
        shown["is_untyped"] = True
    if count := count_files(user):
        kept = ngettext("{count} file stays with this message", "{count} files stay with this message", count)
        shown["kept"] = translator(kept)
    if (versions := turn.versions.question) is not None:
        shown["question_versions"] = _versions(versions)
    if (versions := turn.versions.answer) is not None:
        shown["answer_versions"] = _versions(versions)
    return shown


def _versions(versions: MessageVersions) -> ShownVersions:
    return {"ids": [*versions.ids], "number": versions.number}


def _with_seconds_of(new: Turn, old: Turn) -> Turn:
    """Return the old turn with the seconds that the new one counts of what runs in both."""
    shown = old.copy()
    shown["bubbles"] = [bubble.copy() for bubble in old["bubbles"]]
    if "waiting" in shown:
        shown["waiting"] = shown["waiting"].copy()
    _keep_seconds(new, shown)
    return shown


def _keep_seconds(old: Turn, new: Turn) -> None:
    """Keep the seconds of what runs and has not changed, because the page counts them itself."""
    counted = {"blocks": 0, "seconds": 0}
    for before, after in zip(old["bubbles"], new["bubbles"], strict=False):
        if "seconds" in before and after["state"] == "running" and {**before, **counted} == {**after, **counted}:
            after["seconds"] = before["seconds"]
    before, after = old.get("waiting"), new.get("waiting")
    if before and after and before["number"] == after["number"]:
        after["seconds"] = before["seconds"]


def caption_of(note: Note, translator: Translator, model: str, model_id: str) -> str:
    """Return the model's name if given, how the turn ended and its figures, in one line. "≈" marks estimates.

    page.js hides the name of the model that the composer shows, by the class that has the model's id.
    """
    parts = list[str]()
    if note.ended == "cancelled":
        parts.append(html.escape(translator(note.detail).rstrip(".。")))
    if note.ended == "length":
        parts.append(translator(_("Reached the length limit")))
    if note.ended == "content_filter":
        withheld = note.detail or _("Withheld by the provider's content filter")
        parts.append(html.escape(translator(withheld).rstrip(".。")))
    if note.is_written:
        parts.append(translator(_("Written by you. Models read it as their own answer.")))
    if note.left_out:
        parts.append(
            translator(
                ngettext(
                    "{count} earlier message no longer fits and was not sent",
                    "{count} earlier messages no longer fit and were not sent",
                    note.left_out,
                )
            )
        )
    if note.omitted:
        parts.append(html.escape(translator(note.omitted).rstrip(".。")))
    timings = note.timings
    if timings is not None and timings.queued >= 1:
        parts.append(translator(_("{seconds} s in line", seconds=decimal(timings.queued, 0))))
    if timings is not None and timings.first_token is not None:
        about = "≈ " if timings.estimated else ""
        parts.append(translator(_("{seconds} s to first token", seconds=decimal(timings.first_token, 2))))
        parts.append(about + translator(ngettext("{count} token", "{count} tokens", timings.output_tokens)))
        if timings.generating > 0.05 and timings.generated > 1:
            speed = decimal(timings.generated / timings.generating, 0)
            parts.append(about + translator(_("{count} tokens/s", count=speed)))
    if note.cost:
        parts.append(translator(_dollars(note.cost)))
    figures = " · ".join(parts)
    if not model:
        return figures
    name = html.escape(translator(model)) + (" · " if figures else "")
    kind = html.escape(f"model {quote(model_id, safe='!*()')}")
    return f'<span class="{kind}">{name}</span>{figures}'


def _dollars(cost: float) -> LocalizedText:
    """Return the cost with at least two significant figures: $1.20, $0.034, $0.00012."""
    digits = 2 if cost >= 0.1 else 1 - math.floor(math.log10(cost))
    return _("${amount}", amount=decimal(cost, digits))
