"""Laws of what comes back: the same messages in the same order, with every character."""

import time
from dataclasses import replace
from datetime import timedelta

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

from agent.history.codec import dump_entries
from agent.history.conformance.laws import allowed, holds, law, same
from agent.history.conformance.samples import ALICE, chain, grown, prompt, prompts, started
from agent.history.conformance.trial import Trial
from agent.history.records import Entry, Note, Record, Timings, new_id, now


@law("base")
async def saved_history_is_read_back(trial: Trial) -> None:
    """Every field of a record and an entry is read back as it was saved."""
    store = trial.store
    timings = Timings(first_token=0.25, total=1.5, output_tokens=3, input_tokens=4, estimated=True)
    note = Note(run_id="r", model="m", ended="error", detail="Why.", timings=timings, cost=0.01, attachments=("a", "b"))
    entry = Entry(parent_id=None, message=prompt(), note=note)
    record = Record(
        owner=ALICE,
        title="A title",
        head_id=entry.id,
        branches=(new_id(),),
        pending=("call",),
        input_tokens=1,
        output_tokens=2,
        cost=0.5,
        expires_at=now() + timedelta(hours=1),
    )
    before = now()
    saved = await store.save(record, [entry])
    same(saved, replace(record, revision=1, updated_at=saved.updated_at), "the record that save returns")
    holds(before <= saved.updated_at <= now(), "save did not set updated_at to the time of the save")
    same(await store.get(record.id, owner=ALICE), saved, "the record that get returns")
    same(await store.list(ALICE), [saved], "the list")
    same(await store.history(saved), [entry], "the history")


@law("base")
async def entries_come_oldest_first(trial: Trial) -> None:
    """The entries of a history come oldest first, whatever the number of saves."""
    store = trial.store
    record, first = await started(store, "1", "2", "3")
    second = chain(prompt("4"), after=first[-1].id)
    record = await grown(store, record, second)
    third = chain(prompt("5"), prompt("6"), after=second[-1].id)
    record = await grown(store, record, third)
    same(await store.history(record), [*first, *second, *third], "the history")
    same(await store.entries(record), [*first, *second, *third], "all entries")
    same(record.revision, 3, "the revision after three saves")


@law("base")
async def limit_keeps_newest(trial: Trial) -> None:
    """A limit leaves the newest entries, oldest first, and a limit below one leaves none."""
    record, _ = await started(trial.store, *"12345")
    for limit, expected in ((None, "12345"), (9, "12345"), (5, "12345"), (2, "45"), (1, "5"), (0, ""), (-1, "")):
        found = await trial.store.history(record, limit=limit)
        same(prompts(found), [*expected], f"the history with limit={limit}")


@law("base")
async def conversation_can_be_empty(trial: Trial) -> None:
    """A conversation without entries has an empty history."""
    with allowed("a conversation without entries"):
        record = await trial.store.save(Record(owner=ALICE))
        same(await trial.store.history(record), [], "the history")
        same(await trial.store.entries(record), [], "all entries")


@law("base")
async def unicode_comes_back_byte_for_byte(trial: Trial) -> None:
    """Text comes back byte for byte, with NUL. Halves of surrogate pairs are replaced as `codec` does it."""
    store = trial.store
    texts = ["a\0b", "e\u0301 is not \u00e9", "\u2028\r\n\t\x7f", "\U0001f469\u200d\U0001f4bb", "\\ud800", "\ufeff"]
    entries = chain(*map(prompt, texts))
    record = await store.save(Record(owner=ALICE, title="".join(texts), head_id=entries[-1].id), entries)
    same(record.title, "".join(texts), "the title that save returns")
    same((await store.get(record.id, owner=ALICE)).title, "".join(texts), "the stored title")
    same(prompts(await store.history(record)), texts, "the prompts")

    halves = Entry(parent_id=None, message=prompt("lone \ud83d, joined \ud83d\ude00, NUL \0"))
    record = await store.save(Record(owner=ALICE, title="\udfff", head_id=halves.id), [halves])
    same(prompts(await store.history(record)), ["lone \ufffd, joined \U0001f600, NUL \0"], "halves of surrogate pairs")
    same(record.title, "\ufffd", "the title of half a surrogate pair")


@law("retention")
async def stored_text_is_that_of_the_codec(trial: Trial) -> None:
    """The text of each entry is stored byte for byte as `codec` writes it, also the order of its keys."""
    details = {"z": 1, "a": [1.0, 1e300, -0.0, 2**70], "NUL": "\0", "lone": "\ud800", "é": None}
    answer = ModelResponse([TextPart("x\0", provider_details=details), ThinkingPart("", signature="s==")])
    entries = chain(prompt("\ud83d\ude00 \udfff \0 \u2028"), answer)
    await grown(trial.store, Record(owner=ALICE), entries)
    found = [text async for text in trial.store.retention.texts(ALICE)]
    same(sorted(found), sorted(dump_entries(entries)), "the stored texts")


@law("base")
async def bytes_come_back(trial: Trial) -> None:
    """The bytes of media come back, wherever a message has them."""
    data = bytes(range(256)) + b"\0" * 9
    media = BinaryContent(data, media_type="application/x-own", identifier="scan")
    message = ModelRequest([UserPromptPart(["See:", media]), ToolReturnPart("tool", [media], "call-1")])
    record = await grown(trial.store, Record(owner=ALICE), chain(message))
    (entry,) = await trial.store.history(record)
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
        record = await grown(trial.store, Record(owner=ALICE), chain(message))
        shown = repr(await trial.store.history(record))
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
    record = await grown(trial.store, Record(owner=ALICE, pending=("call-1",)), entries)
    same(await trial.store.history(record), entries, "the history")


@law("base")
async def ten_megabytes_come_back(trial: Trial) -> None:
    """A conversation of 10 MB comes back, with a single message of 4 MB."""
    store = trial.store
    record, entries = await started(store, "0123456789abcdef" * 2**18)
    for number in range(3):
        added = chain(*(prompt(f"{number}.{i} " + "ü" * 100_000) for i in range(10)), after=entries[-1].id)
        record = await grown(store, record, added)
        entries += added
    holds(sum(len(text.encode()) for text in dump_entries(entries)) >= 10_000_000, "the conversation has 10 MB")
    holds(await store.history(record) == entries, "the history of 10 MB is not the one that was saved")
    holds(await store.history(record, limit=2) == entries[-2:], "its newest two entries are not those that were saved")


@law("base")
async def history_loads_in_linear_time(trial: Trial) -> None:
    """The time to load a history is proportional to its length."""

    async def seconds(turns: int) -> float:
        messages = [message for i in range(turns) for message in (prompt(f"Why {i}? " * 10), answer)]
        entries = chain(*messages)
        record = await grown(trial.store, Record(owner=ALICE), entries)
        spans: list[float] = []
        for _ in range(5):
            begun = time.process_time()
            same(await trial.store.history(record), entries, "the history")
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
    record = await grown(trial.store, Record(owner=ALICE), chain(message))
    _rewrite(message)
    (loaded,) = await trial.store.history(record)
    same(prompts([loaded]), ["before"], "the prompt after its message was changed")
    _rewrite(loaded.message)
    same(prompts(await trial.store.history(record)), ["before"], "the prompt after the loaded message was changed")


@law("base")
async def second_close_does_nothing(trial: Trial) -> None:
    """A store can be closed twice."""
    await trial.store.aclose()
    with allowed("a second close"):
        await trial.store.aclose()


def _rewrite(message: ModelMessage) -> None:
    for part in message.parts:
        if isinstance(part, UserPromptPart):
            part.content = "after"
