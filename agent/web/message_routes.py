"""The routes of the composer and of messages: send, edit, take back, stop, choose, fetch a link. See docs/http.md.

The page and programs send messages with them, with the same owners, permits and limits. An answer is read at
`/runs/{id}/events`.
"""

import asyncio
import json
import logging
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import PurePosixPath
from time import monotonic
from typing import Annotated, Any, TypeVar
from urllib.parse import unquote, urlsplit

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import ClientDisconnect

from agent.errors import Conflict, HistoryError, InputError, NotFound, ToolError
from agent.fetch import Guard
from agent.files.images import KINDS
from agent.files.transcribe import ReportProgress
from agent.history import Vote
from agent.i18n.text import LocalizedText, _
from agent.i18n.translator import Translator, translator_for
from agent.models.families import LONGEST_NAME
from agent.rendering.steps import localized_error
from agent.system.media_types import SUFFIXES, detect_mime
from agent.system.request_queue import RequestQueue, acting_for
from agent.system.threads import LOOKS
from agent.tools.function_tools import PromptInfo, PromptSource
from agent.web.chat.answers import RESTARTING, LiveRun
from agent.web.chat.attachments import check_length
from agent.web.chat.choices import Choices, effort_of, requested_choices, usual_temperature
from agent.web.chat.conversations import CONTINUE, Conversations, OtherModels
from agent.web.chat.model_window import FULL
from agent.web.chat.questions import QuestionId
from agent.web.chat.rate_limit import RateLimiter
from agent.web.chat.ratings import MOST_REASON, RATINGS_EACH, RATINGS_PER_ADDRESS, Ratings
from agent.web.chat.sent_message import MessageId, SentFile
from agent.web.chat.side_by_side import MOST_MODELS, pairs, tally, votes_table
from agent.web.chat.temporary_stores import is_temporary
from agent.web.chat.visitor import Visitor
from agent.web.conversation_routes import LOOKS_AT_ONCE, NO_STORE, add_routes, known_error, status_of
from agent.web.heavy_work import HeavyResponse, RequestLimit, RequestSlot, count_request, result_unless_gone
from agent.web.middleware.isolation import visitor_id_of
from agent.web.middleware.requests import EventBodies
from agent.web.sending import Submission, add_upload, send_message, sending_text, visitor_of

log = logging.getLogger(__name__)
NDJSON = "application/x-ndjson"
NO_RATINGS = Ratings(None)
SIGN_SECONDS = 15.0
"""Seconds between two signs of life while a message waits for a step. Proxies cut a request that is silent for 60."""


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _MessageBody(_Body):
    settings: dict[str, Any] = {}


class _Question(_Body):
    run: str
    call: str


class _Message(_MessageBody):
    text: str = ""
    files: list[str] = []
    id: Annotated[str, Field(pattern=r"^([0-9a-f]{32})?$")] = ""
    again: bool = False
    question: _Question | None = None
    temporary: bool = False
    remember: bool = False
    compare: list[dict[str, Any]] = []
    each_from_own: bool = True
    blind: bool = False
    folder: Annotated[str, Field(pattern=r"^([0-9a-f]{32})?$")] = ""


class _Vote(_MessageBody):
    choice: str


class _Rating(_MessageBody):
    good: bool
    reason: Annotated[str, Field(max_length=MOST_REASON)] = ""
    text: bool = False


class _Stop(_MessageBody):
    run: str = ""


class _Steer(_MessageBody):
    text: str
    id: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]


class _Edit(_MessageBody):
    text: str


class _Continue(_MessageBody):
    run: str = ""


class _Link(_Body):
    url: str


class _Prompt(_Body):
    server: str
    name: str
    arguments: dict[str, str] = {}


_KNOWN: dict[type[_Body], str] = {
    _Message: '{"text": "...", "files": ["..."], "id": "...", "again": true, "temporary": true,'
    ' "remember": true,'
    ' "compare": [{"model": "..."}], "each_from_own": true, "blind": true, "folder": "...",'
    ' "question": {"run": "...", "call": "..."}, "settings": {"model": "..."}}',
    _Vote: '{"choice": "0"}',
    _Rating: '{"good": true, "reason": "...", "text": false}',
    _Stop: '{"run": "..."} or no body',
    _Steer: '{"text": "...", "id": "..."}',
    _Edit: '{"text": "...", "settings": {"model": "..."}}',
    _Link: '{"url": "..."}',
    _Continue: '{"settings": {"model": "..."}} or {"run": "..."}',
    _Prompt: '{"server": "...", "name": "...", "arguments": {"...": "..."}}',
    _MessageBody: '{"settings": {"model": "..."}}',
}
B = TypeVar("B", bound=_Body)


class MessageRoutes:
    """The routes. `owner_of` returns the owner that a request speaks for, and `login_of` the token of its login.

    `limit` counts their requests. It is None on a private page. `ratings` is the owner's file of ratings, which are
    counted once more.
    """

    def __init__(
        self,
        conversations: Conversations,
        owner_of: Callable[[Request], str],
        login_of: Callable[[Request], Awaitable[str | None]],
        limit: RequestLimit | None = None,
        ratings: Ratings = NO_RATINGS,
    ) -> None:
        self._ratings = ratings
        self._conversations, self._owner_of, self._login_of = conversations, owner_of, login_of
        self._bodies, self._limit = EventBodies(limit), limit
        self._looking = RequestQueue(LOOKS_AT_ONCE, slots_per_visitor=1)
        self._rating = RequestLimit(RATINGS_EACH, RATINGS_PER_ADDRESS) if limit is not None else None

    def add_to(self, app: FastAPI) -> None:
        """Add the routes to the application."""
        chat = "/conversations/{id_}"
        message = chat + "/messages/{entry}"
        routes = [
            ("/conversations", "POST", self._begin),
            (chat + "/messages", "POST", self._send),
            (chat + "/steer", "POST", self._steer),
            (chat + "/stop", "POST", self._stop),
            (chat + "/window", "GET", self._window),
            (chat + "/summary", "POST", self._summarize),
            (chat + "/summary", "DELETE", self._drop_summary),
            (message, "PATCH", self._edit),
            (message, "DELETE", self._take_back),
            (message + "/retry", "POST", self._retry),
            (message + "/continue", "POST", self._continue),
            (message + "/show", "POST", self._show),
            (message + "/copy", "POST", self._copy),
            (chat + "/branches/{entry}", "DELETE", self._erase),
            (message + "/answer", "POST", self._write),
            (message + "/vote", "POST", self._vote),
            (message + "/rating", "POST", self._rate),
            ("/votes", "GET", self._votes),
        ]
        add_routes(app, self._owner_of, routes, self._limit)

    async def _begin(self, request: Request, owner: str) -> Any:
        return await self._answer(request, owner, None)

    async def _send(self, request: Request, owner: str) -> Any:
        given = str(request.path_params["id_"])
        # `get_or_begin` says what is right for a temporary chat that is over.
        return await self._answer(request, owner, given if is_temporary(given) else await self._id(request, owner))

    async def _answer(self, request: Request, owner: str, conversation: str | None) -> Any:
        """Send a message. A client that accepts NDJSON gets the progress of reading files, line by line."""
        sent, visitor = await self._read(request, _Message), await self._visitor(request, owner)
        if (sent.question is not None and (sent.files or conversation is None)) or (sent.temporary and conversation):
            raise InputError(
                "An answer to a question has no files, and a temporary chat begins with its first message."
            )
        if sent.folder and (sent.temporary or conversation):
            raise InputError("Only a new chat that is kept begins in a folder.")
        choices = self._choices(request, visitor, sent)
        if sent.remember:
            self._conversations.remember(visitor, choices)

        async def work(report: ReportProgress) -> dict[str, Any]:
            return await self._store(request, visitor, conversation, sent, choices, report)

        if NDJSON in request.headers.get("accept", ""):
            ready = self._conversations.model_for(owner, choices.model) is not None
            lines = progress_lines(work, sending_text(sent.files, is_ready=ready), translator_for(request.headers))
            return HeavyResponse(lines, RequestSlot(lambda: None), NO_STORE, NDJSON)
        submission = Submission(work)
        try:
            async for _status in submission.progress():
                if await request.is_disconnected():
                    submission.stop()
            return Response(status_code=499) if submission.stopped else submission.result()
        finally:
            await submission.aclose()

    async def _store(
        self,
        request: Request,
        visitor: Visitor,
        conversation: str | None,
        sent: _Message,
        choices: Choices,
        report: ReportProgress,
    ) -> dict[str, Any]:
        """Store the message and begin the answer."""
        chats, temporary, message = self._conversations, self._conversations.temporary, MessageId(sent.id, sent.again)
        if sent.question is not None:
            pressed = QuestionId(sent.question.run, sent.question.call)
            return _begun(conversation, await chats.answer(visitor, conversation, sent.text, choices, pressed))
        if sent.temporary:
            for chat in temporary.ids(visitor.owner):
                if await chats.find_sent(visitor.owner, chat, message):
                    return _begun(chat, None)
            conversation = (await temporary.begin(visitor)).id
        value, scope = {"text": sent.text, "files": sent.files}, request.scope
        with temporary.beginning(visitor.owner, str(conversation)) if sent.temporary else nullcontext():
            others = self._others(request, visitor, sent)
            found, live = await send_message(
                *(chats, visitor, conversation, value, choices, scope),
                report=report,
                message=message,
                others=others,
                folder=sent.folder,
            )
            together = chats.live_runs.together.get(found or "") if others else None
            return _begun(found, live) | ({"runs": [one.run_id for one in together.answers]} if together else {})

    def _others(self, request: Request, visitor: Visitor, sent: _Message) -> OtherModels | None:
        """Return the other models that answer a message, if there are any."""
        if not sent.compare:
            return None
        bodies = [_MessageBody(settings=settings) for settings in sent.compare[:MOST_MODELS]]
        return OtherModels([self._choices(request, visitor, body) for body in bodies], sent.each_from_own, sent.blind)

    async def _steer(self, request: Request, owner: str) -> Any:
        """Send the running answer a message, and wait until its model gets it, or the answer has ended without."""
        sent, visitor = await self._read(request, _Steer), await self._visitor(request, owner)
        conversation = await self._id(request, owner)
        steered = self._conversations.steer(visitor, conversation, sent.text, MessageId(sent.id))
        steering = asyncio.ensure_future(steered)
        with RequestSlot(steering.cancel) as place:
            await result_unless_gone(request, asyncio.wait([steering], timeout=SIGN_SECONDS))
            if steering.done():
                return {"steered": steering.result()}
            return HeavyResponse(_signs_until(steering), place, NO_STORE, "application/json")

    async def _stop(self, request: Request, owner: str) -> Any:
        """Stop the answer, or with a run only one of those that stand side by side."""
        stop, conversation = await self._read(request, _Stop), await self._id(request, owner)
        if not stop.run:
            return await self._conversations.running.stop([conversation], owner)
        found = await self._conversations.running.find(stop.run, owner)
        if found is not None and found.conversation_id == conversation:
            await found.stop()
        return None

    async def _window(self, request: Request, owner: str) -> Any:
        """Return how the chat fills the window of the model in the query, or of the one that the visitor chose."""
        model = request.query_params.get("model", "")[:LONGEST_NAME]
        choices = self._choices(
            request, await self._visitor(request, owner), _MessageBody(settings={"model": model} if model else {})
        )
        use = await self._conversations.window(owner, await self._id(request, owner), choices)
        if use is None:
            return None
        offer = self._conversations.settings.summaries == "offer" and use.can_summarize and use.share >= FULL
        fields = asdict(replace(use, summary=None))
        del fields["summary"]
        return fields | {"is_offered": offer, "has_summary": use.summary is not None}

    async def _summarize(self, request: Request, owner: str) -> Any:
        body = await self._read(request, _MessageBody)
        visitor, conversation = await self._visitor(request, owner), await self._id(request, owner)
        choices = self._choices(request, visitor, body)
        await result_unless_gone(request, self._conversations.summarize(visitor, conversation, choices))

    async def _drop_summary(self, request: Request, owner: str) -> Any:
        await self._conversations.drop_summary(owner, await self._id(request, owner))

    async def _edit(self, request: Request, owner: str) -> Any:
        edit = await self._read(request, _Edit)
        visitor, where = await self._visitor(request, owner), await self._place(request, owner)
        choices = self._choices(request, visitor, edit)
        editing = self._conversations.edit(visitor, *where, edit.text, choices)
        return _begun(where[0], await result_unless_gone(request, editing))

    async def _take_back(self, request: Request, owner: str) -> Any:
        place = await self._place(request, owner)
        files = list[dict[str, str]]()
        async with aclosing(self._conversations.files_of_last(owner, *place)) as sent:
            async for file in sent:
                path = await add_upload(file.name, file.data, request.scope)
                files.append({"path": path, "name": file.name, "media_type": file.media_type})
        text = await self._conversations.undo(owner, *place)
        return {"text": "" if text == translator_for(request.headers)(CONTINUE) else text, "files": files}

    async def _retry(self, request: Request, owner: str) -> Any:
        body = await self._read(request, _MessageBody)
        visitor, where = await self._visitor(request, owner), await self._place(request, owner)
        again = self._conversations.retry(visitor, *where, self._choices(request, visitor, body))
        return _begun(where[0], await result_unless_gone(request, again))

    async def _continue(self, request: Request, owner: str) -> Any:
        """Continue an answer. With a run, do so because its process was lost, with the choices of that run."""
        body = await self._read(request, _Continue)
        visitor, where = await self._visitor(request, owner), await self._place(request, owner)
        if body.run:
            return _begun(where[0], await self._finish_lost(visitor, where[0], body.run)) | {"asked": False}
        please, choices = translator_for(request.headers)(CONTINUE), self._choices(request, visitor, body)
        live, asked = await self._conversations.continue_answer(visitor, *where, please, choices)
        return _begun(where[0], live) | {"asked": bool(asked)}

    async def _finish_lost(self, visitor: Visitor, conversation: str, run: str) -> LiveRun:
        """Go on with a lost run. A process that goes down answers with 503, so that the page asks another one."""
        try:
            return await self._conversations.finish_lost(visitor, conversation, run)
        except Conflict:
            if not self._conversations.live_runs.is_closing:
                raise
            raise HistoryError(RESTARTING) from None

    async def _write(self, request: Request, owner: str) -> Any:
        written = await self._read(request, _Edit)
        visitor, where = await self._visitor(request, owner), await self._place(request, owner)
        await self._conversations.branches.write(visitor, *where, written.text)

    async def _vote(self, request: Request, owner: str) -> Any:
        vote = await self._read(request, _Vote)
        await self._conversations.vote(owner, *await self._place(request, owner), vote.choice)

    async def _rate(self, request: Request, owner: str) -> Any:
        """Send the owner a rating of an answer. Without the visitor's will, it has no text of the chat."""
        if self._ratings.path is None:
            raise NotFound(_("Answers are not rated here."))
        count_request(self._rating, request, owner)
        rating, where = await self._read(request, _Rating), await self._place(request, owner)
        turn = await self._conversations.views.turn(owner, *where)
        await self._ratings.add(turn, is_good=rating.good, reason=rating.reason, with_text=rating.text)

    async def _votes(self, request: Request, owner: str) -> Any:
        """Return the visitor's votes and their counts, or with `?format=csv` the votes as a table to save."""
        translate, name_of = translator_for(request.headers), self._conversations.models.name_of
        with acting_for(owner):
            async with self._looking.slot():
                votes = await self._conversations.votes(owner)
                names = {model: translate(name_of(model)) for model in {one for vote in votes for one in vote.models}}
                return await LOOKS.run(_votes_response, votes, names, request.query_params.get("format"))

    async def _erase(self, request: Request, owner: str) -> Any:
        await self._conversations.erase(owner, *await self._place(request, owner))

    async def _show(self, request: Request, owner: str) -> Any:
        await self._conversations.branches.choose(owner, *await self._place(request, owner))

    async def _copy(self, request: Request, owner: str) -> Any:
        visitor = await self._visitor(request, owner)
        copying = self._conversations.branches.copy(visitor, *await self._place(request, owner))
        return {"conversation": await result_unless_gone(request, copying)}

    # Helpers

    async def _visitor(self, request: Request, owner: str) -> Visitor:
        return visitor_of(request, owner, await self._login_of(request))

    async def _id(self, request: Request, owner: str) -> str:
        """Return the conversation in the path. Raises `NotFound` if the owner does not have it."""
        return (await self._conversations.list.row(owner, str(request.path_params["id_"]))).id

    async def _place(self, request: Request, owner: str) -> tuple[str, str]:
        """Return the conversation and the message in the path."""
        return await self._id(request, owner), str(request.path_params["entry"])

    def _choices(self, request: Request, visitor: Visitor, body: _MessageBody) -> Choices:
        """Return what the visitor has set, with the settings of this request."""
        options, remembered = dict(body.settings), self._conversations.choices(visitor.owner)
        choices = requested_choices(options.pop("model", remembered.model), options, remembered, elsewhere="model")
        spec = self._conversations.models.get(choices.model)
        if choices.temperature is None and spec and spec.temperature:
            choices = replace(choices, temperature=usual_temperature(spec))  # which the page shows
        return self._conversations.for_model(visitor.owner, choices, translator_for(request.headers))

    async def _read(self, request: Request, kind: type[B]) -> B:
        """Return the body, which can be missing if all its fields can. Raises `InputError` and `RequestRefused`."""
        if "transfer-encoding" not in request.headers and request.headers.get("content-length", "0") == "0":
            return _checked(kind, {})
        async with self._bodies.read(request.scope, request.receive, visitor_id_of(request.scope)) as body:
            return _checked(kind, body)


async def _signs_until(steering: asyncio.Future[bool]) -> AsyncGenerator[str]:
    """Yield the answer to a message that steers, and spaces before it, which JSON allows."""
    while not steering.done():
        yield " "
        await asyncio.wait([steering], timeout=SIGN_SECONDS)
    yield json.dumps({"steered": steering.result()})


async def progress_lines(
    work: Callable[[ReportProgress], Awaitable[dict[str, Any]]], waiting: LocalizedText, translator: Translator
) -> AsyncGenerator[str]:
    """Yield the progress of sending as JSON lines, and its result or error as the last one.

    `waiting` is said while nothing is read. What is being read can be stopped.
    """
    submission = Submission(work)
    try:
        async for status in submission.progress():
            text = translator(waiting if status is None else status.text)
            progress = {"text": text, "done": status and status.done, "can_stop": status is not None}
            yield _line({"type": "progress", **progress})
        yield _line({"type": "done", **submission.result()})
    except Exception as error:
        known = known_error(error)
        yield _line({"type": "error", "status": status_of(known), "detail": translator(known.text)})
    finally:
        submission.stop()
        await submission.aclose()


def _line(value: dict[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False) + "\n"


def _checked(kind: type[B], value: dict[str, Any]) -> B:
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        raise InputError(f"Send {_KNOWN[kind]}.") from error


def _votes_response(votes: Sequence[Vote], names: Mapping[str, str], format_: str | None) -> Response:
    """Return the votes and their counts, or with "csv" the votes as a table to save."""
    if format_ == "csv":
        return Response(votes_table(votes), media_type="text/csv", headers={**NO_STORE, **_saved_as("votes.csv")})
    each = [{"at": one.at.isoformat(), "models": [*one.models], "choice": one.choice} for one in votes]
    value = {"models": tally(votes), "pairs": pairs(votes), "names": names, "votes": each}
    return JSONResponse(value, headers={**NO_STORE, **(_saved_as("votes.json") if format_ == "json" else {})})


def _saved_as(name: str) -> dict[str, str]:
    return {"content-disposition": f'attachment; filename="{name}"'}


def _begun(conversation: str | None, live: LiveRun | None) -> dict[str, Any]:
    """Return the conversation and the run. No run: more questions wait, or the message is stored already."""
    return {"conversation": live.conversation_id if live else conversation, "run": live.run_id if live else None}


LINK_SECONDS = 20.0
PROMPTS_KNOWN_SECONDS = 300.0
"""Seconds for which the list of a server's prompts is known. Reading it can start a process."""
PROMPTS_FAILED_SECONDS = 60.0
"""Seconds for which a server that could not be read is not asked again."""
ACCEPTED_TYPES = ("image/*", "application/octet-stream", "binary/octet-stream")
"""Media types that servers use for images. Some servers label every file as bytes."""


class LinkFetcher:
    """Fetches linked images for visitors, within their limits. `guard` decides which hosts are allowed."""

    def __init__(
        self, guard: Guard, rate_limiter: RateLimiter, *, max_bytes: int, seconds: float = LINK_SECONDS
    ) -> None:
        self._guard, self._rate_limiter, self._max_bytes, self._seconds = guard, rate_limiter, max_bytes, seconds

    async def fetch(self, visitor: Visitor, url: str) -> SentFile:
        """Return the image at `url`. Raises `Limited`, and `InputError` if the guard refuses or it is no image."""
        with self._rate_limiter.reserve_fetch(visitor):
            return await self._fetch(url)

    async def _fetch(self, url: str) -> SentFile:
        got = await self._guard.fetch(url, kinds=ACCEPTED_TYPES, max_bytes=self._max_bytes, seconds=self._seconds)
        found = detect_mime(got.data)
        if found not in KINDS:
            raise InputError(
                _(
                    "The file from {host} can't be opened as an image. Supported: PNG, JPEG, WebP, GIF, HEIC, AVIF.",
                    host=urlsplit(got.url).hostname or "",
                )
            )
        return SentFile(_name(url, found), got.data, found)


def _name(url: str, found: str) -> str:
    """Return the file name: the name in the URL without unsafe characters, with the suffix of the detected type."""
    called = PurePosixPath(unquote(urlsplit(url).path)).name.partition(".")[0]
    stem = re.sub(r"[^\w-]+", "-", called).strip("-")[:60]
    return f"{stem or 'picture'}.{SUFFIXES[found]}"


@dataclass(frozen=True, slots=True)
class _PromptList:
    prompts: Sequence[PromptInfo]
    until: float


async def _read_prompts(name: str, source: PromptSource) -> _PromptList:
    """Return the prompts of a server, or none if it cannot be asked, and until when that is known."""
    try:
        return _PromptList(await source.list_prompts(), monotonic() + PROMPTS_KNOWN_SECONDS)
    except ToolError as error:
        log.warning("the prompts of %s cannot be read: %s", name, error)
    except Exception:  # a library's error about one server must not hide the prompts of the others
        log.exception("the prompts of %s cannot be read", name)
    return _PromptList((), monotonic() + PROMPTS_FAILED_SECONDS)


class ServerPrompts:
    """The prompts of the MCP servers of the page. Each list is kept for `PROMPTS_KNOWN_SECONDS`, for all visitors.

    All servers are read at once, each in a task of its own, which goes on when the client that began it goes away.
    """

    def __init__(self, tools: Iterable[object], rate_limiter: RateLimiter) -> None:
        self._sources = {one.name: one for one in tools if isinstance(one, PromptSource) and one.prompts}
        self._rate_limiter = rate_limiter
        self._lists = dict[str, asyncio.Task[_PromptList]]()

    async def list(self) -> list[dict[str, Any]]:
        """Return the prompts of all servers that can be asked."""
        reading = {name: self._list_of(name, source) for name, source in self._sources.items()}
        if reading:
            await asyncio.wait(reading.values())  # it cancels none of them
        return [{"server": name, **asdict(one)} for name, task in reading.items() for one in task.result().prompts]

    def _list_of(self, name: str, source: PromptSource) -> "asyncio.Task[_PromptList]":
        task = self._lists.get(name)
        if task is None or task.cancelled() or (task.done() and monotonic() >= task.result().until):
            task = self._lists[name] = asyncio.create_task(_read_prompts(name, source), name=f"prompts of {name}")
        return task

    async def text(self, visitor: Visitor, server: str, name: str, arguments: Mapping[str, str]) -> str:
        """Return the text of a prompt. Raises `Limited`, and `InputError` with the server's sentence."""
        if (source := self._sources.get(server)) is None:
            raise NotFound(_("There is no such prompt."))
        with self._rate_limiter.reserve_answer(visitor):  # it can start a process, and counts as a message
            try:
                text = await source.get_prompt(name, arguments)
            except ToolError as error:
                raise InputError(localized_error(str(error).removesuffix("."))) from error
        check_length(text)
        return text


class ComposerRoutes:
    """The routes. `owner_of` returns the owner that a request speaks for. `limit` is None on a private page.

    `login_of` returns the token of a request's login.
    """

    def __init__(
        self,
        conversations: Conversations,
        links: LinkFetcher,
        owner_of: Callable[[Request], str],
        login_of: Callable[[Request], Awaitable[str | None]],
        limit: RequestLimit | None = None,
    ) -> None:
        self._conversations, self._links, self._owner_of, self._login_of = conversations, links, owner_of, login_of
        self._bodies, self._limit = EventBodies(limit), limit
        self._prompts = ServerPrompts(conversations.tools, conversations.runs.rate_limiter)

    def add_to(self, app: FastAPI) -> None:
        """Add the routes to the application."""
        add_routes(app, self._owner_of, [("/pictures", "POST", self._fetch)])  # the fetcher counts
        counted = [
            ("/settings", "PATCH", self._choose),
            ("/prompts", "GET", self._list_prompts),
            ("/prompts", "POST", self._get_prompt),
        ]
        add_routes(app, self._owner_of, counted, self._limit)

    async def _fetch(self, request: Request, owner: str) -> Any:
        """Fetch the picture at a link, as if the visitor had uploaded it. A client that goes away cancels it."""
        async with self._bodies.read(request.scope, request.receive, visitor_id_of(request.scope)) as body:
            url = _checked(_Link, body).url
        visitor = visitor_of(request, owner, await self._login_of(request))
        try:
            picture = await result_unless_gone(request, self._links.fetch(visitor, url))
        except ClientDisconnect:
            return Response(status_code=499)
        path = await add_upload(picture.name, picture.data, request.scope)
        return {"path": path, "name": picture.name, "media_type": picture.media_type, "size": len(picture.data)}

    async def _list_prompts(self, request: Request, owner: str) -> Any:
        return await self._prompts.list()

    async def _get_prompt(self, request: Request, owner: str) -> Any:
        """Return the text of a prompt of a server. A client that goes away ends the request to the server."""
        async with self._bodies.read(request.scope, request.receive, visitor_id_of(request.scope)) as body:
            wanted = _checked(_Prompt, body)
        asking = self._prompts.text(visitor_of(request, owner), wanted.server, wanted.name, wanted.arguments)
        return {"text": await result_unless_gone(request, asking)}

    async def _choose(self, request: Request, owner: str) -> None:
        """Remember what the visitor has set. Raises `AgentError` for an unknown model, and for a wrong value."""
        async with self._bodies.read(request.scope, request.receive, visitor_id_of(request.scope)) as body:
            if not body:
                raise InputError('Send the settings that change, such as {"model": "..."}.')
            options = dict(body)
        model, effort, visitor = options.pop("model", None), options.pop("effort", None), visitor_of(request, owner)
        if model is not None and not (isinstance(model, str) and model.strip()):
            raise InputError("model must be the id or the name of a model.")
        spec = self._conversations.models.find(model.strip()) if model else None
        if effort not in (None, "") and effort_of(effort) is None:
            raise InputError("effort must be a reasoning effort, or empty.")
        if options:
            self._conversations.choose(visitor, options)
        if spec is not None:
            translator = translator_for(request.headers)
            self._conversations.choose_model(visitor, spec, translator)
        if effort is not None:
            self._conversations.choose_effort(visitor, effort_of(effort))
