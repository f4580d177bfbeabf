"""The routes of a visitor's conversations as JSON, of temporary ones, and of all that is stored of a visitor.

Every request speaks for one owner, and another owner's conversation answers like a missing one. `docs/http.md`
describes the routes. The middleware refuses changes that pages of other sites request.
"""

import json
import logging
from base64 import b64encode
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Set
from contextlib import aclosing
from dataclasses import asdict
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from starlette.requests import ClientDisconnect

from agent.errors import (
    AgentError,
    Conflict,
    HistoryError,
    InputError,
    Limited,
    LocalModelError,
    NotFound,
    ProviderError,
    files_unusable,
)
from agent.history import MOST_FOLDERS, ConversationHit, Folder, excerpt_parts
from agent.i18n.translator import Translator, translator_for
from agent.models.families import LONGEST_NAME
from agent.rendering.html import without_mark_signs
from agent.rendering.markdown import to_blocks
from agent.responses import fix_surrogates
from agent.system.request_queue import RequestQueue, acting_for
from agent.system.threads import LOOKS, run_to_completion
from agent.web.chat.cited_passages import CitedPassages
from agent.web.chat.conversation_list import PAGE, ConversationList, ListRow
from agent.web.chat.conversations import Conversations
from agent.web.chat.folders import reserve_folder
from agent.web.chat.own_data import OwnData, OwnDataSummary
from agent.web.chat.temporary import TemporaryChats
from agent.web.chat.turns import newest_turns, plain_texts
from agent.web.chat.views import WINDOW, ChatViews
from agent.web.heavy_work import (
    HeavyResponse,
    RequestLimit,
    RequestSlot,
    TooManyRequests,
    count_request,
    result_unless_gone,
)
from agent.web.middleware.requests import SENTENCES, RequestRefused, parse_object
from agent.web.sending import visitor_of
from agent.web.ui.page_text import FOLDERS, translated
from agent.web.unsent_files import UnsentFiles

MAX_BODY = 4096
"""Bytes of a body, which has at most a title and a pin."""
MAX_FOLDER_BODY = 32_768
"""Bytes of the body with a folder, whose instructions are its longest part."""
MAX_PASSAGE_BODY = 16_384
"""Bytes of the body that asks for a passage: 700 characters and the name of a document."""
MAX_MARKDOWN_BODY = 65_536
"""Bytes of a text in Markdown that is shown."""
MAX_QUERY = 200
"""Characters of a query that are searched for."""
MAX_OFFSET = 1_000_000
CURRENT = "current"
"""Stands for the id of the conversation with which a visitor goes on."""
MAX_BUBBLES = 1000
"""The most bubbles of one answer."""
PIECE = 1 << 16
"""Characters of a text that are encoded at once."""
NO_STORE = {"cache-control": "no-store"}
LOOKS_AT_ONCE = 2
"""Chats of which turns are read and rendered at once, one for each visitor. Others wait, and visitors take turns."""
log = logging.getLogger(__name__)
STATUS = {NotFound: 404, Conflict: 409, InputError: 400, Limited: 429, HistoryError: 503, LocalModelError: 503}
PROVIDER_STATUS = {
    **{"key": 403, "access": 403, "unknown_model": 404, "quota": 429, "rate_limit": 429, "overloaded": 503},
    **{"context": 400, "refusal": 400, "unsupported": 400},
}
"""The HTTP status of each kind of a model server's failure. All others are 502."""

Handler = Callable[[Request, str], Coroutine[Any, Any, Any]]


def status_of(error: AgentError) -> int:
    """Return the HTTP status of an answer with this error."""
    if isinstance(error, ProviderError):
        return PROVIDER_STATUS.get(error.kind, 502)
    return next((status for kind, status in STATUS.items() if isinstance(error, kind)), 500)


def add_routes(
    app: FastAPI,
    owner_of: Callable[[Request], str],
    routes: Iterable[tuple[str, str, Handler]],
    limit: RequestLimit | None = None,
) -> None:
    """Add routes, each with its path, method and handler, of whose value the answer is made. `limit` counts requests.

    `owner_of` returns the owner that a request speaks for.
    """
    for path, method, handler in routes:
        app.add_api_route(path, answering(handler, owner_of, limit), methods=[method])


def answering(
    handler: Handler, owner_of: Callable[[Request], str], limit: RequestLimit | None = None
) -> Callable[[Request], Awaitable[Response]]:
    """Return a route that answers with the value of the handler."""

    async def answer(request: Request) -> Response:
        owner = owner_of(request)
        if not owner:
            return _error(401, "Send the cookie that the page has set.")
        count_request(limit, request, owner)
        try:
            # A request that only reads ends when its client goes away.
            value = await (
                result_unless_gone(request, handler(request, owner))
                if request.method == "GET"
                else handler(request, owner)
            )
        except ClientDisconnect:
            return Response(status_code=499)
        except RequestRefused as refused:
            sentence = SENTENCES.get(refused.status, SENTENCES[400])
            return _error(refused.status, translator_for(request.headers)(sentence))
        if isinstance(value, Response):
            return value
        if value is None:
            return Response(status_code=204, headers=NO_STORE)
        return JSONResponse(value, headers=NO_STORE)

    return answer


async def answer_error(request: Request, error: Exception) -> Response:
    """Answer a request to any route that raised an `AgentError` or an `OSError`."""
    known = known_error(error)
    answer = _error(status_of(known), translator_for(request.headers)(known.text))
    if isinstance(known, TooManyRequests):
        answer.headers["retry-after"] = str(known.seconds)
    return answer


def known_error(error: Exception) -> AgentError:
    """Return the error that a client is told. The log has the others."""
    if isinstance(error, AgentError):
        return error
    log.error("a request failed", exc_info=error)
    return files_unusable(error) if isinstance(error, OSError) else AgentError(SENTENCES[500])


class ConversationRoutes:
    """The routes. `owner_of` returns the owner that a request speaks for. `limit` is None on a private page."""

    def __init__(
        self,
        conversations: ConversationList,
        passages: CitedPassages,
        views: ChatViews,
        owner_of: Callable[[Request], str],
        limit: RequestLimit | None = None,
    ) -> None:
        self._list, self._passages, self._views, self._owner_of = conversations, passages, views, owner_of
        self._limit, self._looking = limit, RequestQueue(LOOKS_AT_ONCE, slots_per_visitor=1)
        self._reading = RequestQueue(LOOKS_AT_ONCE, slots_per_visitor=1)
        """For what reads many pages of a chat, each of which is a look: the looks of others come in between."""
        self._searching = RequestQueue(LOOKS_AT_ONCE, slots_per_visitor=1)

    def add_to(self, app: FastAPI) -> None:
        """Add the routes to the application."""
        one = "/conversations/{id_}"
        read = [("/conversations", "GET", self._page_or_search), (one, "GET", self._row_of)]
        add_routes(app, self._owner_of, read)  # they count what costs much
        counted = [
            (one, "PATCH", self._change),
            (one, "DELETE", self._delete),
            (one + "/restore", "POST", self._restore),
            (one + "/messages/{entry}", "GET", self._place),
            (one + "/messages/{entry}/text", "GET", self._text),
            (one + "/branches", "GET", self._branches),
            (one + "/search", "GET", self._find),
            (one + "/passage", "POST", self._passage),
            ("/markdown", "POST", self._markdown),
        ]
        add_routes(app, self._owner_of, counted, self._limit)

    async def _page_or_search(self, request: Request, owner: str) -> Any:
        query = request.query_params.get("q", "").strip()
        if query:
            count_request(self._limit, request, owner)
            query = query[:MAX_QUERY]
            with acting_for(owner):
                async with self._searching.slot():
                    hits = await self._list.search(owner, query)
            return {"hits": [_row(row) | _hit(hit, query) for row, hit in hits]}
        if folders := [one for one in request.query_params.getlist("folder") if one][:MOST_FOLDERS]:
            count_request(self._limit, request, owner)
            with acting_for(owner):
                async with self._looking.slot():
                    return {"conversations": [_row(row) for row in await self._list.in_folders(owner, folders)]}
        offset = _number(request.query_params.get("offset"), 0)
        page = await self._list.page(owner, offset=offset, limit=_number(request.query_params.get("limit"), PAGE))
        return {
            "pinned": [_row(row) for row in page.pinned],
            "conversations": [_row(row) for row in page.rows],
            "next": page.next_offset,
        }

    async def _row_of(self, request: Request, owner: str) -> Any:
        asked = _id(request)
        if asked == CURRENT:
            asked = await self._list.current(owner, request.query_params.get("viewed", ""))
        if asked is None:
            return None
        row = _row(await self._list.row(owner, asked))
        return row if request.query_params.get("format") != "blocks" else await self._turns(request, owner, row)

    async def _turns(self, request: Request, owner: str, row: dict[str, Any]) -> dict[str, Any]:
        """Return the newest turns, or those before a message, and where the page reads the answer being written."""
        count_request(self._limit, request, owner)
        before = request.query_params.get("before", "")
        translator = translator_for(request.headers)
        window = min(max(_number(request.query_params.get("bubbles"), WINDOW), WINDOW), MAX_BUBBLES)
        with acting_for(owner):
            async with self._looking.slot():
                view = await self._views.with_turn(owner, str(row["id"]), before, window)
                turns, has_earlier = await newest_turns(view, window, translator)
        shown: dict[str, Any] = {"turns": turns, "has_earlier": has_earlier}
        if before:
            return shown
        run = view.live.run_id if view.live else ""
        return row | shown | {"run": run, "is_complete": view.is_complete, "hidden": view.hidden}

    async def _text(self, request: Request, owner: str) -> Any:
        """Return what a visitor typed and the answer. An import can have made them long."""
        with acting_for(owner):
            async with self._looking.slot():
                turn = await self._views.turn(owner, _id(request), str(request.path_params["entry"]))
                texts = await LOOKS.run(plain_texts, turn)
        return HeavyResponse(
            _joined_steps(_json_pieces(texts)), RequestSlot(lambda: None), NO_STORE, "application/json"
        )

    async def _place(self, request: Request, owner: str) -> Any:
        place = await self._list.find_message(owner, _id(request), str(request.path_params["entry"]))
        return {"message": place.prompt, "is_answer": place.is_answer, "is_shown": place.is_shown}

    async def _branches(self, request: Request, owner: str) -> Any:
        """Return the tree of the versions in a chat."""
        with acting_for(owner):
            async with self._reading.slot():
                rows, is_cut = await self._views.tree(owner, _id(request), self._looking.slot)
        return {"branches": [asdict(row) for row in rows], "is_cut": is_cut}

    async def _find(self, request: Request, owner: str) -> Any:
        """Return the messages of the shown branch that have a text."""
        query, before = request.query_params.get("q", "").strip()[:MAX_QUERY], request.query_params.get("before", "")
        if not query:
            raise InputError("Send the text to look for as q.")
        with acting_for(owner):
            async with self._reading.slot():
                hits, after = await self._views.find(owner, _id(request), query, before, self._looking.slot)
        return {"hits": [asdict(hit) for hit in hits], "next": after}

    async def _passage(self, request: Request, owner: str) -> Any:
        given = await json_object(request, MAX_PASSAGE_BODY)
        document, page, passage = given.pop("document", None), given.pop("page", None), given.pop("passage", "")
        if given or not (isinstance(document, str) and isinstance(passage, str) and type(page) in (int, type(None))):
            raise InputError('Send {"document": "report.pdf", "page": 3, "passage": "..."}.')
        finding = self._passages.find(owner, _id(request), document, page, passage)
        found = await result_unless_gone(request, finding)
        picture = b64encode(found.picture).decode()
        return {
            "document": found.document,
            "page": found.page,
            "count": found.count,
            "is_found": found.is_found,
            **({"picture": picture} if picture else {"text": found.text}),
        }

    async def _markdown(self, request: Request, owner: str) -> Any:
        """Return a text in Markdown as an answer would show it. Nothing is kept of it. A client that goes ends it."""
        given = await json_object(request, MAX_MARKDOWN_BODY)
        text = given.pop("text", None)
        if given or not isinstance(text, str):
            raise InputError('Send {"text": "# A title"}.')

        async def shown() -> list[str]:
            async with self._looking.slot():
                return await LOOKS.run(to_blocks, without_mark_signs(fix_surrogates(text)))

        with acting_for(owner):
            return {"blocks": await result_unless_gone(request, shown())}

    async def _change(self, request: Request, owner: str) -> Any:
        given = await json_object(request)
        title, pinned, folder = given.pop("title", None), given.pop("pinned", None), given.pop("folder", None)
        if (
            given
            or not isinstance(pinned, bool | None)
            or not all(isinstance(one, str | None) for one in (title, folder))
        ):
            raise InputError('Send {"title": "...", "pinned": true, "folder": "..."}, or some of them.')
        if folder is not None:
            await self._list.move(owner, _id(request), folder)
        return _row(await self._list.change(owner, _id(request), title=title, pinned=pinned))

    async def _delete(self, request: Request, owner: str) -> Any:
        await self._list.delete(owner, _id(request))

    async def _restore(self, request: Request, owner: str) -> Any:
        return _row(await self._list.restore(owner, _id(request)))


async def _joined_steps(pieces: Iterator[str]) -> AsyncGenerator[str]:
    async with aclosing(LOOKS.steps(pieces)) as steps:
        async for batch in steps:
            yield "".join(batch)


def _json_pieces(texts: Mapping[str, str]) -> Iterator[str]:
    """Yield a JSON object of texts in pieces, because a long one would hold up everything while it is encoded."""
    for number, (name, text) in enumerate(texts.items()):
        yield f'{"," if number else "{"}{json.dumps(name)}:"'
        for at in range(0, len(text), PIECE):
            yield json.dumps(text[at : at + PIECE], ensure_ascii=False)[1:-1]
        yield '"'
    yield "}"


def _id(request: Request) -> str:
    return str(request.path_params["id_"])


def _row(row: ListRow) -> dict[str, Any]:
    return asdict(row) | {"updated_at": row.updated_at.isoformat()}


def _hit(hit: ConversationHit, query: str) -> dict[str, Any]:
    return {"excerpt": [*excerpt_parts(hit, query)], "in_title": hit.entry_id is None, "entry": hit.entry_id}


def _number(text: str | None, default: int) -> int:
    """Return a number of the query. Raises `InputError`."""
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 8) or int(text) > MAX_OFFSET:
        raise InputError("offset and limit are whole numbers from 0.")
    return int(text)


async def json_object(request: Request, most: int = MAX_BODY) -> dict[str, Any]:
    """Return the JSON object in the body, which has at most this many bytes. Raises `InputError`."""
    body = bytearray()
    try:
        async for piece in request.stream():
            body += piece
            if len(body) > most:
                raise InputError(f"The body is longer than {most} bytes.")
        return parse_object(body)
    except ClientDisconnect as error:
        raise RequestRefused(400) from error
    except RequestRefused as error:
        raise InputError("The body is not a JSON object.") from error


def _error(status: int, detail: str) -> Response:
    return JSONResponse({"detail": fix_surrogates(detail)}, status_code=status, headers=NO_STORE)


def add_temporary_route(app: FastAPI, chats: TemporaryChats, owner_of: Callable[[Request], str]) -> None:
    """Add the routes. `POST` answers 404 if the chat is over, or is another visitor's."""

    async def keep(request: Request, owner: str) -> Any:
        chats.keep(owner, str(request.path_params["id_"]))

    async def leave(request: Request, owner: str) -> Any:
        chats.leave(owner, str(request.path_params["id_"]))

    add_routes(app, owner_of, [("/temporary/{id_}", "POST", keep), ("/temporary/{id_}", "DELETE", leave)])


class FolderRoutes:
    """The routes. `owner_of` returns the owner that a request speaks for. `limit` is None on a private page."""

    def __init__(
        self, conversations: Conversations, owner_of: Callable[[Request], str], limit: RequestLimit | None = None
    ) -> None:
        self._conversations, self._folders = conversations, conversations.runs.folders
        self._owner_of, self._limit = owner_of, limit

    def add_to(self, app: FastAPI) -> None:
        """Add the routes to the application."""
        one = "/folders/{id_}"
        routes = [("/folders", "GET", self._all), ("/folders", "POST", self._add)]
        routes += [(one, "PATCH", self._change), (one, "DELETE", self._remove)]
        add_routes(app, self._owner_of, routes, self._limit)

    async def _all(self, request: Request, owner: str) -> Any:
        """Return the folders, and the texts with which the page shows them."""
        translator = translator_for(request.headers)
        folders = [self._fields(one, translator) for one in await self._folders.all(owner)]
        return {"folders": folders, "said": translated(FOLDERS, translator.language)}

    async def _add(self, request: Request, owner: str) -> Any:
        folder = Folder(**await self._given(request, owner, {"name"}))
        await self._folders.add(owner, folder)
        return await self._one(request, owner, folder.id)

    async def _change(self, request: Request, owner: str) -> Any:
        await self._folders.change(owner, _id(request), **await self._given(request, owner, set()))
        return await self._one(request, owner, _id(request))

    async def _remove(self, request: Request, owner: str) -> Any:
        await self._folders.remove(owner, _id(request))

    async def _given(self, request: Request, owner: str, needed: Set[str]) -> dict[str, str]:
        """Return the fields of a folder in the body, for which there is room. Raises `InputError` and `Limited`."""
        given = await json_object(request, MAX_FOLDER_BODY)
        known = {"name", "instructions", "model"}
        if (
            not given.keys() <= known
            or not needed <= given.keys()
            or not all(isinstance(one, str) for one in given.values())
        ):
            raise InputError('Send {"name": "...", "instructions": "...", "model": "..."}.')
        if len(given.get("model", "")) > LONGEST_NAME:
            raise InputError("The name of the model is too long.")
        await reserve_folder(self._conversations.quota, visitor_of(request, owner), *given.values())
        return given

    async def _one(self, request: Request, owner: str, id_: str) -> dict[str, str]:
        return self._fields(await self._folders.get(owner, id_), translator_for(request.headers))

    def _fields(self, folder: Folder, translator: Translator) -> dict[str, str]:
        name = translator(self._conversations.models.name_of(folder.model)) if folder.model else ""
        return asdict(folder) | {"model_name": name}


OWN_DATA = "/own-data"


class OwnDataRoutes:
    """The routes. `owner_of` returns the owner that a request speaks for. `limit` is None on a private page."""

    def __init__(
        self,
        own_data: OwnData,
        unsent_files: UnsentFiles,
        owner_of: Callable[[Request], str],
        limit: RequestLimit | None = None,
    ) -> None:
        self._own_data, self._unsent_files = own_data, unsent_files
        self._owner_of, self._limit = owner_of, limit

    def add_to(self, app: FastAPI) -> None:
        """Add the routes to the application."""
        routes = [(OWN_DATA, "GET", self._summary), (OWN_DATA, "DELETE", self._delete_all)]
        add_routes(app, self._owner_of, routes, self._limit)

    async def _summary(self, request: Request, owner: str) -> Any:
        return self._fields(owner, await self._own_data.summary(owner))

    async def _delete_all(self, request: Request, owner: str) -> Any:
        found = OwnDataSummary()

        async def delete() -> None:
            nonlocal found
            await self._unsent_files.remove_all(owner)
            found = await self._own_data.delete_all(owner)

        await run_to_completion(delete())
        return self._fields(owner, found)

    def _fields(self, owner: str, found: OwnDataSummary) -> dict[str, Any]:
        expires_at = found.expires_at.isoformat() if found.expires_at else None
        return asdict(found) | {"unsent_files": self._unsent_files.number_of(owner), "expires_at": expires_at}
