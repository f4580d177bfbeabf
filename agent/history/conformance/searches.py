"""Laws of search."""

from dataclasses import replace

from pydantic_ai.messages import ModelResponse, TextPart, ThinkingPart

from agent.history.conformance.laws import law, same
from agent.history.conformance.samples import ALICE, MALLORY, chain, prompt, titled
from agent.history.conformance.trial import Trial
from agent.history.records import Record

NOTHING = ("sydney", "capital köln", "", "  ", "%", "_", "*", "?", "'", '"', "\\", "\0", "\ud800", "output_text")
"""Queries without a hit: reasoning, words of two conversations, wildcards, and the names of fields."""


@law("search")
async def search_finds_titles_prompts_and_answers(trial: Trial) -> None:
    """Search finds all words in a title, a prompt or an answer, within words and without case, and no wildcard."""
    store = trial.store
    by_title = await titled(store, "Grüße aus Köln")
    answer = ModelResponse(parts=[ThinkingPart("Sydney?"), TextPart("Canberra is the capital of Australia.")])
    entries = chain(prompt("Name the city"), answer)
    by_answer = await store.save(Record(owner=ALICE, title="Geo", head_id=entries[-1].id), entries)
    by_prompt = await titled(store, "", "東京タワーの高さ")

    async def found(query: str) -> list[tuple[str, str | None]]:
        return [(hit.record.id, hit.entry_id) for hit in await store.search(ALICE, query)]

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
    same([hit.record.id for hit in hits], [second.id, first.id], "the hits")
    same([hit.excerpt for hit in hits], ["apple", "apple two"], "the excerpts")
    for limit, expected in ((1, [second.id]), (0, []), (-1, [])):
        hits = await store.search(ALICE, "apple", limit=limit)
        same([hit.record.id for hit in hits], expected, f"the hits with limit={limit}")
    await store.delete(second.id, owner=ALICE)
    same([hit.record.id for hit in await store.search(ALICE, "apple")], [first.id], "the hits after a deletion")


@law("search")
async def branch_is_found_too(trial: Trial) -> None:
    """Search finds messages of branches."""
    store = trial.store
    record = await titled(store, "", "question about otters")
    other = chain(prompt("question about badgers"))
    await store.save(replace(record, head_id=other[0].id, branches=(record.head_id or "",)), other)
    same([hit.entry_id for hit in await store.search(ALICE, "otters")], [record.head_id], "the hits")


@law("search")
async def hit_is_on_shown_branch_if_it_has_one(trial: Trial) -> None:
    """Of a conversation with branches, the hit is the newest message of the branch that is shown, if one has all words.

    Without one, it is the newest of all.
    """
    store = trial.store
    first = chain(*(prompt(f"otters, part {number}") for number in range(3)))
    record = await store.save(Record(owner=ALICE, head_id=first[-1].id), first)
    second = chain(prompt("otters and badgers"), prompt("badgers"), after=first[0].id)
    record = await store.save(replace(record, head_id=second[-1].id, branches=(first[-1].id,)), second)
    third = chain(prompt("otters again"), after=first[0].id)
    ends = first[-1].id, second[-1].id, third[-1].id
    record = await store.save(replace(record, head_id=ends[2], branches=ends[:2]), third)
    for head, query, expected in (
        (ends[2], "otters", third[0]),
        (ends[1], "otters", second[0]),
        (ends[0], "OTTERS", first[2]),
        (ends[0], "otters part", first[2]),
        (ends[1], "part otters", first[0]),
        (ends[0], "badgers", second[1]),
        (ends[1], "part 2", first[2]),
    ):
        shown = replace(record, head_id=head, branches=tuple(end for end in ends if end != head))
        record = await store.save(shown)
        hits = [hit.entry_id for hit in await store.search(ALICE, query)]
        same(hits, [expected.id], f"the hits of {query!r} with the branch of {head!r}")


@law("search")
async def new_title_is_searched(trial: Trial) -> None:
    """Search finds the new title of a conversation and not the one before."""
    store = trial.store
    record = await titled(store, "first words")
    await store.label(record.id, owner=ALICE, title="A summary")
    same([hit.record.id for hit in await store.search(ALICE, "summary")], [record.id], "the hits of the new title")
    same(await store.search(ALICE, "words"), [], "the hits of the title before")


@law("search")
async def only_owner_searches(trial: Trial) -> None:
    """Search finds nothing of other owners and nothing that has expired."""
    store = trial.store
    record = await titled(store, "A secret title", "A secret message")
    same(await store.search(MALLORY, "secret"), [], "the hits of another owner")
    same(len(await store.search(ALICE, "secret")), 1, "the number of the owner's hits")
    await store.save(replace(record, expires_at=trial.clock()))
    same(await store.search(ALICE, "secret"), [], "the hits after the end")
