"""Long documents with facts at known pages, and a question for each fact. The same seed gives the same documents.

The text around the facts is of made-up words, as frequent as words of a language are (Zipf). What makes a question hard
are the other facts: of the same thing in another place, of the same place, and other facts of the same thing.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, product

THINGS = ("boathouse", "chapel", "granary", "lighthouse", "mill", "orchard", "school", "workshop")
PLACES = ("Aldermoor", "Brackwater", "Coldharbour", "Dunmere", "Eastlow", "Fennick", "Greyford", "Hollin", "Ilmarsh",
          "Kestwick", "Lorne", "Marlow")  # fmt: skip
KINDS = (
    ("The rent of the {thing} in {place} is {value} crowns a month.", "What is the rent of the {thing} in {place}?"),
    ("In {place}, the {thing} was built in the year {value}.", "When was the {thing} in {place} built?"),
    ("The wall of the {thing} in {place} is {value} metres long.", "How long is the {place} {thing}'s wall?"),
    ("There are {value} people who work in the {thing} in {place}.", "How many workers has the {thing} of {place}?"),
)
"""A sentence with a fact, and a question about it that has only some of its words."""
LINES, LINE_WORDS = 38, 11
"""The text of a page: about 2,500 characters, as on a page of a report."""
SYLLABLES = [f"{first}{vowel}" for first in "bdfgklmnprstv" for vowel in "aeiou"]


@dataclass(frozen=True, slots=True)
class Fact:
    """A sentence in the document with this number, on this page. Pages count from 1. No other page has its `value`."""

    sentence: str
    question: str
    value: str
    document: int
    page: int


def written(documents: int, pages: int, facts: int, *, seed: int = 18) -> tuple[list[list[str]], list[Fact]]:
    """Return the pages of each document, and the facts in them in a random order, at most 384."""
    chance = random.Random(seed)
    texts = [[_filler(chance) for _ in range(pages)] for _ in range(documents)]
    planted: list[Fact] = []
    every = [*product(THINGS, PLACES, KINDS)]
    chosen = chance.sample(every, min(facts, len(every)))
    values = chance.sample(range(1_000, 10_000), len(chosen))
    for (thing, place, (sentence, question)), number in zip(chosen, values, strict=True):
        document, page = chance.randrange(documents), chance.randrange(pages)
        said = sentence.format(thing=thing, place=place, value=number)
        texts[document][page].insert(chance.randrange(LINES), said)
        asked = question.format(thing=thing, place=place)
        planted.append(Fact(said, asked, str(number), document, page + 1))
    return [["\n".join(lines) for lines in text] for text in texts], planted


def _filler(chance: random.Random) -> list[str]:
    return [" ".join(chance.choices(_WORDS, cum_weights=_WEIGHTS, k=LINE_WORDS)) for _ in range(LINES)]


def _words(count: int) -> Sequence[str]:
    chance = random.Random(1)
    return ["".join(chance.choices(SYLLABLES, k=chance.choice((1, 2, 3, 3, 4)))) for _ in range(count)]


_WORDS = _words(20_000)
_WEIGHTS = [*accumulate(1 / (rank + 2) for rank in range(len(_WORDS)))]
