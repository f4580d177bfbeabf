"""The routes of the voice: what is here, the sound of a sentence, and the words of a recording. See docs/http.md.

A page asks for them when the visitor uses the voice. `/voice` brings its sentences, so that other visits load none.
"""

import asyncio
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response

from agent.errors import InputError, Limited, NotFound
from agent.files.convert import convert_file
from agent.files.transcribe import SPEECH, ReportProgress
from agent.i18n.text import _
from agent.i18n.translator import translator_for
from agent.providers.speech import SpeechServer
from agent.responses import fix_surrogates
from agent.system.media_types import detect_mime
from agent.system.request_queue import acting_for
from agent.system.threads import UPLOADS
from agent.web.chat.attachments import read_file
from agent.web.chat.conversations import Conversations
from agent.web.client_address import client_address
from agent.web.conversation_routes import NO_STORE, add_routes, json_object
from agent.web.heavy_work import (
    HeavyResponse,
    HeavyWork,
    RequestLimit,
    TooManyRequests,
    result_unless_gone,
)
from agent.web.message_routes import NDJSON, progress_lines
from agent.web.middleware.isolation import visitor_id_of
from agent.web.sending import owns_files
from agent.web.ui.page_text import VOICE, translated

MOST_CHARACTERS = 600
"""The longest text that is spoken at once: a page sends a sentence or two."""
MOST_BODY = 16_384
CHARACTERS_COUNTED = 100
"""Characters of spoken text that count as one request, because a server that speaks is paid by them."""
SPOKEN_IN_ALL = 1200
"""Requests a minute of all visitors of a public page together, each for so many characters."""
RECORDINGS_EACH, RECORDINGS_PER_ADDRESS = 12, 40
"""Recordings a minute of one visitor of a public page, and of a network address, that are written down."""


class VoiceRoutes:
    """The routes. `speech` is the server that speaks, if there is one. `owner_of` returns a request's owner.

    On a public page, requests are counted for the visitor and the network address, and spoken text by its length.
    """

    def __init__(
        self, conversations: Conversations, speech: SpeechServer | None, owner_of: Callable[[Request], str]
    ) -> None:
        self._conversations, self._speech, self._owner_of = conversations, speech, owner_of
        is_public = conversations.settings.public is not None
        self._looks, self._asked, self._spoken = (RequestLimit.of_page(public=is_public) for _number in range(3))
        self._spoken_in_all = RequestLimit(per_address=SPOKEN_IN_ALL) if is_public else None
        self._written = RequestLimit(RECORDINGS_EACH, RECORDINGS_PER_ADDRESS) if is_public else None
        self._speaking, self._writing = HeavyWork(32, each=4, always=4), HeavyWork(8, each=1, always=2)

    def add_to(self, app: FastAPI) -> None:
        """Add the routes to the application."""
        add_routes(app, self._owner_of, [("/voice", "GET", self._about)], self._looks)
        add_routes(app, self._owner_of, [("/speech", "POST", self._speak)], self._asked)
        add_routes(app, self._owner_of, [("/dictation", "POST", self._write_down)], self._written)

    async def _about(self, request: Request, owner: str) -> Any:
        """Return what speaks and what writes down here, each by the name that visitors read, and the sentences."""
        translator, why = translator_for(request.headers), ""
        try:
            await self._conversations.transcriber.to_fetch("audio")
        except InputError as error:
            why = translator(error.text)
        return {
            "said": translated(VOICE, translator.language),
            "speaks": self._speech is not None,
            "speaker": self._speech.label if self._speech else "",
            "writer": "" if why else SPEECH.label,
            "why": why,
        }

    async def _speak(self, request: Request, owner: str) -> Any:
        """Return the sound of a text. A client that hangs up ends the request to the server that speaks."""
        given = await json_object(request, MOST_BODY)
        text = given.pop("text", None)
        if given or not isinstance(text, str) or not text.strip() or len(text) > MOST_CHARACTERS:
            raise InputError(f'Send {{"text": "..."}} with at most {MOST_CHARACTERS} characters.')
        if self._speech is None:
            raise NotFound(_("No server that speaks is set up here."))
        address = client_address(request.scope)
        with self._speaking.place(owner, address):
            self._count_spoken(text, owner, address)
            sound, kind = await result_unless_gone(request, self._speech.speak(fix_surrogates(text)))
        return Response(sound, media_type=kind, headers=NO_STORE)

    def _count_spoken(self, text: str, owner: str, address: str | None) -> None:
        """Count the characters of a text. Raises `TooManyRequests`, which counts none of them."""
        if self._spoken is None or self._spoken_in_all is None:
            return
        number = math.ceil(len(text) / CHARACTERS_COUNTED)
        self._spoken_in_all.check("", None, number)
        self._spoken.count(owner, address, number)
        self._spoken_in_all.count("", None, number)

    async def _write_down(self, request: Request, owner: str) -> Any:
        """Write a recording down that the visitor has uploaded, and remove it. The progress comes line by line."""
        given = await json_object(request)
        path = given.pop("path", None)
        if given or not isinstance(path, str):
            raise InputError('Send {"path": "..."}, the path of an upload.')
        if not owns_files([path], request.scope):
            raise InputError(_("An attachment could not be read. Attach it again."))
        try:
            place = self._writing.place(owner, client_address(request.scope))
        except TooManyRequests as error:
            raise Limited(_("This server writes other recordings down at the moment. Try again soon.")) from error

        async def work(report: ReportProgress) -> dict[str, Any]:
            uploads = request.scope["state"]["uploads"]
            try:
                with uploads.using([Path(path)]), acting_for(owner):
                    return {"text": await self._words(Path(path), report)}
            finally:
                uploads.remove([path], visitor_id_of(request.scope))

        lines = progress_lines(work, _("Your speech is being written down…"), translator_for(request.headers))
        return HeavyResponse(lines, place, NO_STORE, NDJSON)

    async def _words(self, path: Path, report: ReportProgress) -> str:
        """Return what is said in a recording. Raises `InputError`."""
        limits = self._conversations.attachment_limits
        data = await UPLOADS.run(read_file, path, self._conversations.settings.max_upload_bytes)
        if not detect_mime(data).startswith("audio/"):
            raise InputError(_("This is no recording."))
        try:
            async with asyncio.timeout(limits.seconds):
                try:
                    converted = await convert_file(data, None)
                except InputError as error:  # its sentences continue one that begins with a name
                    why = _("{name} {reason}.", name=_("The recording"), reason=error.text)
                    raise InputError(why) from error
                text = await self._conversations.transcriber.text_or_nothing(path.name, converted, report)
        except TimeoutError as error:
            raise InputError(_("Writing the recording down took too long. Record a shorter one.")) from error
        if not text:
            raise InputError(_("No speech was heard. Speak closer to the microphone, or choose another one."))
        return text
