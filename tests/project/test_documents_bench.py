"""The bench of documents: its facts are where it says, it counts what is found, and it runs at a small size."""

import re

import pytest

from bench.documents import Sizes, is_under_its_page, main
from bench.planted_facts import Fact, written

SMALL = Sizes(pages=3, rounds=1, passages=80, searches=4, whole=2, document_pages=12, questions=4)


def test_each_value_is_only_on_its_page() -> None:
    texts, facts = written(3, 12, 40)
    assert len({fact.value for fact in facts}) == len({fact.question for fact in facts}) == 40
    for fact in facts:
        places = [
            (number, page)
            for number, pages in enumerate(texts)
            for page, text in enumerate(pages, 1)
            if fact.value in text
        ]
        assert places == [(fact.document, fact.page)]
        assert fact.sentence in texts[fact.document][fact.page - 1]
        assert fact.value not in fact.question
    assert written(3, 12, 40) == (texts, facts)


def test_right_page_is_the_nearest_mark_before_the_fact() -> None:
    fact = Fact("The rent is 812.", "What is the rent?", "812", 0, 7)
    assert is_under_its_page("[Page 3]\nNothing.\n\n[Page 7]\nText.\nThe rent is 812.\nMore.\n\n[Page 9]\nEnd.", fact)
    assert not is_under_its_page("[Page 7]\nText.\n\n[Page 8]\nThe rent is 812.", fact)
    assert not is_under_its_page("[Page 17]\nThe rent is 812.", fact)
    assert not is_under_its_page("[Page 7]\nThe rent is 813.", fact)


@pytest.mark.full
@pytest.mark.slow
def test_bench_finds_every_fact_in_small_documents(capsys: pytest.CaptureFixture[str]) -> None:
    given = [f"--{name.replace('_', '-')}={getattr(SMALL, name)}" for name in Sizes.__dataclass_fields__]
    assert main([*given, "--model", ""]) == 0
    printed = capsys.readouterr().out
    rows = dict(re.findall(r"^\| (.+?) \| (.*) \|$", printed, re.MULTILINE))
    assert rows["passage found by keywords"].endswith(" 4 in the first 10, of 4")
    assert rows["`Chat.search` by keywords, right page first"] == "2 of 2"
    assert rows["right page sent to a model of 32,768 tokens without tools"] == "4 of 4"
    assert rows["right page in a result of `search_files` for 8,192 tokens"] == "4 of 4"
    figures = ("read in the sandbox, median", "search by both, median, p95", "`Chat.search` by both, median, p95")
    assert all(re.match(r"[\d.]*[1-9]", rows[name]) for name in figures), "these times are above 0"
    assert printed.count("memory of") == 3
