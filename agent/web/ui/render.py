"""Renders turns as the chatbot's wire messages: pure, and the same live as after a reload.

Gradio gets `postprocess=False`, so the browser gets exactly these values, in the shape of Gradio's normalised messages.
Text is sent as a text part, never as a bare string, which Gradio would dedent.
"""

import html
import json
from typing import Any

from pydantic_ai.messages import AudioUrl, DocumentUrl, ImageUrl

from agent.history import Entry
from agent.i18n import _, ngettext
from agent.i18n.translator import ENGLISH, Translator
from agent.media.store import ROUTE
from agent.messages.parts import extracted_text_of, fence
from agent.rendering.caption import caption_of
from agent.rendering.sources import Sources
from agent.rendering.steps import thought_name
from agent.rendering.tool_errors import has_failed
from agent.transfer.as_typed import as_typed
from agent.transfer.document import shown_text
from agent.transfer.formulas import FormulaMarker
from agent.web.chat.questions import ASK_USER, Call, is_question, options, question, render_question
from agent.web.chat.sent_message import attached_name, count_files, has_typed_text
from agent.web.chat.transcript import (
    Bubble,
    Turn,
    content_parts,
    unanswered_tool_calls,
)
from agent.web.chat.turns import button_of, failures, has_answer, refusals, seconds_waited
from agent.web.ui.citation_chips import chip, source_list, without_our_names
from agent.web.ui.file_markdown import shown_extracted_text, shown_file
from agent.web.ui.timeline import duration_so_far, with_timelines
from agent.web.ui.tool_titles import call_title, failed_title, refused_title, waiting_title

WireMessage = dict[str, Any]


class Formulas:
    """Marks the formulas in the texts of a running turn, which grow, and escapes HTML, and the question's Markdown.

    A finished turn needs it only once.
    """

    def __init__(self) -> None:
        self._markers: dict[int, FormulaMarker] = {}
        self._asked: dict[str, str] = {}

    def mark(self, text: str, number: int) -> str:
        """Return the text of the bubble with this number, with its formulas marked and its HTML escaped."""
        if "<" not in text and text.count("$") < 2:
            return text
        return self._markers.setdefault(number, FormulaMarker(escapes=True)).mark(text)

    def asked(self, text: str) -> str:
        """Return the text of a question, with its Markdown escaped."""
        self._asked[text] = shown = self._asked.get(text) or as_typed(text)
        return shown


def render_turn(
    turn: Turn, waiting: str = "", translator: Translator = ENGLISH, formulas: Formulas | None = None
) -> list[WireMessage]:
    """Return the messages of one turn. `waiting` says why a running turn gets nothing from the model at the moment.

    `formulas` is kept between two renderings of a running turn.
    """
    out, formulas = list[WireMessage](), formulas or Formulas()
    if turn.user is not None:
        untyped = not has_typed_text(turn.user)
        about: WireMessage = {"id": turn.user.id, "untyped": untyped}
        if count := count_files(turn.user):  # address.js says it while the message is edited
            kept = ngettext("{count} file stays with this message", "{count} files stay with this message", count)
            about["kept"] = translator(kept)
        if (versions := turn.versions.question) is not None:  # address.js shows them below the message
            about["versions"] = {"ids": [*versions.ids], "number": versions.number}
        out.append(_user(_user_parts(turn.user, translator, formulas), about))
    answer = _Answer(turn, translator, formulas)
    out += answer.render()
    out += [_assistant(shown_file(ROUTE + id_, translator), None) for id_ in turn.files]
    out += [_assistant(source_list(answer.sources, translator), None)] if answer.sources else []
    out += _ending(turn, waiting, translator)
    if (button := button_of(turn)) is not None and turn.user is not None:
        label, do = button
        out[-1]["options"] = [{"label": translator(label), "value": {"do": do, "entry": turn.user.id}}]
    return out


class _Answer:
    """Renders the bubbles of one turn, in their order.

    `sources` are those that its texts cite. `_open_calls` holds the calls with results that can be shown inside them,
    because no message came in between.
    """

    def __init__(self, turn: Turn, translator: Translator, formulas: Formulas) -> None:
        self._turn, self._translator, self._formulas = turn, translator, formulas
        self._seconds = list(turn.reasoning)
        self._unanswered = {call["id"] for call in unanswered_tool_calls(turn.bubbles)}
        self._failures, self._refusals = failures(turn), refusals(turn)
        self._open_calls: set[str] = set()
        self.sources = Sources()

    def render(self) -> list[WireMessage]:
        """Return the messages of all bubbles."""
        bubbles = enumerate(self._turn.bubbles)
        messages = [(bubble, message) for number, bubble in bubbles for message in self._bubble(bubble, number)]
        return with_timelines(messages, self._turn, set(self._failures), self._translator)

    def _bubble(self, bubble: Bubble, number: int) -> list[WireMessage]:
        match bubble.first.type:
            case "output_text":
                text = self._text(bubble, number)
                return [_assistant(text, None)] if text.strip() else []
            case "reasoning":
                return [self._reasoning(bubble, number)]
            case "tool_call":
                # A question that could not be asked is a failed call like any other, which says why.
                id_ = bubble.content["id"]
                asked = is_question(bubble.content) and not self._failures.get(id_) and id_ not in self._refusals
                return self._answered_question(bubble.content) if asked else [self._call(bubble)]
            case "tool_call_result" if bubble.content["name"] == ASK_USER and not bubble.content["is_error"]:
                self._open_calls.clear()
                return [_user([{"type": "text", "text": as_typed(str(bubble.content["content"]))}])]
            case "tool_call_result":
                return self._result(bubble.content)
            case "error":
                why = self._translator(self._turn.note.detail if self._turn.note else "") or bubble.text
                return [_problem(html.escape(why))]

    def _reasoning(self, bubble: Bubble, number: int) -> WireMessage:
        running = self._turn.note is None and bubble is self._turn.bubbles[-1]
        seconds = self._seconds.pop(0) if self._seconds and not running else 0.0
        # Gradio would write a duration in English.
        metadata: WireMessage = {
            "title": thought_name(seconds, self._translator),
            "status": "pending" if running else "done",
            "seconds": round(seconds, 1),
        }
        if running:
            metadata |= duration_so_far(bubble, self._turn)
        return _assistant(self._text(bubble, number), metadata)

    def _text(self, bubble: Bubble, number: int) -> str:
        text = self._formulas.mark(self.sources.mark(without_our_names(bubble.text), bubble.citations, chip), number)
        # The page loads the files that are a whole text. So no model's text looks like the one of `shown_file`.
        is_like_file = text.startswith(("![", "[")) and text.endswith(")") and "](media/" in text
        return f" {text}" if is_like_file and "\n" not in text else text

    def _answered_question(self, call: Call) -> list[WireMessage]:
        """Render a question and its reply. The question that still waits is shown at the end of the turn instead."""
        out = [] if call == self._turn.question else [_assistant(_question(call), None)]
        reply = (self._turn.replies or {}).get(call["id"])
        if reply is not None:
            self._open_calls.clear()
            out.append(_user([{"type": "text", "text": as_typed(reply)}]))
        return out

    def _call(self, bubble: Bubble) -> WireMessage:
        id_, name = bubble.content["id"], bubble.content["name"]
        self._open_calls.add(id_)
        running = self._turn.note is None and id_ in self._unanswered
        waits = self._turn.replies is not None and id_ in self._unanswered
        if waits:
            title = waiting_title(name, self._translator)
        elif (why := self._refusals.get(id_)) is not None:
            title = refused_title(name, why, self._translator)
        else:
            title = call_title(name, self._failures.get(id_), self._translator)
        metadata: WireMessage = {"title": title, "id": id_, "status": "pending" if running else "done"}
        if running:
            metadata |= duration_so_far(bubble, self._turn)
        return _assistant(_code(bubble.content["arguments"]), metadata)

    def _result(self, result: Call) -> list[WireMessage]:
        translator = self._translator
        title = failed_title(translator(_("Failed"))) if has_failed(result) else translator(_("Result"))
        inside = result["id"] in self._open_calls
        # Without a status, a fold is open: an opened tool shows its arguments and its result together.
        metadata: WireMessage = {"title": title} | ({"parent_id": result["id"]} if inside else {"status": "done"})
        text, files = str(result["content"]), result.get("files", ())
        out = [_assistant(fence(text), metadata)] if text or not files else []
        if files:  # beside the fold, where they are seen without opening it
            self._open_calls.clear()
            out += [_assistant(shown_file(one["url"], translator, one["name"]), None) for one in files]
        return out


def _ending(turn: Turn, waiting: str, translator: Translator) -> list[WireMessage]:
    """Return what follows the bubbles: a notice of an empty answer, then a question, the caption, or a wait."""
    out = [_problem(translator(_("The model returned an empty answer.")))] if turn.is_empty else []
    if (call := turn.question) is not None:
        out.append(
            {
                **_assistant(render_question(call, translator), None),
                "options": options(call, turn.run, translator) or None,
            }
        )
    elif turn.note is not None:
        caption = caption_of(turn.note, translator, turn.model_name, turn.model)
        # An answer that was imported or copied has no figures, and can be branched like any other one.
        if caption or turn.versions.answer or (turn.user is not None and has_answer(turn)):
            branches = _branches(turn, translator, alone=not caption)
            before, space, word = caption.rpartition(" ")
            last = (
                f'<span class="last">{word}{branches}</span>'
                if branches and 0 < len(word) < 16 and ">" not in word
                else word + branches
            )
            out.append(_assistant(f'<div class="caption">{before}{space}{last}</div>', None))
    elif turn.note is None and (waiting or turn.is_waiting):
        out.append(_assistant(_waiting(turn, waiting, translator), None))
    return out


def _branches(turn: Turn, translator: Translator, *, alone: bool) -> str:
    """Return the buttons that show the other versions of the turn's answer, and the one that copies the branch.

    They are `alone` if no figures stand before them.
    """
    if turn.user is None:
        return ""
    out = ""
    if (versions := turn.versions.answer) is not None:
        ids, number = ("", *versions.ids, ""), versions.number
        count = f"<span>{number}/{len(versions.ids)}</span>"
        out += _version(ids[number - 1], translator(_("Previous version of the answer")), "older") + count
        out += _version(ids[number + 1], translator(_("Next version of the answer")), "newer")
    name = html.escape(translator(_("Branch from here into a new chat")))
    copy = f'<button type="button" class="copy-branch" value="{turn.user.id}" title="{name}">'
    return f'<span class="branches{" alone" if alone else ""}">{out}{copy}</button></span>'


def _version(entry_id: str, name: str, kind: str) -> str:
    """Return the button that shows the version of the message with this id. It is disabled if there is none."""
    name, state = html.escape(name), "" if entry_id else " disabled"
    return f'<button type="button" class="version {kind}" value="{entry_id}" title="{name}"{state}></button>'


def _waiting(turn: Turn, why: str, translator: Translator) -> str:
    """Return dots, with the reason for the wait if it is known. Otherwise page.js shows how long the wait has been.

    page.js reads a span with the seconds of the wait so far and a number that differs for each wait.
    """
    waited = "" if why else f"<span>{seconds_waited(turn):.1f} {len(turn.bubbles)}</span>"
    name = html.escape(translator(_("waiting for the model")))
    dots = f'<div class="waiting" role="img" aria-label="{name}"><i></i><i></i><i></i>{waited}</div>'
    return dots + (f'<div class="caption" role="status">{html.escape(why)}</div>' if why else "")


def _user_parts(entry: Entry, translator: Translator, formulas: Formulas) -> list[WireMessage]:
    parts: list[WireMessage] = []
    items = content_parts(entry)
    for part, after in zip(items, [*items[1:], None], strict=True):
        if isinstance(part, str):
            parts.append({"type": "text", "text": formulas.asked(shown_text(part, translator))})
        elif isinstance(part, ImageUrl | AudioUrl | DocumentUrl):
            parts.append({"type": "text", "text": shown_file(part.url, translator, attached_name(part, after))})
        elif read := extracted_text_of(part):
            parts.append({"type": "text", "text": shown_extracted_text(read, translator)})
    return parts


def _user(parts: list[WireMessage], metadata: WireMessage | None = None) -> WireMessage:
    """Return a message of the visitor. Gradio hands its metadata to the page's script, which uses the id in it."""
    return {"role": "user", "metadata": metadata, "content": parts, "options": None}


def _problem(text: str) -> WireMessage:
    """Return a message that something went wrong. `text` is HTML."""
    return _assistant(f'<div class="problem" role="alert">{text}</div>', None)


def _question(call: Call) -> str:
    return f'<div class="asked">{html.escape(question(call))}</div>'


def _assistant(text: str, metadata: WireMessage | None) -> WireMessage:
    return {"role": "assistant", "metadata": metadata, "content": [{"type": "text", "text": text}], "options": None}


def _code(value: object) -> str:
    return f"```json\n{json.dumps(value, ensure_ascii=False, indent=2, default=str)}\n```"
