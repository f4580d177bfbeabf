"""Reads PowerPoint presentations: texts, tables, charts, diagrams, notes and comments. Runs inside the sandbox."""

# lxml's results are known only in part.
# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false

from collections.abc import Collection, Iterator

from agent.documents.archive import Package, all_of, attribute, child, text_of
from agent.documents.drawings import paragraphs, shape_texts
from agent.documents.refusals import checked_pages


def read_pptx(data: bytes) -> tuple[str, list[str], Collection[str]]:
    """Return the title, the text of each slide, and what is left out."""
    package = Package(data, "PPTX")
    main = package.main("presentation")
    listed = child(package.xml(main), "sldIdLst")
    slides = [package.target(main, slide) for slide in (() if listed is None else listed)]
    pages = ("\n\n".join(text for text in _texts(package, slide) if text.strip()) for slide in dict.fromkeys(slides))
    return package.title(), checked_pages(pages), package.left_out


def _texts(package: Package, slide: str) -> Iterator[str]:
    root = package.xml(slide)
    if attribute(root, "show") in ("0", "false"):
        yield "(hidden slide)"
    yield from shape_texts(package, slide, root)
    for part in package.related(slide, "notesSlide"):
        notes = [text for text in shape_texts(package, part, package.xml(part)) if text.strip()]
        if notes:
            yield "Notes:\n" + "\n".join(notes)
    for part in package.related(slide, "comments"):
        for comment in all_of(package.xml(part), "cm"):
            if text := (text_of(comment, "text") or paragraphs(comment)):
                yield f"Comment: {text}"
