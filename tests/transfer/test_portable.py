"""Our own export: nothing is lost in a round trip, all ids are new, and a large export needs little memory."""

import json
import tracemalloc
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic_ai.messages import BinaryContent, ImageUrl, ModelRequest, ModelResponse, TextPart, UserPromptPart
from pydantic_core import from_json

from agent.errors import InputError
from agent.files.references import files_named_in
from agent.files.store import MediaStore
from agent.history import Conversation, Entry, Note
from agent.history.codec import dump_entries
from agent.history.memory import MemoryStore
from agent.history.search import fold, searchable_text
from agent.history.sql.sqlite import SqliteStore
from agent.transfer import json_elements, portable
from agent.transfer.imported import MAX_MESSAGE_BYTES, MAX_MESSAGE_VALUES
from agent.transfer.json_elements import _PIECE as PIECE
from agent.transfer.json_elements import MAX_VALUES
from agent.transfer.portable import export_json
from agent.transfer.reading import ImportFile, ImportReader
from tests.support.asgi_requests import longest_call
from tests.support.gate_rows import gate_rows
from tests.support.history_stores import chain, prompt
from tests.support.media_files import random_png
from tests.support.transfers import (
    LIMITS,
    OWNER,
    branch,
    exported,
    found_in,
    histories,
    opened,
    shape,
    stored,
    texts_of,
    zipped,
)
from tests.tiers import examples

PROPERTY = settings(
    max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


async def files_of(media: MediaStore, owner: str, entries: Sequence[Entry]) -> dict[str, bytes]:
    ids = files_named_in(entry.message for entry in entries)
    return {id_: (await media.read(owner, id_)).data for id_ in ids}


@pytest.mark.parametrize("filler", [b'"', b"x", b"\\\\", b'\\"'], ids=ascii)
def test_elements_are_found_at_all_lengths_of_strings(tmp_path: Path, filler: bytes) -> None:
    """The file is searched in pieces, which can end in a string, and in one of its escapes."""
    for length in range(-6, 7):
        string = b"[" * 7 + b"x" * (PIECE + length) + (filler if filler != b'"' else b"") * 3
        elements = [b'{"a": "' + string + b'"}', b'{"b": [1, "]"]}', b'{"c": "' + b"}" * 3 * PIECE + b'"}']
        file = opened(b"[" + b" , ".join(elements) + b"]" + b" " * (2 * PIECE), tmp_path)
        assert [part.parse(span) for part, span in file.elements()] == [*map(from_json, elements)]


def test_zip_that_unpacks_to_far_more_is_refused(tmp_path: Path) -> None:
    for inside in (b"[" + b" " * 6_000_000 + b"]", b'["' + b"x" * 6_000_000 + b'"]'):
        with pytest.raises(InputError, match="far more"):
            opened(zipped({"conversations.json": inside}), tmp_path)


@PROPERTY
@given(history=histories())
async def test_round_trip_loses_nothing(tmp_path: Path, history: tuple[Conversation, list[Entry]]) -> None:
    store, media = MemoryStore(), MediaStore(tmp_path / "media")
    conversation = await stored(store, media, *history)
    entries = await store.entries(conversation)
    [found], reader = found_in(await exported(store, media, [conversation]), tmp_path)
    imported = found.read()
    files = {id_: source.read() for id_, source in imported.files.items()}
    before = shape(conversation, entries, await files_of(media, OWNER, entries))
    # Entries can have another order, with parents first. The order of the messages that are drawn is such an order.
    after = shape(imported.conversation, in_order_of(entries, imported.entries), files)
    assert repr(after) == repr(before)
    assert not reader.left_out
    old = {conversation.id, *(entry.id for entry in entries), *files_named_in(entry.message for entry in entries)}
    new = {imported.conversation.id, *(entry.id for entry in imported.entries), *imported.files}
    assert old.isdisjoint(new)


def in_order_of(entries: Sequence[Entry], imported: Sequence[Entry]) -> list[Entry]:
    """Return the imported entries in the order of those they were made of, which is that of a walk from the roots."""
    children: dict[str | None, list[Entry]] = {}
    for entry in entries:
        children.setdefault(entry.parent_id, []).append(entry)
    walk, waiting = list[str](), list(reversed(children.get(None, [])))
    while waiting:
        entry = waiting.pop()
        walk.append(entry.id)
        waiting += reversed(children.get(entry.id, []))
    made = dict(zip(walk, imported, strict=True))
    return [made[entry.id] for entry in entries]


async def test_many_conversations_and_pins(tmp_path: Path) -> None:
    store, media = await SqliteStore.open(tmp_path / "history.db"), MediaStore(tmp_path / "media")
    for title in ("one", "two"):
        entries = chain(prompt(title))
        await store.save(Conversation(owner=OWNER, title=title, pinned=title == "one", head_id=entries[0].id), entries)
    found, _ = found_in(await exported(store, media, await store.list(OWNER)), tmp_path)
    conversations = [one.read().conversation for one in found]
    assert {(conversation.title, conversation.pinned) for conversation in conversations} == {
        ("one", True),
        ("two", False),
    }
    assert {conversation.owner for conversation in conversations} == {""}
    await store.aclose()


async def test_deleted_attachment_is_reported(tmp_path: Path) -> None:
    store, media = MemoryStore(), MediaStore(tmp_path / "media")
    message = ModelRequest([UserPromptPart(["Look:", BinaryContent(random_png(), media_type="image/png")])])
    entries = chain(message)
    conversation = await stored(store, media, Conversation(owner=OWNER, head_id=entries[0].id), entries)
    await media.remove_unused(OWNER, [*await media.files(OWNER)], float("inf"))
    [found], reader = found_in(await exported(store, media, [conversation]), tmp_path)
    assert dict(reader.left_out) == {"missing file": 1}
    [entry] = found.read().entries
    assert files_named_in([entry.message]).isdisjoint(
        files_named_in(one.message for one in await store.entries(conversation))
    )


async def test_export_names_no_owner(tmp_path: Path) -> None:
    store, media = MemoryStore(), MediaStore(tmp_path / "media")
    entries = chain(prompt())
    conversation = await store.save(Conversation(owner=OWNER, head_id=entries[0].id), entries)
    assert OWNER not in (await exported(store, media, [conversation])).decode()


def element(**changes: Any) -> list[dict[str, Any]]:
    """Return an export with a conversation of two messages, changed."""
    request = {"kind": "request", "parts": [{"part_kind": "user-prompt", "content": "Hello"}]}
    entries = [{"id": "a", "parent_id": None, "message": request}, {"id": "b", "parent_id": "a", "message": request}]
    fields = {"conversation": {"id": "c", "title": "T", "head_id": "b"}, "entries": entries}
    return [{"switchboard": 1}, {**fields, **changes}]


HELLO = {"kind": "request", "parts": [{"part_kind": "user-prompt", "content": "Hello"}]}
DAMAGED: dict[str, dict[str, Any]] = {
    "no entries": {"entries": None},
    "entries of another type": {"entries": ["x", 1, None]},
    "a missing parent": {"entries": [{"id": "b", "parent_id": "x", "message": HELLO}]},
    "its own ancestor": {
        "entries": [{"id": "a", "parent_id": "b", "message": HELLO}, {"id": "b", "parent_id": "a", "message": HELLO}]
    },
    "two of one id": {"entries": [{"id": "b", "parent_id": None, "message": HELLO}] * 2},
    "a missing end": {"conversation": {"id": "c", "head_id": "x"}},
    "a missing branch": {"conversation": {"id": "c", "head_id": "b", "branches": ["x"]}},
    "a record of another type": {"conversation": {"head_id": "b", "title": ["x"]}},
    "an unknown message": {"entries": [{"id": "b", "parent_id": None, "message": {"kind": "x"}}]},
    "a number that is none": {"conversation": {"head_id": "b", "cost": "nan"}},
}


@pytest.mark.parametrize("changes", DAMAGED.values(), ids=DAMAGED)
def test_damaged_conversation_is_left_out_whole(tmp_path: Path, changes: dict[str, Any]) -> None:
    found, reader = found_in([*element(), element(**changes)[1]], tmp_path)
    assert len(found) == 1
    assert dict(reader.left_out) == {"damaged chat": 1}


def test_conversation_that_the_page_cannot_show_is_left_out(tmp_path: Path) -> None:
    """Otherwise the page could not open any more, because it shows the last conversation."""

    def check(_: object) -> None:
        raise KeyError("name")

    reader = ImportReader(opened(json.dumps(element()).encode(), tmp_path), LIMITS.attachment_bytes, check)
    assert [found for found in reader.find() if found] == []
    assert dict(reader.left_out) == {"damaged chat": 1}


def test_newer_version_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="newer version"):
        found_in([{"switchboard": 2}, *element()[1:]], tmp_path)


@pytest.mark.parametrize(
    "part",
    [
        {"kind": "image-url", "url": "http://169.254.169.254/latest", "media_type": "image/png"},
        {"kind": "document-url", "url": "file:///etc/passwd", "media_type": "text/plain"},
        {"kind": "video-url", "url": "https://example.org/x.mp4", "media_type": "video/mp4"},
        {"kind": "uploaded-file", "file_id": "file-of-another-account", "provider_name": "openai"},
    ],
    ids=lambda part: part["kind"],
)
def test_parts_that_fetch_become_text(tmp_path: Path, part: dict[str, Any]) -> None:
    """A provider or pydantic-ai would fetch these with the server's network and keys."""
    content = ["See", part]
    message = {"kind": "request", "parts": [{"part_kind": "user-prompt", "content": content}]}
    entries = [{"id": "b", "parent_id": None, "message": message}]
    [found], reader = found_in(element(entries=entries), tmp_path)
    [entry] = found.read().entries
    [prompted] = entry.message.parts
    assert isinstance(prompted, UserPromptPart)
    assert all(isinstance(one, str) for one in prompted.content)
    assert sum(reader.left_out.values()) == 1


def test_media_id_of_another_conversation_is_renewed(tmp_path: Path) -> None:
    id_ = "0" * 32 + ".png"
    part = {"kind": "image-url", "url": f"/media/{id_}", "media_type": "image/png"}
    message = {"kind": "request", "parts": [{"part_kind": "user-prompt", "content": ["See", part]}]}
    [found], reader = found_in(element(entries=[{"id": "b", "parent_id": None, "message": message}]), tmp_path)
    [entry] = found.read().entries
    [prompted] = entry.message.parts
    assert isinstance(prompted, UserPromptPart)
    link = prompted.content[1]
    assert isinstance(link, ImageUrl)
    assert link.url != f"/media/{id_}"
    assert dict(reader.left_out) == {"missing file": 1}


def test_run_ids_are_renewed_and_negative_costs_removed(tmp_path: Path) -> None:
    note = {"run_id": "f" * 32, "cost": -1.0, "ended": "stop"}
    entries = [{"id": "b", "parent_id": None, "message": HELLO, "note": note}]
    [found], _ = found_in(element(entries=entries), tmp_path)
    [entry] = found.read().entries
    assert entry.note.run_id not in ("", "f" * 32)
    assert entry.note.cost is None


async def test_branch_leads_to_the_same_texts(tmp_path: Path) -> None:
    store, media = MemoryStore(), MediaStore(tmp_path / "media")
    first = chain(prompt("1"), prompt("2"))
    other = [Entry(parent_id=first[0].id, message=prompt("3"), note=Note(ended="stop"))]
    conversation = Conversation(owner=OWNER, head_id=other[0].id, branches=(first[1].id,))
    conversation = await store.save(conversation, [*first, *other])
    [found], _ = found_in(await exported(store, media, [conversation]), tmp_path)
    imported = found.read()
    assert texts_of(branch(imported.entries, imported.conversation.head_id)) == ["1", "3"]
    assert texts_of(branch(imported.entries, imported.conversation.branches[0])) == ["1", "2"]


async def peaks(folder: Path, count: int) -> tuple[int, int]:
    """Return the most bytes in use during an export of `count` files of a megabyte, and during their import."""
    store, media = MemoryStore(), MediaStore(folder / "media")
    for number in range(count):
        picture = BinaryContent(bytes([number]) * 1_000_000, media_type="image/png")
        entries = chain(ModelRequest([UserPromptPart([picture])]))
        await stored(store, media, Conversation(owner=OWNER, head_id=entries[0].id), entries)
    tracemalloc.start()
    try:
        with (folder / "file.json").open("wb") as file:
            async for piece in export_json(store, media, await store.list(OWNER, limit=count)):
                file.write(piece)
        export = tracemalloc.get_traced_memory()[1]
        tracemalloc.reset_peak()
        with (folder / "file.json").open("rb") as file:
            reader = ImportReader(ImportFile(file, folder, LIMITS), LIMITS.attachment_bytes)
            sizes = [len(one.read()) for found in reader.find() if found for one in found.read().files.values()]
        assert sizes == [1_000_000] * count
        return export, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.slow
async def test_large_export_needs_no_more_memory_than_a_small_one(tmp_path: Path) -> None:
    small, large = tmp_path / "small", tmp_path / "large"
    small.mkdir()
    large.mkdir()
    for few, many in zip(await peaks(small, 4), await peaks(large, 40), strict=True):
        assert many < 4 * few


def test_element_with_too_many_values_is_left_out(tmp_path: Path) -> None:
    """Its values would be made in one step that no other thread can interrupt. Commas in a text are no values."""
    many = b'{"a": [' + b"1," * (MAX_VALUES + 1) + b"1]}"
    text = b'{"a": "' + b', \\" ' * MAX_VALUES + b'"}'
    file = opened(b"[" + b",".join([many, text, b'{"b": 1}']) + b"]", tmp_path)
    [(part, first), *others] = file.elements()
    with pytest.raises(ValueError, match="too many values"):
        part.parse(first)
    assert [[*part.parse(span)] for part, span in others] == [["a"], ["b"]]


MOST_SECONDS = 0.02
"""The most processor time of a step in which no other thread can run. 10 ms are the goal; slow machines need 15."""
LONGEST = MAX_MESSAGE_BYTES - 1_000
ELEMENTS: dict[str, Callable[[], bytes]] = {
    "a text": lambda: ours(b'"' + b"word " * (LONGEST // 5) + b'"'),
    "emoji": lambda: ours(('"' + "\N{GRINNING FACE} " * (LONGEST * 2 // 15) + '"').encode()),
    "control signs": lambda: ours(b'"' + b"\\u0001" * (LONGEST // 6) + b'"'),
    "escaped emoji": lambda: ours(b'"' + b"\\ud83d\\ude00" * (LONGEST // 12) + b'"'),
    "long messages": lambda: ours(*[b'"' + b"word " * (LONGEST // 5) + b'"'] * 4),
    "many messages": lambda: ours(*[b'"Pear."'] * 1_000),
    "values": lambda: ours(b"[" + b"1," * 10_000 + b"1]"),
    "a chat of another program": lambda: json.dumps(
        [{"name": "long", "chat_messages": [{"uuid": "1", "sender": "human", "text": "word " * (LONGEST // 5)}]}]
    ).encode(),
    "numbers": lambda: b'[{"a":[' + b"1," * MAX_VALUES + b"1]}]",
    "more numbers": lambda: b'[{"a":[' + b"1," * 10_000_000 + b"1]}]",
    "a longer text": lambda: ours(b'"' + b"word " * 6_000_000 + b'"'),
    "a longer text of emoji": lambda: ours(('"' + "\N{GRINNING FACE} " * 6_000_000 + '"').encode()),
    "a number": lambda: b'[{"a":' + b"1" * 30_000_000 + b"}]",
    "spaces": lambda: b'[{"a":' + b" " * 30_000_000 + b"1}]",
    "strings": lambda: b'[{"a":[' + b'"' + b'","' * MAX_VALUES + b'"]}]',
    "a file": lambda: ours(b'"Pear."')[:-1] + b',{"file":"a","data":"' + b"AAAA" * 6_000_000 + b'"}]',
}


def ours(*contents: bytes) -> bytes:
    """Return an export in our format with a chat of these contents, each in a result of a tool."""
    entries = list[bytes]()
    for number, content in enumerate(contents):
        part = b'{"part_kind":"tool-return","tool_name":"look","tool_call_id":"1","content":%s}' % content
        parent = b'"%d"' % (number - 1) if number else b"null"
        message = b'{"kind":"request","parts":[%s]}' % part
        entries.append(b'{"id":"%d","parent_id":%s,"message":%s,"note":{}}' % (number, parent, message))
    conversation = b'{"id":"c","title":"t","head_id":"%d"}' % (len(contents) - 1)
    return b'[{"switchboard":1},{"conversation":%s,"entries":[%s]}]' % (conversation, b",".join(entries))


@pytest.mark.slow
@pytest.mark.parametrize("make", gate_rows(ELEMENTS, ("more numbers", "a longer text of emoji", "a file")))
def test_no_step_of_an_import_is_long(tmp_path: Path, make: Callable[[], bytes]) -> None:
    """Threads read imports, and other threads wait during each call of C code."""
    data, steps = make(), list[tuple[float, str]]()
    while len(steps) < 5 and (not steps or steps[-1][0] > MOST_SECONDS):  # a busy machine can be slow
        (tmp_path / "export").write_bytes(data)
        with (tmp_path / "export").open("rb") as file, longest_call() as longest:
            reader = ImportReader(ImportFile(file, tmp_path, LIMITS), LIMITS.attachment_bytes)
            with suppress(InputError):
                for found in reader.find():
                    for entry in found.read().entries if found else ():
                        dump_entries([entry])
                        fold(searchable_text(entry))
        steps += longest
    assert min(steps)[0] < MOST_SECONDS, min(steps)


def test_longer_message_is_left_out(tmp_path: Path) -> None:
    messages = (b'"' + b"x" * MAX_MESSAGE_BYTES + b'"', b"[" + b"1," * 3 * MAX_MESSAGE_VALUES + b"1]")
    for content in messages:
        reader = ImportReader(opened(ours(b'"Pear."', content), tmp_path), LIMITS.attachment_bytes)
        assert [*filter(None, reader.find())] == []
        assert reader.left_out.total() == 1


SAMPLES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=150),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=9), inner, max_size=6),
    max_leaves=30,
)


@PROPERTY
@given(
    value=st.dictionaries(st.text(max_size=9), SAMPLES, max_size=8), spaced=st.booleans(), step=st.integers(128, 500)
)
def test_element_is_the_same_in_steps_of_any_length(tmp_path: Path, value: Any, spaced: bool, step: int) -> None:
    data = json.dumps([value], indent=2 if spaced else None, ensure_ascii=step % 2 == 0).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_elements, "STEP_BYTES", step)
        patch.setattr(json_elements, "_PIECE", step // 2)
        [(part, span)] = opened(data, tmp_path).elements()
        assert part.parse(span) == value


@pytest.mark.parametrize("text", ["[1,,2]", "[1 2]", "[,1]", "[1,]", '{"a":1 "b":2}', '{"a":}', "{1:2}", '{"a"}', "[}"])
@pytest.mark.parametrize("filler", ["", '["x"],', "1," * 9, '"x", '])
def test_what_is_no_json_is_refused_in_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, filler: str
) -> None:
    monkeypatch.setattr(json_elements, "STEP_BYTES", 4)
    data = f'[{{"a": [{filler}{text}]}}]'.encode()
    [(part, span)] = opened(data, tmp_path).elements()
    with pytest.raises(ValueError, match=r"."):
        part.parse(span)


def test_half_of_an_emoji_is_replaced_in_a_long_element(tmp_path: Path) -> None:
    halves = rb"\ud83d x \ude00 \\ud83d \ud83d\ude00 \"\ud83d\n\uD83D\uDE00 \ud83d"
    element = b'{"a": "' + halves + b'", "b": "' + b"x" * 4_000_000 + b'"}'
    [(part, span)] = opened(b"[" + element + b"]", tmp_path).elements()
    assert part.parse(span)["a"] == '\ufffd x \ufffd \\ud83d \U0001f600 "\ufffd\n\U0001f600 \ufffd'


def test_half_of_an_emoji_and_no_number_are_read_together(tmp_path: Path) -> None:
    [(part, span)] = opened(rb'[{"a": "\ud83d", "b": NaN}]', tmp_path).elements()
    assert part.parse(span) == {"a": "\ufffd", "b": None}


@pytest.mark.parametrize(("answers", "is_found"), [(3, True), (4, False)])
async def test_turn_of_too_many_messages_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: int, *, is_found: bool
) -> None:
    monkeypatch.setattr(portable, "MOST_IN_TURN", 4)
    said = [ModelResponse([TextPart("Pear.")])] * answers
    entries = chain(prompt("one"), *said, prompt("two"), *said)
    store, media = MemoryStore(), MediaStore(tmp_path)
    conversation = await stored(store, media, Conversation(owner=OWNER, head_id=entries[-1].id), entries)
    found, reader = found_in(await exported(store, media, [conversation]), tmp_path)
    assert (len(found), dict(reader.left_out)) == ((1, {}) if is_found else (0, {"damaged chat": 1}))
