"""Pages that an answer names in its text become links to the document, as the numbers of a provider do."""

# ruff: noqa: RUF001

import pytest
from pydantic_ai.messages import BinaryContent, ModelMessage, ModelRequest, ModelResponse, TextPart, ToolReturnPart
from pydantic_ai.messages import UserPromptPart as Prompt

from agent.files.kinds import DOCX, PDF, Document
from agent.files.parts import document_text
from agent.files.passages import excerpt
from agent.messages.cited_documents import with_document_names


def attached(name: str, *pages: str, kind: str = PDF) -> list[object]:
    document = Document(kind, "", pages)
    return [BinaryContent(b"x", media_type=kind), document_text(name, document, excerpt(document, "", 10**6))]


REPORT = attached("report.pdf", "Nothing here.", "The rent of the hall is 812 euros.\nIt is paid in May.", "The end.")
LEASE = attached("lease.pdf", "Nothing.", "Pets are not allowed in the flat.")
LETTER = attached("letter.docx", "Dear Ann", "The deposit is 1624 euros.", kind=DOCX)


def named(text: str, *files: list[object], results: str = "") -> list[tuple[str, str, list[str]]]:
    """Return the words, the document with its page, and the passages of each citation of an answer."""
    messages: list[ModelMessage] = [ModelRequest([Prompt(["What?", *(item for file in files for item in file)])])]  # type: ignore[list-item]
    if results:
        messages.append(ModelRequest([ToolReturnPart("search_files", results, "1")]))
    [part] = with_document_names(ModelResponse([TextPart(text)]), [], messages).parts
    assert isinstance(part, TextPart)
    found = []
    for citation in part.citations or ():
        anchor = citation.anchor
        assert anchor is not None
        for source in citation.sources:
            found.append((text[anchor.start : anchor.end], getattr(source, "title", ""), source.excerpts))
    return found


PASSAGE = "The rent of the hall is 812 euros."
CASES = {
    "p.": ("The rent of the hall is 812 euros (p. 2).", [("(p. 2)", "report.pdf#page=2", [PASSAGE])]),
    "page, in brackets": ("The rent is 812 euros. [Page 2]", [("[Page 2]", "report.pdf#page=2", [PASSAGE])]),
    "with the name": ("It is due (report.pdf, page 3).", [("(report.pdf, page 3)", "report.pdf#page=3", [])]),
    "two pages": ("See (pp. 2-3).", [("(pp. 2-3)", f"report.pdf#page={page}", []) for page in (2, 3)]),
    "German": ("Siehe Miete (S. 2).", [("(S. 2)", "report.pdf#page=2", [])]),
    "Chinese": ("租金（第2页）。", [("（第2页）", "report.pdf#page=2", [])]),
    "number of the document": ("The rent of the hall is 812[1].", [("[1]", "report.pdf#page=2", [PASSAGE])]),
    "own list of the model": (
        "The rent is 812 euros [4].\n\n[4] report.pdf, p. 2",
        [("[4]", "report.pdf#page=2", [PASSAGE])],
    ),
    "own list of other things": ("So it is [1].\n\n[1] https://example.org", []),
    "page that is not there": ("See (p. 4) and [2].", []),
    "slide of a PDF": ("See (slide 2).", []),
    "code and formulas": ("```\na[1] = (p. 2)\n```\n`b[1]` $c[1]$", []),
    "link": ("[1](https://example.org) and [p. 2](x)", []),
    "words": ("The (group 2) has [a] part.", []),
}


@pytest.mark.parametrize(("text", "expected"), CASES.values(), ids=list(CASES))
def test_pages_that_an_answer_names_are_cited(text: str, expected: list[tuple[str, str, list[str]]]) -> None:
    assert named(text, REPORT) == expected


def test_page_of_several_documents_needs_a_name_or_the_words() -> None:
    files = (REPORT, LEASE, LETTER)
    assert [one[1] for one in named("The rent of the hall is 812 (p. 2).", *files)] == ["report.pdf#page=2"]
    assert [one[1] for one in named("Pets are not allowed (p. 2).", *files)] == ["lease.pdf#page=2"]
    assert [one[1] for one in named("As lease.pdf says, no (p. 2).", *files)] == ["lease.pdf#page=2"]
    assert [one[1] for one in named("The deposit (Section 2) [3].", *files)] == ["letter.docx#page=2"] * 2
    assert named("I do not know (p. 2).", *files) == []


def test_passage_comes_from_the_results_of_a_search() -> None:
    results = (
        "report.pdf, from page 3 of 3:\n[Page 3]\nThe notice is three months.\n\nother.pdf, page 1 of 1:\n[Page 1]\nx"
    )
    [(_words, title, passages)] = named("The notice is three months (p. 3).", REPORT, results=results)
    assert (title, passages) == ("report.pdf#page=3", ["The notice is three months."])


def test_answer_without_documents_stays_as_it_is() -> None:
    response = ModelResponse([TextPart("See (p. 2) and [1].")])
    assert with_document_names(response, [], [ModelRequest([Prompt("What?")])]) is response
