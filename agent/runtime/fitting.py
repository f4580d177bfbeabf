"""The messages that a run sends if its agent has a `Compaction`: what is left out, and the summary of it."""

import inspect
import logging
from collections.abc import Sequence
from typing import cast

from pydantic_ai.messages import ModelMessage, ModelResponse, UserPromptPart

from agent.errors import AgentError, reason_of
from agent.files.for_model import documents_in, may_have_text
from agent.files.parts import document_text
from agent.i18n.text import LocalizedText, _, ngettext
from agent.messages.adapt import has_pictures
from agent.messages.compaction import (
    INSTRUCTIONS,
    Compaction,
    Summary,
    coverable_answers,
    covered,
    estimate,
    shortened,
    summary_of,
    transcript,
    with_summary,
)
from agent.messages.repair import file_bytes, text_bytes
from agent.models.catalog import ModelSpec
from agent.plain_text import off_loop, plain_text
from agent.runtime.children import AgentCall, CallingRun

log = logging.getLogger(__name__)


class Fitting:
    """Shortens the history of one run. `notes` gets a sentence for each thing that is left out."""

    def __init__(self, run: CallingRun, notes: list[LocalizedText]) -> None:
        self._run, self._notes = run, notes
        self._summary: Summary | None = None
        self._is_new = self._has_failed = False
        self._documents: dict[tuple[int, str], tuple[UserPromptPart, int]] = {}
        """The bytes of the documents in prompts, by the prompt, which is kept so that its id stays its own."""

    async def fit(self, messages: Sequence[ModelMessage]) -> Sequence[ModelMessage]:
        """Return the messages to send for this conversation."""
        policy = self._run.plan.compaction
        if policy is None:
            return messages
        summary = self._summary or await off_loop(messages, summary_of, messages)
        fitted = await off_loop(messages, shortened, messages, summary)
        if not await self._has_room(policy, fitted):
            self._summary = summary = await self._summarize(policy, messages, summary)
            fitted = await off_loop(messages, shortened, messages, summary)
        if summary.text:
            self._tell(
                ngettext(
                    "{count} earlier answer, and what came before it, was sent as a summary.",
                    "{count} earlier answers, and what came before them, were sent as a summary.",
                    summary.answers,
                )
            )
        if summary.pictures > summary.answers:
            self._tell(_("The pictures of earlier messages were not sent, so that the conversation fits."))
        return fitted

    def mark(self, response: ModelResponse) -> ModelResponse:
        """Return the answer with what the conversation before it leaves out from now on, if that is new."""
        if not self._is_new:
            return response
        self._is_new = False
        return with_summary(response, self._summary)

    async def _summarize(self, policy: Compaction, messages: Sequence[ModelMessage], before: Summary) -> Summary:
        """Return what to leave out: more than `before` if possible, pictures first."""
        answers = await off_loop(messages, coverable_answers, messages, policy.keep)
        if answers <= before.answers or self._has_failed:
            return before
        old = await off_loop(messages, covered, messages, before, answers)
        if answers > before.pictures and await off_loop(old, has_pictures, old):
            before, self._is_new = Summary(answers=before.answers, text=before.text, pictures=answers), True
            if await self._has_room(policy, await off_loop(messages, shortened, messages, before)):
                return before
        rest = await off_loop(messages, shortened, messages, Summary(answers=answers, pictures=answers))
        if not await self._has_room(policy, rest):
            return before  # a summary would not make it fit, and the next step would make another one
        try:
            text = await self._text(policy, old)
        except Exception as failure:
            if not isinstance(failure, AgentError):
                log.exception("the function that summarizes failed")
            self._has_failed = True
            self._tell(_("The earlier messages could not be summarized: {reason}", reason=reason_of(failure)))
            return before
        self._is_new = True
        return Summary(answers=answers, text=text, pictures=answers)

    async def _text(self, policy: Compaction, old: Sequence[ModelMessage]) -> str:
        plan = self._run.plan
        if policy.summarize is None:
            tokens = policy.tokens(plan.connection.spec.context_tokens)
            assert plan.write is not None
            told = await off_loop(old, transcript, old, tokens)
            text = await plan.write(INSTRUCTIONS, told, AgentCall("", "summary", self._run), None)
        else:
            made = policy.summarize(old)
            text = cast(object, await made if inspect.isawaitable(made) else made)
        if not isinstance(text, str) or not text.strip():
            raise AgentError(_("the summary is empty"))
        return text.strip()

    async def _has_room(self, policy: Compaction, messages: Sequence[ModelMessage]) -> bool:
        plan = self._run.plan
        spec = plan.connection.spec
        tokens = await off_loop(messages, estimate, messages, plan.system_message)
        return tokens + await self._document_tokens(messages, spec) <= policy.tokens(spec.context_tokens)

    async def _document_tokens(self, messages: Sequence[ModelMessage], spec: ModelSpec) -> int:
        """Return how many more tokens the texts have that this model gets of documents than `estimate` has counted."""
        size = 0
        for part in await off_loop(messages, _with_files, messages):
            if (key := (id(part), spec.id)) not in self._documents:
                items = cast(Sequence[object], part.content)
                read = await documents_in(items, spec, texts=False)
                fitted = (await read.fitted()).items()
                texts = {at: document_text("", read.found[at][1], one).content for at, one in fitted}
                self._documents[key] = part, sum(text_bytes(text) - file_bytes(items[at]) for at, text in texts.items())
            size += self._documents[key][1]
        return size // 3

    def _tell(self, sentence: LocalizedText) -> None:
        if sentence not in self._notes:
            self._notes.append(sentence)


def _with_files(messages: Sequence[ModelMessage]) -> list[UserPromptPart]:
    """Return the prompts with files whose text can be read."""
    parts = [part for one in messages if plain_text(one) is None for part in one.parts]
    prompts = [part for part in parts if isinstance(part, UserPromptPart) and not isinstance(part.content, str)]
    return [part for part in prompts if any(map(may_have_text, part.content))]
