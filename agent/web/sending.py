"""Sends a visitor's message with its uploads: checks whose files they are, and protects them while they are read."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.types import Scope

from agent.errors import InputError
from agent.files.transcribe import ReportProgress
from agent.i18n.text import LocalizedText, _
from agent.models.weights import Status
from agent.web.chat.answers import LiveRun
from agent.web.chat.choices import Choices
from agent.web.chat.conversations import Conversations, OtherModels
from agent.web.chat.sent_message import NO_MESSAGE_ID, MessageId
from agent.web.chat.visitor import Visitor
from agent.web.client_address import client_address
from agent.web.middleware.isolation import visitor_id_of
from agent.web.unsent_files import given_name

PROGRESS_SECONDS = 0.5
"""Seconds before progress is shown, and between checks whether the page is gone."""
SAMPLES = Path(__file__).parent / "ui" / "samples"
EXAMPLE_FILES = {
    name: str(SAMPLES / file)
    for name, file in {"picture": "chart.png", "sound": "notes.wav", "document": "house-rules.pdf"}.items()
}
"""The files of the examples by their names, with which every visitor can send them."""

PROGRAM_FAILED = _("Something went wrong in this program; its log has the details.")


class Submission:
    """Runs `work`, which reports its progress. Owns its task."""

    def __init__(self, work: Callable[[ReportProgress], Awaitable[dict[str, Any]]]) -> None:
        self._status: Status | None = None
        self._task = asyncio.ensure_future(work(self._report))

    async def progress(self) -> AsyncIterator[Status | None]:
        """Yield what is being read, or None if nothing is, repeatedly until all is done."""
        while not (await asyncio.wait({self._task}, timeout=PROGRESS_SECONDS))[0]:
            yield self._status

    def stop(self) -> None:
        """Cancel while files are being read. The steps after that are short."""
        if self._status is not None:
            self._task.cancel()

    @property
    def stopped(self) -> bool:
        """True if the work was cancelled."""
        return self._task.cancelled()

    def result(self) -> dict[str, Any]:
        """Return the result of the work, or raise its exception."""
        return self._task.result()

    async def aclose(self) -> None:
        """Cancel the work if it has not ended."""
        self._task.cancel()
        await asyncio.wait({self._task})
        # The exception of the task holds this frame's callers and everything that the visitor sent. This reference
        # cycle would keep megabytes until the next full garbage collection.
        del self._task

    def _report(self, status: Status | None) -> None:
        self._status = status


def sending_text(files: Sequence[str], *, is_ready: bool) -> LocalizedText:
    """Return what is said of a message with these uploads that is not stored yet. `is_ready`: a model is available."""
    if not is_ready:
        return _("Your message is sent as soon as a model is ready.")
    names = ", ".join(given_name(Path(file)) for file in files)
    return _("Preparing {names}…", names=names) if files else _("Sending…")


async def send_message(
    conversations: Conversations,
    visitor: Visitor,
    conversation: str | None,
    value: Mapping[str, Any],
    choices: Choices,
    scope: Scope,
    *,
    report: ReportProgress | None = None,
    message: MessageId = NO_MESSAGE_ID,
    others: OtherModels | None = None,
    folder: str = "",
) -> tuple[str | None, LiveRun | None]:
    """Send a message with the files of the visitor of this request. Return its conversation, and the live answer.

    `value` is `{"text": ..., "files": [paths of uploads, or names of EXAMPLE_FILES]}`. The answer is None if the
    message answered one of several questions, or if it was sent again and is stored already. `report` is called while
    files are read. `others` are the other models that answer it. A new conversation is in `folder`.

    Raises an `AgentError`; then nothing was stored.
    """
    if found := await conversations.find_sent(visitor.owner, conversation, message):
        return found, None
    given: list[Any] = value.get("files") or []
    files = [EXAMPLE_FILES.get(str(file), str(file)) for file in given]
    if not owns_files(files, scope):
        raise InputError(_("An attachment could not be read. Attach it again."))
    value = {**value, "files": files}
    if not files:
        live = await conversations.send(visitor, conversation, value, choices, report, message, others, folder)
    else:
        uploads = scope["state"]["uploads"]
        with uploads.using([Path(file) for file in files]):  # housekeeping must not remove them before they are read
            live = await conversations.send(visitor, conversation, value, choices, report, message, others, folder)
        uploads.remove(files, visitor_id_of(scope))  # the message stores what was sent
    return (live.conversation_id if live else conversation), live


def visitor_of(request: Request, owner: str, login: str | None = None) -> Visitor:
    """Return the visitor of a request to a route of ours, whose owner is known, with the token of a login."""
    return Visitor(
        owner=owner,
        guest=visitor_id_of(request.scope) is None,
        address=client_address(request.scope),
        login=login,
        gpu_token=request.headers.get("x-ip-token"),
    )


async def add_upload(name: str, data: bytes, scope: Scope) -> str:
    """Store these bytes as if this visitor had uploaded them. Return their path. Raises `Limited`."""
    visitor = visitor_id_of(scope)
    path = str(await scope["state"]["uploads"].add(visitor, name, data))
    scope["state"]["isolation"].uploads.add(path, visitor)
    return path


def owns_files(files: Sequence[str], scope: Scope) -> bool:
    """Return True if the visitor of this request uploaded the files, or if they are files of the examples."""
    visitor, isolation = visitor_id_of(scope), scope["state"]["isolation"]
    return all(file in EXAMPLE_FILES.values() or isolation.uploads.owns(file, visitor) for file in files)
