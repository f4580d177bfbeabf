"""The branches of a conversation: the versions of a message, and a new conversation that begins like another one.

Retry and edit store a new message beside the old one, after the same message. Edited ones are versions of the question.
Those with the same content are the same question, and their answers are versions of each other.
"""

import logging
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable, Iterable, Mapping, Sequence, Set
from contextlib import aclosing, nullcontext
from dataclasses import dataclass, replace

from pydantic_ai.messages import AudioUrl, DocumentUrl, ImageUrl, ModelResponse, TextContent, TextPart, UserContent

from agent.errors import AgentError, Conflict, InputError, NotFound
from agent.files.long_documents import without_passages
from agent.files.references import reference_of, references_in
from agent.files.store import MediaStore
from agent.history import MOST_MODELS, NO_CONVERSATION, Conversation, Entry, HistoryStore, Note, Vote, new_id, now
from agent.history.search import searchable_text
from agent.messages.repair import count_bytes
from agent.system.request_queue import RequestQueue, Slot, acting_for
from agent.system.threads import LOOKS, PREPARING, run_to_completion
from agent.transfer.document import Branch
from agent.web.chat.answers import STILL_WRITING
from agent.web.chat.attachments import WRITE_FIRST, check_length
from agent.web.chat.expiry import RetentionPeriods, hidden
from agent.web.chat.journal import branch
from agent.web.chat.links import pages_of
from agent.web.chat.questions import MESSAGE_GONE
from agent.web.chat.side_by_side import has_hidden_model
from agent.web.chat.storage_quota import StorageQuota
from agent.web.chat.stored_entries import VIEW_BYTES, first_until, newest_first
from agent.web.chat.temporary import TemporaryChats
from agent.web.chat.temporary_stores import is_temporary
from agent.web.chat.titles import NumberedTitles, first_words, rename, without_number
from agent.web.chat.transcript import MessageVersions, TurnVersions, content_parts, has_first_words, is_prompt
from agent.web.chat.visitor import Visitor

log = logging.getLogger(__name__)

TREE_BYTES, TREE_MESSAGES, MOST_ROWS = 8_000_000, 5_000, 200
"""The most text and messages that are read for a tree, and the most rows of it."""
ROW_CHARACTERS = 80
"""The characters of an answer in a row of the tree."""
PAGE = 200
"""Messages that are read at once for a tree, or for their files before they are erased."""
COPIES = 2
"""Chats that are copied at once, and those whose branch changes. Others wait, and visitors take turns."""


class Branches:
    """Changes which branch of a conversation is shown, and copies a branch. `periods` are the retention periods.

    `is_answered` tells whether an answer is being written in this conversation of this owner.
    A branch of a temporary chat is copied to another one of `temporary`.
    """

    def __init__(
        self,
        store: HistoryStore,
        media: MediaStore,
        quota: StorageQuota,
        periods: RetentionPeriods,
        is_answered: Callable[[str, str], Awaitable[bool]],
        temporary: TemporaryChats | None = None,
    ) -> None:
        self._store, self._media, self._quota = store, media, quota
        self._periods, self._is_answered, self._temporary = periods, is_answered, temporary
        self._copying, self._copied = RequestQueue(COPIES), Counter[str]()
        self._changing = RequestQueue(COPIES, slots_per_visitor=1)

    def is_copying(self, owner: str) -> bool:
        """Return True if a conversation of this owner is copied, and is hidden until it is whole."""
        return self._copied[owner] > 0

    async def choose(self, owner: str, conversation_id: str | None, entry_id: str) -> None:
        """Show this version of a message, and what followed it last. Raises `Conflict` and `NotFound`."""
        with acting_for(owner):
            async with self._changing.slot():
                await self._choose(await self._read(owner, conversation_id), entry_id)

    async def _choose(self, conversation: Conversation, entry_id: str) -> None:
        if not any(map(is_prompt, await self._store.find(conversation, ids=[entry_id]))):
            raise Conflict(MESSAGE_GONE)
        *_, newest = await self._store.following(conversation, entry_id)  # the branch that went on last
        conversation = await self._store.save(branch(conversation, newest))
        begins = await self._store.find(conversation, after=[None], most_bytes=VIEW_BYTES)
        if len(begins) > 1:  # otherwise the chat begins as before
            first = await first_until(self._store, replace(conversation, head_id=entry_id), None)
            await rename(self._store, conversation, first, begins)

    async def erase(self, owner: str, conversation_id: str | None, entry_id: str) -> None:
        """Erase this version of a message, with the same message to other models, and all that follows on any branch.

        The newest other version is shown then, or else what was before it. Raises `Conflict` and `NotFound`.
        """
        with acting_for(owner):
            async with self._changing.slot():
                await self._erase_message(await self._read(owner, conversation_id), entry_id)

    async def _erase_message(self, conversation: Conversation, entry_id: str) -> None:
        asked = [one for one in await self._store.find(conversation, ids=[entry_id]) if is_prompt(one)]
        if not asked:
            raise Conflict(MESSAGE_GONE)
        gone = set[str]()
        async for same in _pages(self._store, conversation, {entry_id, *asked[0].note.compared[:MOST_MODELS]}):
            for one in filter(is_prompt, same):
                gone.update(await self._store.following(conversation, one.id))
        left = await self._without(conversation, asked[0], gone)
        references = dict[str, set[str]]()
        async for entries in _pages(self._store, conversation, gone):
            for id_, names in (await PREPARING.run(references_in, conversation.id, entries)).items():
                references.setdefault(id_, {reference_of(conversation.id)}).update(names)
        if references:
            await self._keep_files(conversation, gone, references.keys())
        begins = await self._store.find(left, after=[None], most_bytes=VIEW_BYTES)
        await run_to_completion(self._erase(left, gone, references, begins))

    async def _keep_files(self, conversation: Conversation, gone: Set[str], files: Set[str]) -> None:
        """Give the messages that stay references of their own to those of these files that they name.

        Those of an import, and those of a copied link, are held by the reference of the conversation alone.
        """
        stay = [id_ for id_ in await self._store.following(conversation, None) if id_ not in gone]
        async for entries in _pages(self._store, conversation, stay):
            named = await PREPARING.run(references_in, conversation.id, entries)
            for one in entries:
                for id_ in one.note.attachments:
                    named.setdefault(id_, set()).add(reference_of(conversation.id, one.id))
            if kept := {id_: names for id_, names in named.items() if id_ in files}:
                await self._media.add_references(conversation.owner, kept)

    async def _without(self, conversation: Conversation, entry: Entry, gone: Set[str]) -> Conversation:
        """Return the conversation as it is without these entries, which begin with `entry`."""
        head = conversation.head_id
        if head in gone:
            beside = await self._store.find(conversation, after=[entry.parent_id], most_bytes=VIEW_BYTES)
            others = [one.id for one in beside if is_prompt(one) and one.id not in gone]
            left = await self._store.following(conversation, others[-1]) if others else ()
            head = next((id_ for id_ in reversed(left) if id_ not in gone), entry.parent_id)
            conversation = branch(conversation, head)
        ends = tuple(end for end in conversation.branches if end not in gone and end != head)
        summary = conversation.summary if conversation.summary and conversation.summary.message not in gone else None
        votes = tuple(vote for vote in conversation.votes if vote.message not in gone)
        return replace(conversation, branches=ends, summary=summary, votes=votes)

    async def _entitle(self, left: Conversation, gone: Set[str], begins: Sequence[Entry]) -> None:
        """Change a title that is about an erased message. One that was written stays, if messages stay.

        `begins` are the messages with which the conversation could begin before.
        """
        stay = [one for one in begins if one.id not in gone]
        if not stay:
            await self._store.label(left.id, owner=left.owner, title="")
        elif len(stay) < len(begins):
            first = await first_until(self._store, left, None) if left.head_id else stay[-1]
            await rename(self._store, left, first, begins)

    async def _erase(
        self, left: Conversation, gone: Set[str], references: Mapping[str, set[str]], begins: Sequence[Entry]
    ) -> None:
        await self._store.remove(left, [*gone])
        try:
            await self._entitle(left, gone, begins)
        except AgentError:  # the messages are gone
            log.exception("the title of erased messages could not be changed")
        try:
            await self._media.remove_references(left.owner, references)
        except OSError:  # housekeeping removes files that no message names
            log.exception("the files of erased messages could not be removed")

    async def write(self, visitor: Visitor, conversation_id: str | None, entry_id: str, text: str) -> None:
        """Store an answer that the visitor has written, as a version of the answer to this message on the shown branch.

        Raises `Conflict`, `NotFound`, `InputError`, and `Limited` if there is no room for it.
        """
        if not text.strip():
            raise InputError(WRITE_FIRST)
        check_length(text)
        conversation = await self._read(visitor.owner, conversation_id)
        found = [one for one in await self._store.find(conversation, ids=[entry_id]) if is_prompt(one)]
        if not found or conversation.head_id not in await self._store.following(conversation, entry_id):
            raise Conflict(MESSAGE_GONE)
        note = Note(run_id=new_id(), attachments=found[0].note.attachments)
        prompt = replace(found[0], id=new_id(), note=note)
        ended = replace(note, ended="stop", attachments=(), is_written=True)
        answer = Entry(parent_id=prompt.id, message=ModelResponse([TextPart(text)]), note=ended)
        conversation = replace(
            branch(conversation, answer.id), expires_at=self._periods.until(conversation.owner, running=False)
        )
        quota = self._temporary if self._temporary is not None and is_temporary(conversation.id) else self._quota
        async with quota.reservation(visitor) as reserve:
            await reserve(count_bytes(prompt.message) + count_bytes(answer.message))
            named = await PREPARING.run(references_in, conversation.id, [prompt])
            await self._media.add_references(conversation.owner, named)
            await run_to_completion(self._store.save(conversation, [prompt, answer]))

    async def copy(self, visitor: Visitor, conversation_id: str | None, entry_id: str) -> str:
        """Store a new conversation with the messages up to the answer to this one, and return its id.

        Only some messages are in memory at a time. The copy is hidden until it is whole. Raises `Conflict`, `NotFound`,
        and `Limited` if there is no room for it.
        """
        with acting_for(visitor.owner):
            async with self._copying.slot():
                self._copied[visitor.owner] += 1
                try:
                    return await self._copy(visitor, await self._read(visitor.owner, conversation_id), entry_id)
                finally:
                    self._copied[visitor.owner] -= 1
                    self._copied += Counter()  # drops owners at zero

    async def _copy(self, visitor: Visitor, conversation: Conversation, entry_id: str) -> str:
        begins = await self._store.find(conversation, after=[None], most_bytes=VIEW_BYTES)
        original = await Branch.open(
            self._store, replace(conversation, head_id=await self._end_of_turn(conversation, entry_id))
        )
        quota, copied = self._quota, Conversation(owner=visitor.owner)
        if self._temporary is not None and is_temporary(conversation.id):
            quota, copied = self._temporary, await self._temporary.begin(visitor)
        # The title can be about another version of the first message, which the copy does not have.
        title = conversation.title if has_first_words(begins, original.begins) else first_words(original.begins[0])
        copied = replace(copied, title=await self._numbered(conversation.owner, title), summary=conversation.summary)
        copied = replace(copied, folder=conversation.folder)
        async with quota.reservation(visitor) as reserve:
            await reserve(original.size)
            await self._save_copy(conversation, original, copied)
        return copied.id

    async def _end_of_turn(self, conversation: Conversation, entry_id: str) -> str | None:
        """Return the id of the last entry of the turn that begins with this message. Raises `Conflict`."""
        end = conversation.head_id
        async with aclosing(newest_first(self._store, conversation)) as entries:
            async for entry in entries:
                if is_prompt(entry):
                    if entry.id == entry_id:
                        return end
                    end = entry.parent_id
        raise Conflict(MESSAGE_GONE)

    async def _numbered(self, owner: str, title: str) -> str:
        """Return the title with a number that none of the owner's newest chats with the same words has."""
        if not title:
            return title
        hits = await self._store.search(owner, without_number(title))
        return NumberedTitles([title, *(hit.conversation.title for hit in hits)]).title_for(title)

    async def _save_copy(self, conversation: Conversation, original: Branch, copied: Conversation) -> None:
        """Store the copy page by page, and then show it, unless the original was deleted meanwhile."""
        began, references = now(), dict[str, set[str]]()

        async def store(page: Sequence[Entry]) -> None:
            nonlocal copied
            page = [_with_told_names(one, conversation.votes) for one in page]
            named = await PREPARING.run(references_in, copied.id, page)
            originals = await PREPARING.run(references_in, conversation.id, page)  # older versions have none yet
            for id_, names in named.items():
                references.setdefault(id_, set()).update(names)
            await self._media.add_references(copied.owner, {id_: [*named[id_], *originals[id_]] for id_ in named})
            copied = await self._store.save(hidden(replace(copied, head_id=page[-1].id), began), page)

        try:
            async with aclosing(pages_of(iter(original))) as pages:
                async for page in pages:
                    await run_to_completion(store(page))
            await self._store.get(conversation.id, owner=conversation.owner)
            await run_to_completion(self._show(copied))
        except BaseException:
            await run_to_completion(self._remove(copied, references))
            raise

    async def _show(self, copied: Conversation) -> None:
        if not await self._store.retention.set_expiry(copied, self._periods.until(copied.owner, running=False)):
            raise NotFound(NO_CONVERSATION)

    async def _remove(self, copied: Conversation, references: Mapping[str, set[str]]) -> None:
        """Remove what was stored of a copy that failed."""
        try:
            await self._store.retention.erase(copied)
            await self._media.remove_references(copied.owner, references)
        except (AgentError, OSError) as error:
            log.warning("a copy that failed could not be removed: %s", error)

    async def _read(self, owner: str, conversation_id: str | None) -> Conversation:
        if conversation_id is None:
            raise Conflict(MESSAGE_GONE)
        conversation = await self._store.get(conversation_id, owner=owner)
        if await self._is_answered(conversation.id, owner):
            raise Conflict(STILL_WRITING)
        return conversation


def _with_told_names(entry: Entry, votes: Sequence[Vote]) -> Entry:
    """Return the entry for a copy, which has no votes: a name that the visitor knows is not hidden there."""
    is_told = entry.note.is_blind and not has_hidden_model(entry, votes)
    return replace(entry, note=replace(entry.note, is_blind=False)) if is_told else entry


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchRow:
    """A version of a message in the tree of a chat: the id of the message, its first words and those of its answer.

    `model` wrote the answer. `turns` counts the messages of the visitor up to the next versions, and `depth` the
    versions before. `is_shown` is True on the branch that is shown.
    """

    message: str
    text: str
    answer: str
    model: str
    turns: int
    depth: int
    is_shown: bool


async def read_tree(
    store: HistoryStore, conversation: Conversation, slot: Slot = nullcontext
) -> tuple[list[BranchRow], bool]:
    """Return the versions in a conversation in the order of a tree, and if there are older ones that were not read.

    The newest messages are read, up to `TREE_BYTES` and `TREE_MESSAGES` of them, and each page in a slot of its own.
    """
    async with slot():
        ids = await store.following(conversation, None)
    entries, size = dict[str, Entry](), 0
    async with aclosing(_pages(store, conversation, ids[-TREE_MESSAGES:], TREE_BYTES // 8, slot)) as pages:
        async for page in pages:
            size += await LOOKS.run(_bytes_of, page)
            entries |= {one.id: one for one in page}
            if size >= TREE_BYTES:
                break
    async with slot():
        rows = await LOOKS.run(_rows, [entries[id_] for id_ in ids if id_ in entries], conversation)
    return rows[:MOST_ROWS], len(entries) < len(ids) or len(rows) > MOST_ROWS


async def _pages(
    store: HistoryStore,
    conversation: Conversation,
    ids: Iterable[str],
    most_bytes: int | None = None,
    slot: Slot = nullcontext,
) -> AsyncGenerator[Sequence[Entry]]:
    """Yield these entries in pages of about `most_bytes`, by default `VIEW_BYTES`, the last ones first.

    Each page is read in a slot.
    """
    left = [*ids]
    while left:
        page = left[-PAGE:]
        async with slot():
            found = await store.find(conversation, ids=page, most_bytes=most_bytes or VIEW_BYTES)
        known = {one.id for one in found}
        left = left[:-PAGE] + [id_ for id_ in page if found and id_ not in known]
        yield found


def _bytes_of(entries: Sequence[Entry]) -> int:
    return sum([count_bytes(one.message) for one in entries])


def _rows(entries: Sequence[Entry], conversation: Conversation) -> list[BranchRow]:
    head_id = conversation.head_id
    by_id, nexts = {one.id: one for one in entries}, defaultdict[str | None, list[Entry]](list)
    for one in entries:
        nexts[one.parent_id].append(one)
    shown = set[str]()
    while head_id in by_id:
        shown.add(head_id)
        head_id = by_id[head_id].parent_id
    versions = Counter(one.parent_id for one in entries if is_prompt(one))
    rows, begins = list[BranchRow](), [one for one in entries if one.parent_id not in by_id]
    left = [(one, 0, -1) for one in reversed(begins)]
    while left:
        one, depth, row = left.pop()
        if is_prompt(one):
            if versions[one.parent_id] > 1 or row < 0:
                depth, row = depth + (row >= 0), len(rows)
                row_ = _row(one, nexts, depth, is_shown=one.id in shown)
                rows.append(replace(row_, model="") if has_hidden_model(one, conversation.votes) else row_)
            rows[row] = replace(rows[row], turns=rows[row].turns + 1)
        left += [(next_, depth, row) for next_ in reversed(nexts[one.id])]
    return rows


def _row(entry: Entry, nexts: Mapping[str | None, Sequence[Entry]], depth: int, *, is_shown: bool) -> BranchRow:
    answer, model, after = "", entry.note.model, [*nexts.get(entry.id, ())]
    while after and not answer and not is_prompt(after[-1]):
        answer, model = searchable_text(after[-1]), after[-1].note.model or model
        after = [*nexts.get(after[-1].id, ())]
    first = " ".join(answer[: 10 * ROW_CHARACTERS].split())[:ROW_CHARACTERS]
    words = first_words(entry)
    return BranchRow(message=entry.id, text=words, answer=first, model=model, turns=0, depth=depth, is_shown=is_shown)


async def hidden_after(store: HistoryStore, conversation: Conversation, entries: Sequence[Entry]) -> str:
    """Return the id of the message of the visitor that followed what is shown, before it was taken back; "" if none.

    `entries` have all that follow what is shown. Of several such messages, it is the one that was left last.
    """
    hidden = [entry.id for entry in entries if entry.parent_id == conversation.head_id and is_prompt(entry)]
    if len(hidden) < 2:
        return "".join(hidden)
    below = {*await store.following(conversation, conversation.head_id)} - {conversation.head_id}
    left = next((end for end in reversed(conversation.branches) if end in below), hidden[0])
    first = await first_until(store, replace(conversation, head_id=left), conversation.head_id)
    return first.id if is_prompt(first) else hidden[0]


def versions_in(entries: Sequence[Entry]) -> Mapping[str, TurnVersions]:
    """Return the versions of each turn that has several. `entries` have all that follow the same messages, in order.

    The messages in one place with the same content are one question, which has as many answers. Another question shows
    the answer that was requested last.
    """
    places = defaultdict[str | None, dict[Hashable, list[str]]](dict)
    for entry in entries:
        if is_prompt(entry):
            places[entry.parent_id].setdefault(_asked(entry), []).append(entry.id)
    out: dict[str, TurnVersions] = {}
    for place in places.values():
        questions = list(place.values())
        newest = tuple(answers[-1] for answers in questions)
        for number, answers in enumerate(map(tuple, questions), 1):  # all versions share one tuple
            question = MessageVersions(newest, number) if len(questions) > 1 else None
            for at, id_ in enumerate(answers, 1):
                answer = MessageVersions(answers, at) if len(answers) > 1 else None
                if question or answer:
                    out[id_] = TurnVersions(question, answer)
    return out


def _asked(entry: Entry) -> Hashable:
    """Return an equal value for messages that ask the same. Passages of earlier documents depend on the model."""
    return tuple(map(_identity, without_passages(content_parts(entry))))


def _identity(part: UserContent) -> Hashable:
    match part:
        case str():
            return part
        case ImageUrl() | AudioUrl() | DocumentUrl():
            return ("file", part.url)
        case TextContent():
            return ("text", part.content)
        case _:
            return ("other", repr(part))
