"""Reads PowerPoint presentations: texts, tables, charts, diagrams, notes and comments. Runs inside the sandbox."""

# lxml's results are known only in part.
# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false

from collections.abc import Collection, Iterator
from typing import Any

from agent.files.archive import Package, all_of, attribute, child, local, outermost, text_of
from agent.files.drawings import paragraphs, shape_texts
from agent.files.kinds import checked_pages


def read_pptx(data: bytes) -> tuple[str, list[str], Collection[str]]:
    """Return the title, the text of each slide, and what is left out."""
    package = Package(data, "PPTX")
    main = package.main("presentation")
    listed = child(package.xml(main), "sldIdLst")
    slides = [package.target(main, slide) for slide in (() if listed is None else listed)]
    seen = set[str]()
    pages = (
        "\n\n".join(text for text in _texts(package, slide, seen) if text.strip()) for slide in dict.fromkeys(slides)
    )
    return package.title(), checked_pages(pages), package.left_out


def _texts(package: Package, slide: str, seen: set[str]) -> Iterator[str]:
    root = package.xml(slide)
    if attribute(root, "show") in ("0", "false"):
        yield "(hidden slide)"
    yield from shape_texts(package, slide, root)
    if behind := [text for text in _behind(package, slide, root, seen) if text.strip()]:
        yield "Behind this slide:\n" + "\n".join(behind)
    for part in _new(package, slide, "notesSlide", seen):
        notes = [text for text in shape_texts(package, part, package.xml(part)) if text.strip()]
        if notes:
            yield "Notes:\n" + "\n".join(notes)
    for part in _new(package, slide, "comments", seen):
        for comment in outermost(package.xml(part), "cm"):
            if text := (text_of(comment, "text") or paragraphs(comment)):
                yield f"Comment: {text}"


def _new(package: Package, slide: str, kind: str, seen: set[str]) -> Iterator[str]:
    """Yield the parts of this kind that no slide before this one has."""
    for part in package.related(slide, kind):
        if part not in seen:
            seen.add(part)
            yield part


def _behind(package: Package, slide: str, root: Any, seen: set[str]) -> Iterator[str]:
    """Yield the texts that a layout and its master show behind their slides. Those in `seen` were read before."""
    while attribute(root, "showMasterSp") not in ("0", "false"):
        kind = "slideMaster" if local(root) == "sldLayout" else "slideLayout"
        part = next(package.related(slide, kind), "")
        if not part or part in seen:
            return
        seen.add(part)
        slide, root = part, package.xml(part)
        for tree in outermost(root, "spTree"):
            own = [one for one in tree if next(all_of(one, "ph", "pic"), None) is None]
            yield from shape_texts(package, slide, own)
