"""A document is cut to the passages that suit the question, in the order of its pages."""

import tracemalloc
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.files.kinds import PDF, Document
from agent.files.passages import Excerpt, best_excerpts, excerpt, excerpts, sections_of_text
from agent.files.ranking import KeywordIndex, Passage, pieces
from tests.tiers import examples

FILLER = "The committee met and the minutes of the last meeting were approved without any changes.\n" * 20


def report(**facts: str) -> Document:
    """Return a report of 41 pages, with these facts on the pages "p7"."""
    return Document(PDF, "", tuple(f"Chapter {n}\n{FILLER}{facts.get(f'p{n}', '')}\n{FILLER}" for n in range(1, 42)))


def test_short_document_stays_whole() -> None:
    document = Document(PDF, "", ("One", "", "Three"))
    assert excerpt(document, "", 200) == Excerpt(
        "[Page 1]\nOne\n\n[Page 2]\n\n[Page 3]\nThree", (1, 2, 3), is_whole=True
    )


def test_passages_with_words_of_the_question_are_chosen() -> None:
    document = report(p7="The rent of the hall is 812 euros.", p30="Renting a boat: 12 euros.")
    found = excerpt(document, "What does the hall rental cost?", 5_000)
    assert not found.is_whole
    assert "[Page 7]" in found.text
    assert "812 euros" in found.text
    assert found.text.index("[Page 7]") < found.text.index("[Page 30]") < found.text.index("boat: 12 euros.")
    assert set(found.pages) >= {7, 30}
    assert len(found.text.encode()) <= 5_000


def test_passages_are_found_in_scripts_without_spaces() -> None:
    found = excerpt(report(p9="会议室的租金是八百一十二欧元。"), "租金多少?", 3_000)
    assert "八百一十二" in found.text


WORDS = st.text("rent hall 812\u4e00\u4e8c\u4e09\u30eb", max_size=60)


@settings(max_examples=examples(60))
@given(st.lists(WORDS, max_size=12), WORDS)
def test_index_for_a_question_ranks_as_the_whole_index(texts: list[str], question: str) -> None:
    passages = [Passage(1, text) for text in texts]
    assert KeywordIndex(passages, question).ranked(question) == KeywordIndex(passages).ranked(question)


@pytest.mark.slow
def test_excerpt_of_a_text_of_many_words_takes_little_memory() -> None:
    """Each pair of characters is a word: a text of two million has as many, which took 250 MB in the app."""
    dice = Random(1)
    document = sections_of_text("".join(chr(dice.randrange(0x4E00, 0x9FFF)) for _ in range(100_000)))
    tracemalloc.start()
    try:
        assert excerpt(document, "\u4e00\u4e8c", 20_000).text
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
    finally:
        tracemalloc.stop()


FACT = "The rent of the hall is 812 euros."


@pytest.mark.parametrize("room", [250, 500, 800, 1_500, 5_000])
@pytest.mark.parametrize("filler", [FILLER, FILLER.replace("\n", " ")], ids=["lines", "one line"])
def test_passage_is_found_also_in_little_room(filler: str, room: int) -> None:
    pages = tuple(f"{filler}{FACT if number == 7 else ''}\n{filler}" for number in range(1, 42))
    documents = [Document(PDF, "", pages), Document(PDF, "", (filler,) * 41), Document(PDF, "", (filler,) * 9)]
    found = excerpts(documents, "What is the rent of the hall?", 3 * room)[0]
    assert FACT in " ".join(found.text.split())
    assert 7 in found.pages
    assert sum(len(one.text.encode()) for one in excerpts(documents, "rent", 3 * room)) <= 3 * room
    later = best_excerpts(documents, "What is the rent of the hall?", room)[0]
    assert later is not None
    assert FACT in " ".join(later.text.split())


@settings(max_examples=examples(60))
@given(st.lists(st.sampled_from(["word", "word.", "会议室的租金。", "x" * 90]), min_size=40), st.integers(50, 150))
def test_long_line_is_cut_after_words(words: list[str], most: int) -> None:
    line = " ".join(words)
    found = [*pieces(line, most)]
    assert "".join(found) == line
    assert all(len(piece) <= 2 * most for piece in found)
    assert all(len(piece) > most - 1 and piece[-1] in " 。" for piece in found[:-1] if "x" not in piece)


def test_question_without_known_words_gets_the_beginning() -> None:
    assert excerpt(report(), "Zusammenfassung bitte", 4_000).text.startswith("[Page 1]\nChapter 1")


def test_page_ranges_are_named() -> None:
    assert Excerpt("", (3, 4, 5, 9, 11, 12), is_whole=False).ranges == "3-5, 9, 11-12"
    assert Excerpt("", tuple(range(1, 80, 2)), is_whole=False).ranges.endswith("23 …")


def test_small_document_stays_whole_beside_a_large_one() -> None:
    note = Document(PDF, "", ("Only this.",))
    large, small = excerpts([report(), note], "What does the committee say?", 6_000)
    assert small.is_whole
    assert len(large.text.encode()) > 5_000


def test_long_text_file_becomes_sections() -> None:
    document = sections_of_text("line\n" * 3_000 + "x" * 9_000)
    assert max(map(len, document.pages)) <= 4_000
    assert "\n".join(document.pages).replace("\n", "") == "line" * 3_000 + "x" * 9_000


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=300) | st.sampled_from(
    ["", "word " * 900, "é" * 5_000]
)


@settings(max_examples=examples(60))
@given(st.lists(TEXT, min_size=1, max_size=6), TEXT, st.integers(800, 9_000))
def test_excerpt_never_exceeds_its_room(pages: list[str], question: str, room: int) -> None:
    document = Document(PDF, "", tuple(pages))
    found = excerpt(document, question, room)
    assert len(found.text.encode()) <= room
    assert list(found.pages) == sorted(set(found.pages))
    for text in found.text.split("\n"):
        assert text in ("[…]", "") or text.startswith("[Page ") or any(text in page for page in pages)
