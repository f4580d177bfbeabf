"""Laws of conversations: contents, revisions, branches, owners, lists, search, deletion, queries, and used ids."""

import asyncio
import time
import tracemalloc
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

from pydantic_ai.messages import (
    BinaryContent,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from agent.errors import Conflict, HistoryError, NotFound
from agent.history.codec import dump_entries
from agent.history.contract import HistoryStore
from agent.history.values import (
    PROGRAM,
    PROGRAM_VECTORS,
    Conversation,
    Entry,
    Folder,
    Note,
    Timings,
    new_id,
    now,
    vectors_id,
)
from tests.support.history_laws import (
    ALICE,
    MALLORY,
    Trial,
    allowed,
    batch,
    chain,
    grown,
    holds,
    law,
    prompt,
    prompts,
    refused,
    same,
    started,
    titled,
)


@law("base")
async def saved_history_is_read_back(trial: Trial) -> None:
    """Every field of a conversation and an entry is read back as it was saved."""
    store = trial.store
    timings = Timings(first_token=0.25, total=1.5, output_tokens=3, input_tokens=4, estimated=True)
    note = Note(run_id="r", model="m", ended="error", detail="Why.", timings=timings, cost=0.01, attachments=("a", "b"))
    entry = Entry(parent_id=None, message=prompt(), note=note)
    conversation = Conversation(
        owner=ALICE,
        title="A title",
        head_id=entry.id,
        branches=(new_id(),),
        pending=("call",),
        folder="f",
        folders=(Folder(name="A folder", instructions="Be brief.", model="m"),),
        input_tokens=1,
        output_tokens=2,
        cost=0.5,
        expires_at=now() + timedelta(hours=1),
    )
    before = now()
    saved = await store.save(conversation, [entry])
    same(saved, replace(conversation, revision=1, updated_at=saved.updated_at), "the conversation that save returns")
    holds(before <= saved.updated_at <= now(), "save did not set updated_at to the time of the save")
    same(await store.get(conversation.id, owner=ALICE), saved, "the conversation that get returns")
    same(await store.list(ALICE), [saved], "the list")
    same(await store.history(saved), [entry], "the history")


@law("base")
async def entries_come_oldest_first(trial: Trial) -> None:
    """The entries of a history come oldest first, whatever the number of saves."""
    store = trial.store
    conversation, first = await started(store, "1", "2", "3")
    second = chain(prompt("4"), after=first[-1].id)
    conversation = await grown(store, conversation, second)
    third = chain(prompt("5"), prompt("6"), after=second[-1].id)
    conversation = await grown(store, conversation, third)
    same(await store.history(conversation), [*first, *second, *third], "the history")
    same(await store.entries(conversation), [*first, *second, *third], "all entries")
    same(conversation.revision, 3, "the revision after three saves")


@law("base")
async def limit_keeps_newest(trial: Trial) -> None:
    """A limit leaves the newest entries, oldest first, and a limit below one leaves none."""
    conversation, _ = await started(trial.store, *"12345")
    for limit, expected in ((None, "12345"), (9, "12345"), (5, "12345"), (2, "45"), (1, "5"), (0, ""), (-1, "")):
        found = await trial.store.history(conversation, limit=limit)
        same(prompts(found), [*expected], f"the history with limit={limit}")


@law("base")
async def conversation_can_be_empty(trial: Trial) -> None:
    """A conversation without entries has an empty history."""
    with allowed("a conversation without entries"):
        conversation = await trial.store.save(Conversation(owner=ALICE))
        same(await trial.store.history(conversation), [], "the history")
        same(await trial.store.entries(conversation), [], "all entries")


@law("base")
async def unicode_comes_back_byte_for_byte(trial: Trial) -> None:
    """Text comes back byte for byte, with NUL. Halves of surrogate pairs are replaced as `codec` does it."""
    store = trial.store
    texts = ["a\0b", "e\u0301 is not \u00e9", "\u2028\r\n\t\x7f", "\U0001f469\u200d\U0001f4bb", "\\ud800", "\ufeff"]
    entries = chain(*map(prompt, texts))
    conversation = await store.save(Conversation(owner=ALICE, title="".join(texts), head_id=entries[-1].id), entries)
    same(conversation.title, "".join(texts), "the title that save returns")
    same((await store.get(conversation.id, owner=ALICE)).title, "".join(texts), "the stored title")
    same(prompts(await store.history(conversation)), texts, "the prompts")

    halves = Entry(parent_id=None, message=prompt("lone \ud83d, joined \ud83d\ude00, NUL \0"))
    conversation = await store.save(Conversation(owner=ALICE, title="\udfff", head_id=halves.id), [halves])
    same(
        prompts(await store.history(conversation)),
        ["lone \ufffd, joined \U0001f600, NUL \0"],
        "halves of surrogate pairs",
    )
    same(conversation.title, "\ufffd", "the title of half a surrogate pair")


@law("retention")
async def stored_text_is_that_of_the_codec(trial: Trial) -> None:
    """The text of each entry is stored byte for byte as `codec` writes it, also the order of its keys."""
    details = {"z": 1, "a": [1.0, 1e300, -0.0, 2**70], "NUL": "\0", "lone": "\ud800", "é": None}
    answer = ModelResponse([TextPart("x\0", provider_details=details), ThinkingPart("", signature="s==")])
    entries = chain(prompt("\ud83d\ude00 \udfff \0 \u2028"), answer)
    await grown(trial.store, Conversation(owner=ALICE), entries)
    found = [text async for text in trial.store.retention.texts(ALICE)]
    same(sorted(found), sorted(dump_entries(entries)), "the stored texts")


@law("base")
async def bytes_come_back(trial: Trial) -> None:
    """The bytes of media come back, wherever a message has them."""
    data = bytes(range(256)) + b"\0" * 9
    media = BinaryContent(data, media_type="application/x-own", identifier="scan")
    message = ModelRequest([UserPromptPart(["See:", media]), ToolReturnPart("tool", [media], "call-1")])
    conversation = await grown(trial.store, Conversation(owner=ALICE), chain(message))
    (entry,) = await trial.store.history(conversation)
    for part in entry.message.parts:
        (back,) = [item for item in getattr(part, "content", ()) if isinstance(item, BinaryContent)]
        same((back.data, back.media_type, back.identifier), (data, "application/x-own", "scan"), type(part).__name__)


@law("base")
async def stray_bytes_are_accepted(trial: Trial) -> None:
    """Bytes in places that have no type come back as base64."""
    messages: list[ModelMessage] = [
        ModelRequest([ToolReturnPart("tool", {"raw": b"\xff\x00"}, "call-1", metadata={"raw": b"\xff\x00"})]),
        ModelResponse([TextPart("x", provider_details={"raw": b"\xff"})], provider_details={"raw": b"\xff"}),
    ]
    for message in messages:
        conversation = await grown(trial.store, Conversation(owner=ALICE), chain(message))
        shown = repr(await trial.store.history(conversation))
        same(shown.count("_w==") + shown.count("_wA="), 2, f"the number of both bytes in {shown}")


@law("base")
async def tool_calls_and_signatures_come_back(trial: Trial) -> None:
    """Tool calls, their results, and a provider's own signatures and details come back."""
    thought = ThinkingPart("", id="rs_1", signature="EqQBCkYIBxgC==", provider_name="anthropic")
    thought.provider_details = {"encrypted_content": "gAAAA=", "n": [1, 2]}
    call = ToolCallPart("weather", '{"city": "Zürich"', "call-1", provider_details={"thought_signature": "x=="})
    entries = chain(
        prompt("How warm?"),
        ModelResponse([thought, TextPart("Let me see."), call], provider_details={"logprobs": None}),
        ModelRequest([ToolReturnPart("weather", {"c": 21.5}, "call-1", outcome="failed")]),
    )
    conversation = await grown(trial.store, Conversation(owner=ALICE, pending=("call-1",)), entries)
    same(await trial.store.history(conversation), entries, "the history")


@law("base")
async def ten_megabytes_come_back(trial: Trial) -> None:
    """A conversation of 10 MB comes back, with a single message of 4 MB."""
    store = trial.store
    conversation, entries = await started(store, "0123456789abcdef" * 2**18)
    for number in range(3):
        added = chain(*(prompt(f"{number}.{i} " + "ü" * 100_000) for i in range(10)), after=entries[-1].id)
        conversation = await grown(store, conversation, added)
        entries += added
    holds(sum(len(text.encode()) for text in dump_entries(entries)) >= 10_000_000, "the conversation has 10 MB")
    holds(await store.history(conversation) == entries, "the history of 10 MB is not the one that was saved")
    holds(
        await store.history(conversation, limit=2) == entries[-2:],
        "its newest two entries are not those that were saved",
    )


@law("base")
async def history_loads_in_linear_time(trial: Trial) -> None:
    """The time to load a history is proportional to its length."""

    async def seconds(turns: int) -> float:
        messages = [message for i in range(turns) for message in (prompt(f"Why {i}? " * 10), answer)]
        entries = chain(*messages)
        conversation = await grown(trial.store, Conversation(owner=ALICE), entries)
        spans: list[float] = []
        for _ in range(5):
            begun = time.process_time()
            same(await trial.store.history(conversation), entries, "the history")
            spans.append(time.process_time() - begun)
        return min(spans)

    answer = ModelResponse([ThinkingPart("Hm. " * 50, signature="s" * 100), TextPart("Because. " * 100)])
    long, short = await seconds(400), await seconds(50)
    # About 8 times, and 64 times if each message reads all others.
    holds(long < 30 * short, f"8 times as many messages take {long / short:.0f} times as long")


@law("base")
async def changed_message_changes_nothing_stored(trial: Trial) -> None:
    """A store keeps no object of its callers: a message that changes after a save changes nothing stored."""
    message = prompt("before")
    conversation = await grown(trial.store, Conversation(owner=ALICE), chain(message))
    _rewrite(message)
    (loaded,) = await trial.store.history(conversation)
    same(prompts([loaded]), ["before"], "the prompt after its message was changed")
    _rewrite(loaded.message)
    same(
        prompts(await trial.store.history(conversation)), ["before"], "the prompt after the loaded message was changed"
    )


@law("base")
async def second_close_does_nothing(trial: Trial) -> None:
    """A store can be closed twice."""
    await trial.store.aclose()
    with allowed("a second close"):
        await trial.store.aclose()


@law("processes", "base")
async def close_finishes_or_refuses_saves(trial: Trial) -> None:
    """A save that is under way when the store closes is stored whole and returns, or is refused and stores nothing."""
    conversations = [await grown(trial.store, Conversation(owner=ALICE), chain(prompt("1"))) for _ in range(8)]
    added = [chain(prompt("2"), prompt("3"), after=conversation.head_id) for conversation in conversations]
    calls = [
        trial.store.save(replace(conversation, head_id=entries[-1].id), entries)
        for conversation, entries in zip(conversations, added, strict=True)
    ]
    tasks = list[asyncio.Future[Any]]()
    for call in (*calls[:4], trial.store.aclose(), *calls[4:]):
        tasks.append(asyncio.ensure_future(call))
        await asyncio.sleep(0)
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    same(outcomes.pop(4), None, "the end of closing")
    await trial.reopen()
    for conversation, outcome in zip(conversations, outcomes, strict=True):
        found = await trial.store.history(await trial.store.get(conversation.id, owner=ALICE))
        holds(isinstance(outcome, Conversation | HistoryError), f"a save ended with {outcome!r}")
        same(len(found), 3 if isinstance(outcome, Conversation) else 1, "the messages after the store was closed")


def _rewrite(message: ModelMessage) -> None:
    for part in message.parts:
        if isinstance(part, UserPromptPart):
            part.content = "after"


@law("base")
async def old_revision_conflicts_and_changes_nothing(trial: Trial) -> None:
    """A save of an old revision raises `Conflict` and changes nothing."""
    store = trial.store
    first, entries = await started(store, "1")
    second = await grown(store, first, chain(prompt("2"), after=entries[-1].id))
    stale = chain(prompt("stale"), after=entries[-1].id)
    with refused(Conflict, "a save of revision 1 after revision 2"):
        await grown(store, first, stale)
    same(await store.get(first.id, owner=ALICE), second, "the conversation")
    same(prompts(await store.history(second)), ["1", "2"], "the history")
    with refused(NotFound, "a history that ends with the refused entry"):
        await store.history(replace(second, head_id=stale[-1].id))


@law("base")
async def only_stored_revision_is_accepted(trial: Trial) -> None:
    """A save must name the stored revision: neither 0, as if it were new, nor a later one."""
    conversation, _ = await started(trial.store)
    for revision in (0, 2, 7):
        with refused(Conflict, f"a save of revision {revision} where 1 is stored"):
            await trial.store.save(replace(conversation, revision=revision))
        same(await trial.store.get(conversation.id, owner=ALICE), conversation, "the conversation")


@law("base")
async def one_concurrent_save_wins(trial: Trial) -> None:
    """Of concurrent saves of one revision, exactly one wins and the others raise `Conflict`."""
    store = trial.store
    conversation, entries = await started(store, "0")
    rivals = [chain(prompt(f"{i}a"), prompt(f"{i}b"), after=entries[-1].id) for i in range(12)]
    outcomes = await asyncio.gather(*(grown(store, conversation, rival) for rival in rivals), return_exceptions=True)
    winners = [outcome for outcome in outcomes if isinstance(outcome, Conversation)]
    losers = [type(outcome) for outcome in outcomes if not isinstance(outcome, Conversation)]
    same(losers, [Conflict] * 11, "what the other saves raise")
    stored = await store.get(conversation.id, owner=ALICE)
    same(winners, [stored], "the conversation of the save that won")
    (kept,) = [rival for rival in rivals if rival[-1].id == stored.head_id]
    same(await store.history(stored), [*entries, *kept], "the history")


@law("base")
async def concurrent_saves_of_conversations_succeed(trial: Trial) -> None:
    """Saves of different conversations do not disturb each other."""
    store = trial.store

    async def talk(i: int) -> None:
        conversation, entries = await started(store, f"{i}.0", owner=f"visitor:{i % 3}")
        for turn in range(1, 5):
            added = chain(prompt(f"{i}.{turn}"), after=entries[-1].id)
            conversation = await grown(store, conversation, added)
            entries += added
            same(await store.history(conversation), entries, f"the history of conversation {i}")

    with allowed("saves of different conversations at once"):
        await asyncio.gather(*map(talk, range(12)))
    same([len(await store.list(f"visitor:{i}")) for i in range(3)], [4, 4, 4], "the conversations of each owner")


def _spoilt() -> dict[str, Callable[[str], Entry]]:
    """Return functions that make an invalid entry, by its fault. Each entry follows the given id."""
    junk: Any = ["no part"]
    answer: Any = [TextPart("x")]
    circular: dict[str, Any] = {}
    circular["self"] = circular
    return {
        "an unknown parent": lambda _: Entry(parent_id=new_id(), message=prompt()),
        "itself as parent": lambda _: Entry(id="x", parent_id="x", message=prompt()),
        "a used id": lambda after: Entry(id=after, parent_id=None, message=prompt()),
        "no message": lambda after: Entry(parent_id=after, message=junk),
        "no part": lambda after: Entry(parent_id=after, message=ModelRequest(junk)),
        "a part of the other side": lambda after: Entry(parent_id=after, message=ModelRequest(answer)),
        "no JSON": lambda after: Entry(parent_id=after, message=ModelRequest([ToolReturnPart("t", object(), "c")])),
        "a circle": lambda after: Entry(parent_id=after, message=ModelRequest([ToolReturnPart("t", circular, "c")])),
        "an id that is no text": lambda after: Entry(id="\ud800", parent_id=after, message=prompt()),
    }


@law("base")
async def bad_entry_rejects_whole_save(trial: Trial) -> None:
    """A save with one invalid entry raises a plain `HistoryError` and stores nothing; the ids stay free."""
    store = trial.store
    for fault, spoil in _spoilt().items():
        conversation, entries = await started(store, "kept")
        (good,) = chain(prompt("good"), after=entries[-1].id)
        bad = spoil(good.id)
        with refused(HistoryError, f"a save of an entry with {fault}"):
            await store.save(replace(conversation, head_id=bad.id, title="changed"), [good, bad])
        same(
            await store.get(conversation.id, owner=ALICE), conversation, f"the conversation after an entry with {fault}"
        )
        same(await store.history(conversation), entries, f"the history after an entry with {fault}")
        with refused(NotFound, f"a history that ends with the good entry before one with {fault}"):
            await store.history(replace(conversation, head_id=good.id))
        with allowed(f"a save of the good entry before one with {fault}"):
            conversation = await grown(store, conversation, [good])
        same(prompts(await store.history(conversation)), ["kept", "good"], "the history after the save without it")


@law("base")
async def head_must_be_own_entry(trial: Trial) -> None:
    """A conversation that points at an entry of no or another conversation is refused."""
    store = trial.store
    other, entries = await started(store)
    for head in (new_id(), entries[-1].id):
        conversation = Conversation(owner=ALICE, head_id=head)
        with refused(HistoryError, "a save with a foreign head"):
            await store.save(conversation)
        with refused(NotFound, "get after the refused save"):
            await store.get(conversation.id, owner=ALICE)
    same(await store.list(ALICE), [other], "the list")


@law("base")
async def entry_follows_only_earlier_ones(trial: Trial) -> None:
    """The parent of an entry is stored before it: entries in the wrong order, or in a ring, are refused."""
    store = trial.store
    conversation, entries = await started(store, "0")
    first, second = chain(prompt("1"), prompt("2"))
    ring = [replace(first, parent_id=second.id), second]
    for added in ([second, replace(first, parent_id=entries[-1].id)], ring):
        with refused(HistoryError, "a save of entries in the wrong order"):
            await store.save(replace(conversation, head_id=second.id), added)
    same(await store.history(conversation), entries, "the history")


@law("base")
async def reader_sees_no_refused_save(trial: Trial) -> None:
    """A reader never sees anything of a save that is then refused."""
    store = trial.store
    conversation, entries = await started(store, "0")
    bad = [*chain(*map(prompt, "12345"), after=entries[-1].id), *chain(prompt(), after=new_id())]
    for _ in range(20):
        saving = asyncio.create_task(store.save(replace(conversation, title="taken back"), bad))
        while not saving.done():
            same((await store.get(conversation.id, owner=ALICE)).title, "", "the title during the save")
            await asyncio.sleep(0)
        with refused(HistoryError, "a save of an entry without parent"):
            await saving


@law("base")
async def cancelled_save_stores_all_or_nothing(trial: Trial) -> None:
    """A save that is cancelled anywhere has stored everything or nothing, and the store works on."""
    store = trial.store
    conversation, entries = await started(store, "0")
    outcomes: set[bool] = set()
    for ticks in [*range(25), 50, 100, 200, 400, None]:
        added = chain(*(prompt(f"{ticks}.{i}") for i in range(20)), after=entries[-1].id)
        task = asyncio.create_task(grown(store, conversation, added))
        if ticks is None:
            await task
        for _ in range(ticks or 0):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        stored = await store.get(conversation.id, owner=ALICE)
        saved = stored.head_id == added[-1].id
        if saved:
            entries += added
        what = f"after a cancellation {ticks} steps into the save"
        same(stored.revision, conversation.revision + saved, f"the revision {what}")
        same(await store.history(stored), entries, f"the history {what}")
        outcomes.add(saved)
        conversation = stored
    holds(outcomes == {True, False}, "no save was cancelled before and none after it was stored")


@law("base")
async def cancelled_read_spoils_no_other_call(trial: Trial) -> None:
    """A read that is cancelled anywhere changes no later answer, however many were cancelled."""
    store = trial.store
    talks = [await started(store, f"{number}") for number in range(4)]
    for ticks in [*range(20), *range(20, 200, 15)]:
        reads = [store.get(talks[0][0].id, owner=ALICE), store.history(talks[1][0]), store.list(ALICE)]
        tasks = [asyncio.ensure_future(read) for read in reads]
        for _ in range(ticks):
            await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        what = f"after a cancellation {ticks} steps into three reads"
        conversation, entries = talks[ticks % 4]
        same(await store.get(conversation.id, owner=ALICE), conversation, f"the conversation {what}")
        same(await store.history(conversation), entries, f"the history {what}")


@law("branches")
async def old_branch_remains(trial: Trial) -> None:
    """After a retry, an edit and an undo, the earlier branches can still be read."""
    store = trial.store
    conversation, (asked, answered) = await started(store, "question", "answer")
    retried = chain(prompt("retried"), after=asked.id)
    conversation = await store.save(replace(conversation, head_id=retried[-1].id, branches=(answered.id,)), retried)
    same(prompts(await store.history(conversation)), ["question", "retried"], "the history after a retry")

    edited = chain(prompt("edited"), prompt("new answer"))
    branches = (*conversation.branches, retried[-1].id)
    conversation = await store.save(replace(conversation, head_id=edited[-1].id, branches=branches), edited)
    same(prompts(await store.history(conversation)), ["edited", "new answer"], "the history after an edit")

    conversation = await store.save(
        replace(conversation, head_id=edited[0].id, branches=(*conversation.branches, edited[-1].id))
    )
    same(prompts(await store.history(conversation)), ["edited"], "the history after an undo")
    conversation = await store.save(replace(conversation, head_id=None))
    same(await store.history(conversation), [], "the history after all was undone")

    stored = await store.get(conversation.id, owner=ALICE)
    found = [prompts(await store.history(replace(stored, head_id=branch))) for branch in stored.branches]
    same(found, [["question", "answer"], ["question", "retried"], ["edited", "new answer"]], "the branches")


@law("branches")
async def entries_include_all_branches(trial: Trial) -> None:
    """`entries` returns the entries of all branches in the order of their storage."""
    store = trial.store
    conversation, entries = await started(store, "1", "2")
    branch = chain(prompt("3"), after=entries[0].id)
    conversation = await store.save(replace(conversation, head_id=branch[-1].id, branches=(entries[-1].id,)), branch)
    same(await store.entries(conversation), [*entries, *branch], "all entries")
    same(await store.history(conversation), [entries[0], *branch], "the history")


@law("branches")
async def entries_are_found_by_id_and_place(trial: Trial) -> None:
    """`find` returns the entries with some ids and those that follow some others, in the order of their storage."""
    store = trial.store
    conversation, (first, second) = await started(store, "1", "2")
    third, fourth = chain(prompt("3"), prompt("4"), after=first.id)
    other = chain(prompt("5"))
    conversation = await grown(store, conversation, [third, fourth, *other])
    foreign, _ = await started(store, "1", owner=MALLORY)
    same(await store.find(conversation, ids=[fourth.id]), [fourth], "one entry")
    same(await store.find(conversation, ids=[fourth.id, first.id, new_id()]), [first, fourth], "some entries")
    same(await store.find(conversation, after=[first.id]), [second, third], "what follows an entry")
    same(
        await store.find(conversation, after=[None]), [first, *other], "the entries with which the conversation begins"
    )
    same(
        await store.find(conversation, ids=[second.id], after=[third.id, None]), [first, second, fourth, *other], "both"
    )
    same(await store.find(conversation), [], "the result without ids and places")
    same(await store.find(foreign, ids=[first.id], after=[first.id]), [], "the entries of another conversation")
    stranger = replace(conversation, owner=MALLORY)
    same(await store.find(stranger, ids=[first.id], after=[None]), [], "what another owner finds")


@law("branches")
async def following_entries_are_those_of_all_branches(trial: Trial) -> None:
    """`following` returns the ids of an entry and of all after it, in the order of their storage."""
    store = trial.store
    conversation, (first, second) = await started(store, "1", "2")
    third = chain(prompt("3"), prompt("4"), after=first.id)
    other = chain(prompt("5"))
    last = chain(prompt("6"), after=second.id)
    conversation = await grown(store, conversation, [*third, *other, *last])
    ids = [entry.id for entry in (first, second, *third, *last)]
    same(await store.following(conversation, first.id), ids, "what follows the first message")
    same(
        await store.following(conversation, third[0].id),
        [entry.id for entry in third],
        "what follows on another branch",
    )
    same(await store.following(conversation, last[0].id), [last[0].id], "what follows the last message")
    same(await store.following(conversation, new_id()), [], "what follows a missing entry")
    all_ids = [entry.id for entry in (first, second, *third, *other, *last)]
    same(await store.following(conversation, None), all_ids, "the ids of all entries")
    for id_ in (first.id, None):
        same(await store.following(replace(conversation, owner=MALLORY), id_), [], "what another owner finds")


@law("base")
async def unknown_head_is_not_found(trial: Trial) -> None:
    """A history that ends with an unknown entry raises `NotFound`."""
    conversation, _ = await started(trial.store)
    with refused(NotFound, "a history with an unknown head"):
        await trial.store.history(replace(conversation, head_id=new_id()))


@law("base")
async def chain_stays_in_its_conversation(trial: Trial) -> None:
    """No chain of entries leads into another conversation."""
    store = trial.store
    private, entries = await started(store, "private")
    own, _ = await started(store, "own", owner=MALLORY)
    with refused(NotFound, "a history that ends in another conversation"):
        await store.history(replace(own, head_id=entries[-1].id))
    with refused(HistoryError, "a save with a head in another conversation"):
        await store.save(replace(own, head_id=entries[-1].id))
    with refused(HistoryError, "a save of an entry that follows one of another conversation"):
        await grown(store, own, chain(prompt("graft"), after=entries[-1].id))
    same(prompts(await store.history(own)), ["own"], "the own history")
    same(await store.history(private), entries, "the other history")


@law("base")
async def conversations_can_share_entry_ids(trial: Trial) -> None:
    """The ids of entries are unique only within their conversation."""
    store = trial.store

    def numbered(*texts: str) -> list[Entry]:
        first, second = chain(*map(prompt, texts))
        return [replace(first, id="1"), replace(second, id="2", parent_id="1")]

    mine = await grown(store, Conversation(owner=ALICE), numbered("mine", "my own"))
    with allowed("a save of entries whose ids another conversation has"):
        other = await grown(store, Conversation(owner=MALLORY), numbered("theirs", "their own"))
    same(prompts(await store.history(mine)), ["mine", "my own"], "the first conversation")
    same(prompts(await store.history(other)), ["theirs", "their own"], "the second conversation")
    await store.delete(other.id, owner=MALLORY)
    same(prompts(await store.history(mine)), ["mine", "my own"], "the first after the second was deleted")


Verb = Callable[[HistoryStore, Conversation, str], Awaitable[Any]]

VERBS: dict[str, Verb] = {
    "get": lambda store, chat, owner: store.get(chat.id, owner=owner),
    "history": lambda store, chat, owner: store.history(replace(chat, owner=owner)),
    "history without head": lambda store, chat, owner: store.history(replace(chat, owner=owner, head_id=None)),
    "history with limit=0": lambda store, chat, owner: store.history(replace(chat, owner=owner), limit=0),
    "save": lambda store, chat, owner: store.save(replace(chat, owner=owner, title="taken")),
    "save of an entry": lambda store, chat, owner: grown(store, replace(chat, owner=owner), chain(prompt("taken"))),
    "delete": lambda store, chat, owner: store.delete(chat.id, owner=owner),
}
"""The calls that name an owner and find one conversation."""

STRANGERS = (MALLORY, "", ALICE.upper(), f"{ALICE} ", ALICE[:-1], f"{ALICE}\0", "%", "*", f"../{ALICE}", "\ud800")
ODD = ("", "../x", "/etc/passwd", "a/b", ".", "a\0b", "%", "*", "a:b", "'; --", "\U0001f469", "CON", "x" * 300)


@law("base")
async def page_ends_with_its_bytes(trial: Trial) -> None:
    """A page ends with the message that makes it as long as it may be, whatever is in the pages before it."""
    texts = [*"123", "4" * 30_000, "5" * 30_000, *"67"]
    conversation, entries = await started(trial.store, *texts)
    for most, newest, found in (
        (100_000, texts, texts),
        (10_000, texts[4:], texts[:4]),
        (40_000, texts[3:], texts[:5]),
        (1, texts[-1:], texts[:1]),
        (0, texts[-1:], texts[:1]),
    ):
        same(prompts(await trial.store.history(conversation, most_bytes=most)), newest, f"the newest {most} bytes")
        page = await trial.store.find(conversation, ids=[one.id for one in entries], most_bytes=most)
        same(prompts(page), found, f"the first {most} bytes of the messages with these ids")
    same(prompts(await trial.store.history(conversation, limit=2, most_bytes=10_000)), [*"67"], "the newest two")
    same(prompts(await trial.store.find(conversation, after=[None], most_bytes=1)), ["1"], "the first one")
    conversation, entries = await started(trial.store, *["x"] * 30)
    same(len(await trial.store.history(conversation, most_bytes=10_000)) <= 10, True, "few of many short messages")
    page = await trial.store.find(conversation, ids=[one.id for one in entries], most_bytes=10_000)
    same(len(page) <= 10, True, "few of many short messages with these ids")


@law("base")
async def search_reads_few_messages_at_once(trial: Trial) -> None:
    """A search in long messages needs no more memory than for some of them, however many it finds."""
    for number in range(12):
        await started(trial.store, f"{number} " + "pear " * 200_000)
    await trial.store.search(ALICE, "apple")  # what a store reads at its first search
    tracemalloc.start()
    try:
        hits = await trial.store.search(ALICE, "pear")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    same(len(hits), 12, "the number of hits")
    holds(peak < 12_000_000, f"a search took {peak} bytes at its peak")


@law("base")
async def foreign_object_looks_missing(trial: Trial) -> None:
    """Another owner's conversation raises the same error as a missing one, and stays as it is."""
    store = trial.store
    conversation, entries = await started(store, "private")
    await started(store, "their own", owner=MALLORY)
    missing = replace(conversation, id=new_id())
    for stranger in STRANGERS:
        for name, verb in VERBS.items():
            what = f"{name} by the owner {stranger!a}"
            refusals: list[str] = []
            for target in (conversation, missing):
                # A save refuses an owner that is no text before any look-up.
                kind = HistoryError if stranger == "\ud800" and name.startswith("save") else NotFound
                with refused(kind, what) as caught:
                    await verb(store, target, stranger)
                refusals.append(str(caught[0]).replace(target.id, "ID"))
            same(refusals[0], refusals[1], f"the error of {what}, against that of a missing conversation")
        holds(
            conversation not in await store.list(stranger), f"the list of {stranger!a} has another owner's conversation"
        )
        same(await store.entries(replace(conversation, owner=stranger)), [], f"all entries for {stranger!a}")
    same(await store.get(conversation.id, owner=ALICE), conversation, "the conversation")
    same(await store.history(conversation), entries, "the history")


@law("base")
async def owner_has_access(trial: Trial) -> None:
    """The owner may do what strangers may not."""
    for name, verb in VERBS.items():
        conversation, _ = await started(trial.store)
        with allowed(f"{name} by the owner"):
            await verb(trial.store, conversation, ALICE)


@law("base")
async def new_conversation_cannot_take_foreign_id(trial: Trial) -> None:
    """A new conversation with the id of another owner's raises `NotFound`."""
    conversation, _ = await started(trial.store)
    with refused(NotFound, "a first save with a foreign id"):
        await trial.store.save(Conversation(id=conversation.id, owner=MALLORY))
    same(await trial.store.get(conversation.id, owner=ALICE), conversation, "the conversation")


@law("base")
async def ids_and_owners_are_opaque(trial: Trial) -> None:
    """Any text can be an id or an owner, also one that means something to a file system or a query."""
    store = trial.store
    for name in ODD:
        with refused(NotFound, f"get of {name!a}"):
            await store.get(name, owner=ALICE)
        with allowed(f"saves with {name!a} as id and owner"):
            _, entries = await started(store, "odd", owner=name)
            conversation = await store.save(Conversation(id=name, owner=name, head_id=entries[0].id), entries)
        same(await store.get(name, owner=name), conversation, f"the conversation {name!a}")
        same(await store.history(conversation), entries, f"the history of {name!a}")
        same(len(await store.list(name)), 2, f"the number of conversations of {name!a}")
        await store.delete(name, owner=name)
        same(len(await store.list(name)), 1, f"the number of conversations of {name!a} after a deletion")


@law("base")
async def id_that_is_no_text_is_not_found(trial: Trial) -> None:
    """An id with half a surrogate pair raises `NotFound`."""
    for name, call in (("get", trial.store.get), ("delete", trial.store.delete)):
        with refused(NotFound, name):
            await call("\ud800", owner=ALICE)


@law("base")
async def list_starts_with_newest_entries(trial: Trial) -> None:
    """The list has the owner's conversations, the one that got entries last first."""
    store = trial.store
    one, two, three = [(await started(store, text))[0] for text in "123"]
    await started(store, "other", owner=MALLORY)
    one = await grown(store, one, chain(prompt("again"), after=one.head_id))
    same(await store.list(ALICE), [one, three, two], "the list")
    same(await store.list(ALICE, limit=2), [one, three], "the list with limit=2")
    for limit in (0, -1):
        same(await store.list(ALICE, limit=limit), [], f"the list with limit={limit}")
    same(await store.list("visitor:nobody"), [], "the list of an unknown owner")


@law("base")
async def save_without_entries_keeps_the_place(trial: Trial) -> None:
    """A save without entries, as for another branch, changes neither the place in the list nor `updated_at`."""
    store = trial.store
    older, newer = [(await started(store, text))[0] for text in "12"]
    saved = await store.save(replace(older, head_id=None))
    same(saved, replace(older, head_id=None, revision=older.revision + 1), "the conversation that save returns")
    same(await store.list(ALICE), [newer, saved], "the list")
    more = chain(prompt("more"))
    grew = await grown(store, saved, more)
    holds(saved.updated_at <= grew.updated_at <= trial.clock(), "a save with entries did not set updated_at")
    same(await store.list(ALICE), [grew, newer], "the list after a save with entries")


@law("base")
async def list_order_ignores_clocks(trial: Trial) -> None:
    """The list has the order of the saves, also of those in one tick of the clock."""
    saved = [(await started(trial.store, str(i)))[0] for i in range(60)]
    same(await trial.store.list(ALICE, limit=100), saved[::-1], "the list")


@law("base")
async def imported_conversation_stands_at_its_time(trial: Trial) -> None:
    """A conversation with a source keeps the time of its newest message, and its place in the list after a save."""
    store, at = trial.store, trial.clock()

    async def imported(days: int, conversation: Conversation | None = None) -> Conversation:
        time = at - timedelta(days=days)
        conversation = conversation or Conversation(
            owner=ALICE, source=f"elsewhere:{days}", imported_at=at, updated_at=time
        )
        entry = Entry(parent_id=conversation.head_id, message=prompt(str(days)), note=Note(at=time))
        return await store.save(replace(conversation, head_id=entry.id), [entry])

    old, new = await imported(300), (await started(store, "new"))[0]
    older, middle = await imported(500), await imported(200)
    holds(old.updated_at == at - timedelta(days=300), "the first save did not keep the time of the messages")
    same(await store.list(ALICE), [new, middle, old, older], "the list")
    older = await imported(100, older)
    holds(older.updated_at == at - timedelta(days=100), "a later save did not set the time of the newest message")
    same(await store.list(ALICE), [new, older, middle, old], "the list after a save of old messages")
    old = await grown(store, old, chain(prompt("more"), after=old.head_id))
    same(await store.list(ALICE), [old, new, older, middle], "the list after a save of new messages")


@law("labels")
async def pages_of_the_list_follow_each_other(trial: Trial) -> None:
    """The pages of the list, also of only the pinned or other ones, have each conversation once."""
    store = trial.store
    conversations = [await titled(store, str(number)) for number in range(7)][::-1]
    pages = [await store.list(ALICE, limit=3, offset=offset) for offset in (0, 3, 6, 9)]
    same([conversation for page in pages for conversation in page], conversations, "the pages")
    pinned = {(await store.label(conversations[place].id, owner=ALICE, pinned=True)).id for place in (1, 5)}
    same({conversation.id for conversation in await store.list(ALICE, pinned=True)}, pinned, "the pinned ones")
    others = await store.list(ALICE, pinned=False, limit=4)
    same([one.title for one in others], ["6", "4", "3", "2"], "the first four of the others")
    second = await store.list(ALICE, pinned=True, offset=1)
    same([one.title for one in second], ["1"], "the pinned ones after the first")


@law("labels")
async def label_keeps_revision_and_place(trial: Trial) -> None:
    """A new title or pin changes nothing else, not even the revision or the place in the list."""
    store = trial.store
    older, newer = await titled(store, "older"), await titled(store, "newer")
    renamed = await store.label(older.id, owner=ALICE, title="Renamed", pinned=True)
    same(renamed, replace(older, title="Renamed", pinned=True), "the conversation that label returns")
    same(await store.get(older.id, owner=ALICE), renamed, "the stored conversation")
    same(await store.list(ALICE), [newer, renamed], "the list")
    unpinned = await store.label(older.id, owner=ALICE, pinned=False)
    same(unpinned, replace(renamed, pinned=False), "the conversation without the pin")


@law("labels")
async def save_keeps_the_label(trial: Trial) -> None:
    """A save that does not know of a new title or pin keeps both."""
    store = trial.store
    conversation = await titled(store, "first words")
    await store.label(conversation.id, owner=ALICE, title="Chosen", pinned=True)
    more = chain(prompt("more"), after=conversation.head_id)
    saved = await store.save(replace(conversation, head_id=more[-1].id), more)
    same((saved.title, saved.pinned), ("Chosen", True), "title and pin that save returns")
    same(await store.get(conversation.id, owner=ALICE), saved, "the stored conversation")
    untitled = await titled(store, "")
    same((await store.save(replace(untitled, title="First"))).title, "First", "the first title of an untitled one")


@law("labels")
async def title_is_replaced_only_if_it_is_the_expected_one(trial: Trial) -> None:
    """`instead_of` replaces a title only if it is still that one."""
    store = trial.store
    conversation = await titled(store, "first words")
    for title in ("A summary", "Late"):
        labelled = await store.label(conversation.id, owner=ALICE, title=title, instead_of="first words")
        same(labelled.title, "A summary", f"the title after {title!r}")
    same((await store.get(conversation.id, owner=ALICE)).title, "A summary", "the stored title")


@law("labels")
async def only_owner_labels(trial: Trial) -> None:
    """Only the owner can rename a conversation, and only until it expires."""
    store = trial.store
    conversation = await titled(store, "A secret title")
    with refused(NotFound, "a label by another owner"):
        await store.label(conversation.id, owner=MALLORY, title="Taken")
    same(await store.get(conversation.id, owner=ALICE), conversation, "the conversation")
    expired = await store.save(replace(conversation, expires_at=trial.clock()))
    with refused(NotFound, "a label of an expired conversation"):
        await store.label(expired.id, owner=ALICE, title="Late")


NOTHING = ("sydney", "capital köln", "", "  ", "%", "_", "*", "?", "'", '"', "\\", "\0", "\ud800", "output_text")
"""Queries without a hit: reasoning, words of two conversations, wildcards, and the names of fields."""


@law("search")
async def search_finds_titles_prompts_and_answers(trial: Trial) -> None:
    """Search finds all words in a title, a prompt or an answer, within words and without case, and no wildcard."""
    store = trial.store
    by_title = await titled(store, "Grüße aus Köln")
    answer = ModelResponse(parts=[ThinkingPart("Sydney?"), TextPart("Canberra is the capital of Australia.")])
    entries = chain(prompt("Name the city"), answer)
    by_answer = await store.save(Conversation(owner=ALICE, title="Geo", head_id=entries[-1].id), entries)
    by_prompt = await titled(store, "", "東京タワーの高さ")

    async def found(query: str) -> list[tuple[str, str | None]]:
        return [(hit.conversation.id, hit.entry_id) for hit in await store.search(ALICE, query)]

    for query, expected in {
        "KÖLN grüsse": (by_title.id, None),
        "capital AUSTRALIA": (by_answer.id, entries[1].id),
        "apit": (by_answer.id, entries[1].id),
        "東京": (by_prompt.id, by_prompt.head_id),
        "タワー 高さ": (by_prompt.id, by_prompt.head_id),
    }.items():
        same(await found(query), [expected], f"the hits of {query!r}")
    for query in NOTHING:
        same(await found(query), [], f"the hits of {query!a}")


@law("search")
async def search_returns_last_saved_first_and_newest_message(trial: Trial) -> None:
    """The hits have the order of the list, each with the newest message that has all words, and no deleted ones."""
    store = trial.store
    first = await titled(store, "", "apple one", "pear", "apple two", "plum")
    second = await titled(store, "apple", "pear")
    hits = await store.search(ALICE, "apple")
    same([hit.conversation.id for hit in hits], [second.id, first.id], "the hits")
    same([hit.excerpt for hit in hits], ["apple", "apple two"], "the excerpts")
    for limit, expected in ((1, [second.id]), (0, []), (-1, [])):
        hits = await store.search(ALICE, "apple", limit=limit)
        same([hit.conversation.id for hit in hits], expected, f"the hits with limit={limit}")
    await store.delete(second.id, owner=ALICE)
    same([hit.conversation.id for hit in await store.search(ALICE, "apple")], [first.id], "the hits after a deletion")


@law("search")
async def branch_is_found_too(trial: Trial) -> None:
    """Search finds messages of branches."""
    store = trial.store
    conversation = await titled(store, "", "question about otters")
    other = chain(prompt("question about badgers"))
    await store.save(replace(conversation, head_id=other[0].id, branches=(conversation.head_id or "",)), other)
    same([hit.entry_id for hit in await store.search(ALICE, "otters")], [conversation.head_id], "the hits")


@law("search")
async def hit_is_on_shown_branch_if_it_has_one(trial: Trial) -> None:
    """Of a conversation with branches, the hit is the newest message of the branch that is shown, if one has all words.

    Without one, it is the newest of all.
    """
    store = trial.store
    first = chain(*(prompt(f"otters, part {number}") for number in range(3)))
    conversation = await store.save(Conversation(owner=ALICE, head_id=first[-1].id), first)
    second = chain(prompt("otters and badgers"), prompt("badgers"), after=first[0].id)
    conversation = await store.save(replace(conversation, head_id=second[-1].id, branches=(first[-1].id,)), second)
    third = chain(prompt("otters again"), after=first[0].id)
    ends = first[-1].id, second[-1].id, third[-1].id
    conversation = await store.save(replace(conversation, head_id=ends[2], branches=ends[:2]), third)
    for head, query, expected in (
        (ends[2], "otters", third[0]),
        (ends[1], "otters", second[0]),
        (ends[0], "OTTERS", first[2]),
        (ends[0], "otters part", first[2]),
        (ends[1], "part otters", first[0]),
        (ends[0], "badgers", second[1]),
        (ends[1], "part 2", first[2]),
    ):
        shown = replace(conversation, head_id=head, branches=tuple(end for end in ends if end != head))
        conversation = await store.save(shown)
        hits = [hit.entry_id for hit in await store.search(ALICE, query)]
        same(hits, [expected.id], f"the hits of {query!r} with the branch of {head!r}")


@law("search")
async def new_title_is_searched(trial: Trial) -> None:
    """Search finds the new title of a conversation and not the one before."""
    store = trial.store
    conversation = await titled(store, "first words")
    await store.label(conversation.id, owner=ALICE, title="A summary")
    same(
        [hit.conversation.id for hit in await store.search(ALICE, "summary")],
        [conversation.id],
        "the hits of the new title",
    )
    same(await store.search(ALICE, "words"), [], "the hits of the title before")


@law("search")
async def only_owner_searches(trial: Trial) -> None:
    """Search finds nothing of other owners and nothing that has expired."""
    store = trial.store
    conversation = await titled(store, "A secret title", "A secret message")
    same(await store.search(MALLORY, "secret"), [], "the hits of another owner")
    same(len(await store.search(ALICE, "secret")), 1, "the number of the owner's hits")
    await store.save(replace(conversation, expires_at=trial.clock()))
    same(await store.search(ALICE, "secret"), [], "the hits after the end")


SECRET = "hunter2"


@law("base")
async def delete_leaves_nothing(trial: Trial) -> None:
    """After a deletion, all calls raise `NotFound`, and a new conversation with that id has no old entries."""
    store = trial.store
    conversation, entries = await started(store, "1", "2")
    branch = chain(prompt("3"), after=entries[0].id)
    conversation = await store.save(replace(conversation, head_id=branch[-1].id, branches=(entries[-1].id,)), branch)
    kept, kept_entries = await started(store, "kept")
    await store.delete(conversation.id, owner=ALICE)
    for name, verb in VERBS.items():
        with refused(NotFound, f"{name} after the deletion"):
            await verb(store, conversation, ALICE)
    same(await store.list(ALICE), [kept], "the list")
    same(await store.history(kept), kept_entries, "the history of another conversation")
    again = await store.save(Conversation(id=conversation.id, owner=ALICE))
    for head in (entries[-1].id, branch[-1].id):
        with refused(NotFound, "a history that ends with a deleted entry"):
            await store.history(replace(again, head_id=head))
        with refused(HistoryError, "a save with a deleted entry as head"):
            await store.save(replace(again, head_id=head))


@law("base")
async def delete_takes_the_vectors_of_a_chat(trial: Trial) -> None:
    """The vectors of a program's chat go with it. Those of another chat stay, also if a visitor's chat has its id."""
    store = trial.store
    chats = [(await started(store, "1", owner=PROGRAM))[0] for _ in range(2)]
    vectors = [await store.save(Conversation(id=vectors_id(chat.id), owner=PROGRAM_VECTORS)) for chat in chats]
    await store.delete(chats[0].id, owner=PROGRAM)
    same(await store.list(PROGRAM_VECTORS), vectors[1:], "the vectors that are stored")
    with refused(NotFound, "a deletion by another owner"):
        await store.delete(chats[1].id, owner=ALICE)
    same(await store.list(PROGRAM_VECTORS), vectors[1:], "the vectors of the chat of another owner")


@law("base")
async def save_does_not_restore_deleted(trial: Trial) -> None:
    """A save of a deleted conversation raises `NotFound`."""
    conversation, _ = await started(trial.store)
    await trial.store.delete(conversation.id, owner=ALICE)
    with refused(NotFound, "a save after the deletion"):
        await trial.store.save(conversation)
    same(await trial.store.list(ALICE), [], "the list")


@law("retention")
async def erasing_removes_branches(trial: Trial) -> None:
    """`erase` removes a conversation with its branches, and no other."""
    store = trial.store
    conversation, entries = await started(store, "1", "2")
    branch = chain(prompt("3"), after=entries[0].id)
    conversation = await store.save(replace(conversation, head_id=branch[-1].id, branches=(entries[-1].id,)), branch)
    kept, kept_entries = await started(store, "kept")
    holds(await store.retention.erase(conversation), "erase returned False")
    same(await store.entries(conversation), [], "the entries after erase")
    same([text async for text in store.retention.texts(ALICE)][1:], [], "the stored texts of other conversations")
    same(await store.history(kept), kept_entries, "the history of another conversation")


async def _with_secrets(store: HistoryStore) -> Conversation:
    """Store a conversation that has a secret in each place for text."""
    conversation = await titled(store, f"{SECRET} title", *(f"{SECRET} {number} " * 900 for number in range(20)))
    branch = chain(prompt(f"{SECRET} branch"))
    conversation = await store.save(
        replace(conversation, head_id=branch[0].id, branches=(conversation.head_id or "",)), branch
    )
    await store.runs.append(batch(conversation, 1, f"{SECRET} event", f"{SECRET} other"))
    more = chain(prompt(f"{SECRET} end"), after=conversation.head_id)
    return await store.save(
        replace(conversation, head_id=more[-1].id), more, batch(conversation, 3, f"{SECRET} last", ended=True)
    )


@law("raw", "branches", "events", "retention")
async def deleted_text_is_nowhere(trial: Trial) -> None:
    """After `delete` or `erase`, nothing that is stored contains text of the conversation, its title or its runs."""
    for way in ("delete", "erase"):
        store = trial.store
        kept, entries = await started(store, *("kept" * 100 for _ in range(20)))
        conversation = await _with_secrets(store)
        await trial.reopen()  # what a store writes at its end and its beginning counts, too
        store = trial.store
        holds(SECRET.encode() in await trial.raw(), "the raw content does not show what is stored")
        if way == "delete":
            await store.delete(conversation.id, owner=ALICE)
        else:
            holds(await store.retention.erase(conversation), "erase returned False")
        holds(SECRET.encode() not in await trial.raw(), f"{way} leaves text of the conversation in the store")
        same(await store.history(kept), entries, "the history of another conversation")


@law("raw", "events")
async def text_of_removed_runs_is_nowhere(trial: Trial) -> None:
    """After the events of ended runs were removed, nothing that is stored contains their text."""
    store = trial.store
    conversation, _ = await started(store)
    await store.runs.append(batch(conversation, 1, f"{SECRET} event", ended=True))
    holds(SECRET.encode() in await trial.raw(), "the raw content does not show what is stored")
    trial.clock.go_forward(hours=2)
    same(await store.runs.remove(trial.clock.before(hours=1)), 1, "the number of removed runs")
    holds(SECRET.encode() not in await trial.raw(), "remove leaves the text of events in the store")


@law("raw", "retention")
async def deleted_text_among_others_is_nowhere(trial: Trial) -> None:
    """After `wipe`, nothing is left of conversations that were deleted while others grew, shrank and came.

    A store that keeps rows in pages has moved them by then, and can have left copies behind. These don't come back when
    the others grow further.
    """
    store, dice = trial.store, Random(5)  # seeds with which a SQLite file keeps copies without `wipe`
    live: dict[str, Conversation] = {}
    deleted: list[str] = []
    for number in range(150):
        word = f"{SECRET}-{number}-"
        live[word] = await titled(store, word, word * dice.choice((1, 30, 150)))
        for _ in range(2):
            word = dice.choice([*live])
            entries = chain(prompt(word * dice.choice((1, 30, 150))), after=live[word].head_id)
            live[word] = await grown(store, live[word], entries)
        if number % 2:
            deleted.append(dice.choice([*live]))
            holds(await store.retention.erase(live.pop(deleted[-1])), "erase returned False")
    await store.retention.wipe()
    same([word for word in deleted if word.encode() in await trial.raw()], [], "the deleted texts after `wipe`")
    for word, conversation in live.items():
        live[word] = await grown(store, conversation, chain(prompt("more"), after=conversation.head_id))
    await trial.reopen()
    raw = await trial.raw()
    same([word for word in deleted if word.encode() in raw], [], "the deleted texts in the store")
    same([word for word in live if word.encode() not in raw], [], "the kept texts that are missing in the store")


@law("raw")
async def nothing_of_a_refused_save_is_stored(trial: Trial) -> None:
    """Nothing that is stored contains text of a refused save."""
    store = trial.store
    conversation, _ = await started(store, "kept")
    lost = Entry(parent_id="nothing", message=prompt(SECRET))
    with refused(HistoryError, "a save of an entry without parent"):
        await grown(store, replace(conversation, title=SECRET), [lost])
    await trial.reopen()
    holds(SECRET.encode() not in await trial.raw(), "the text of a refused save is in the store")


MOST = 20
"""The most queries of an operation. Four would do, and a transaction has a beginning and an end."""
SPARE = 3
"""Further queries for the large conversation, for a store that reads large results in pieces."""

FAR = datetime(2999, 1, 1, tzinfo=UTC)

Operation = Callable[[HistoryStore, Conversation], Awaitable[object]]


async def _remove_last(store: HistoryStore, conversation: Conversation) -> None:
    before, last = await store.history(conversation, limit=2)
    await store.remove(replace(conversation, head_id=before.id), [last.id])


async def _erase_unused(store: HistoryStore, conversation: Conversation) -> None:
    conversations = await store.list(conversation.owner, limit=200)
    holds(await store.retention.erase_unused(conversation.owner, conversations), "erase_unused returned False")


OPERATIONS: dict[str, tuple[str, Operation]] = {
    "get": ("base", lambda store, chat: store.get(chat.id, owner=chat.owner)),
    "history": ("base", lambda store, chat: store.history(chat)),
    "history with a limit": ("base", lambda store, chat: store.history(chat, limit=2)),
    "entries": ("base", lambda store, chat: store.entries(chat)),
    "find": ("branches", lambda store, chat: store.find(chat, ids=[chat.head_id or ""], after=[None])),
    "following": ("branches", lambda store, chat: store.following(chat, chat.head_id or "")),
    "list": ("base", lambda store, chat: store.list(chat.owner, limit=200)),
    "save": ("base", lambda store, chat: grown(store, chat, chain(prompt("more"), after=chat.head_id))),
    "label": ("labels", lambda store, chat: store.label(chat.id, owner=chat.owner, title="New", pinned=True)),
    "list of pinned ones": ("labels", lambda store, chat: store.list(chat.owner, limit=200, pinned=True)),
    "list of the others": ("labels", lambda store, chat: store.list(chat.owner, limit=200, pinned=False)),
    "search": ("search", lambda store, chat: store.search(chat.owner, "message", limit=200)),
    "search of titles": ("search", lambda store, chat: store.search(chat.owner, "conversation", limit=200)),
    "expiring": ("retention", lambda store, chat: store.retention.expiring(FAR, owners=chat.owner, limit=200)),
    "set_expiry": ("retention", lambda store, chat: store.retention.set_expiry(chat, chat.expires_at)),
    "size": ("retention", lambda store, chat: store.retention.size(owners=chat.owner)),
    "sizes": ("retention", lambda store, chat: store.retention.sizes(owners=chat.owner)),
    "links": ("links", lambda store, chat: store.links.of(chat.id, owner=chat.owner)),
    "remove": ("branches", _remove_last),
    "delete": ("base", lambda store, chat: store.delete(chat.id, owner=chat.owner)),
    "erase": ("retention", lambda store, chat: store.retention.erase(chat)),
    "erase_unused": ("retention", _erase_unused),
}
"""The operations, by name, and the capability of each."""


@law("queries")
async def queries_do_not_grow(trial: Trial) -> None:
    """The number of queries of each operation is bounded, whatever the number of entries and conversations."""
    for name, (capability, call) in OPERATIONS.items():
        if trial.subject.offers(capability):
            small, large = await _stored(trial, f"{name}, small", 2, 2), await _stored(trial, f"{name}, large", 200, 30)
            await _compare(trial, name, call, small, large)


@law("queries", "events")
async def queries_of_runs_do_not_grow(trial: Trial) -> None:
    """The number of queries for the events of a run does not depend on the number of events and runs."""
    runs = trial.store.runs
    small, large = await _stored(trial, "small", 2, 2), await _stored(trial, "large", 200, 30)
    batches = {small.owner: 2, large.owner: 40}
    for conversation in (small, large):
        for number in range(batches[conversation.owner]):
            await runs.append(batch(conversation, number * 5 + 1, *"abcde", run=conversation.id))

    def end(store: HistoryStore, conversation: Conversation) -> Awaitable[object]:
        last = batch(conversation, batches[conversation.owner] * 5 + 1, "end", run=conversation.id, ended=True)
        return store.runs.append(last)

    await _compare(
        trial,
        "events",
        lambda store, chat: store.runs.events(chat.id, owner=chat.owner),
        small,
        large,
    )
    await _compare(trial, "append", end, small, large)
    for number in range(30):
        await runs.append(batch(small, 1, "a", run=f"run {number}"))
    _judge("unfinished", await trial.queries_of(runs.unfinished))
    for number in range(30):
        await runs.append(batch(small, 2, "end", run=f"run {number}", ended=True))
    _judge("remove", await trial.queries_of(lambda: runs.remove(FAR)))


async def _stored(trial: Trial, owner: str, entries: int, conversations: int) -> Conversation:
    """Store conversations of an owner, each with a branch, and return one with so many entries."""
    store, expires_at = trial.store, now() + timedelta(days=2)
    for number in range(conversations):
        few, other = chain(prompt(f"message {number}")), chain(prompt(f"other message {number}"))
        shown = Conversation(owner=owner, title=f"conversation {number}", head_id=few[0].id, expires_at=expires_at)
        await store.save(replace(shown, branches=(other[0].id,)), [*few, *other])
    many = chain(*(prompt(f"message {number}") for number in range(entries)))
    return await store.save(Conversation(owner=owner, head_id=many[-1].id, expires_at=expires_at), many)


async def _compare(trial: Trial, name: str, call: Operation, small: Conversation, large: Conversation) -> None:
    few = await trial.queries_of(lambda: call(trial.store, small))
    many = await trial.queries_of(lambda: call(trial.store, large))
    holds(few, f"no query of {name} was counted")
    _judge(name, many)
    shown = "\n".join(query[:200] for query in many)
    what = f"{name} makes {len(few)} queries for a small conversation and {len(many)} for a large one"
    holds(len(many) <= len(few) + SPARE, f"{what}:\n{shown}")


def _judge(name: str, queries: list[str]) -> None:
    shown = "\n".join(query[:200] for query in queries[:MOST])
    holds(len(queries) <= MOST, f"{name} makes {len(queries)} queries, and {MOST} are enough:\n{shown}")


@law("ledger")
async def id_is_used_once(trial: Trial) -> None:
    """Only the first use of an id returns True, whatever the id."""
    ledger, later = trial.ledger(), now() + timedelta(hours=1)
    for id_ in (new_id(), "../../with/slashes\u00e9'--", "a\0b", "", "x" * 5000):
        uses = [await ledger.use(id_, None), await ledger.use(id_, later), await ledger.use(id_, None)]
        same(uses, [True, False, False], f"three uses of {id_[:40]!a}")
    id_ = new_id()
    same([await ledger.use(id_, later) for _ in range(3)], [True, False, False], "uses of an id that expires later")


@law("ledger")
async def one_of_many_concurrent_uses_is_first(trial: Trial) -> None:
    """Of concurrent uses of an id, exactly one is the first."""
    ledger = trial.ledger()
    for _ in range(5):
        id_ = new_id()
        same(sum(await asyncio.gather(*(ledger.use(id_, None) for _ in range(10)))), 1, "the first uses of ten")


@law("ledger")
async def only_expired_ids_are_forgotten(trial: Trial) -> None:
    """A ledger may forget an id that has expired, and no other."""
    ledger = trial.ledger()
    gone, kept, for_ever = new_id(), new_id(), new_id()
    for id_, end in ((gone, now() - timedelta(seconds=1)), (kept, now() + timedelta(hours=1)), (for_ever, None)):
        holds(await ledger.use(id_, end), "the first use of an id returned False")
    for _ in range(20):
        await ledger.use(new_id(), None)
    holds(not await ledger.use(kept, None), "an id was forgotten before its end")
    holds(not await ledger.use(for_ever, None), "an id without end was forgotten")
