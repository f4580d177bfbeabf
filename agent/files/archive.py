"""Opens the ZIP archive of an Office document, checks it, and finds its parts. Runs inside the sandbox.

Strict and transitional documents differ in the namespaces of their tags alone, so tags are compared without them.
Nothing that a document refers to is fetched.
"""

# lxml's results are known only in part.
# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportMissingTypeStubs=false

import posixpath
from collections.abc import Iterator
from io import BytesIO
from typing import Any
from urllib.parse import unquote
from zipfile import BadZipFile, ZipFile
from zlib import error as zlib_error

from agent.errors import InputError
from agent.files.kinds import clean
from agent.files.remarks import refused

MAX_UNPACKED = 200_000_000
MAX_XML = 50_000_000
"""Bytes that all parts, and all XML parts, of a document can have unpacked. An XML tree takes ten times its text."""
MAX_PARTS = 20_000
MAX_PARSED = 4 * MAX_XML
"""Bytes of XML that are parsed. A part that others refer to often is parsed as often."""

_COMPOUND = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
"""The beginning of Office files before 2007, and of newer ones that have a password."""
_OTHERS = ("mimetype", ".iwa", "xl/workbook.bin")
"""The ends of names of parts that only the archives of other programs have: of OpenDocument, EPUB, Apple and Excel."""
_DEFINITIONS = tuple(
    text.encode(encoding)
    for text in ("<!DOCTYPE", "<!ENTITY")
    for encoding in ("utf-8", "utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be")
)


class Package:
    """The parts of an Office document. Raises `InputError` as `_checked` does. `left_out` are names of `LEFT_OUT`."""

    def __init__(self, data: bytes, kind: str) -> None:
        self._kind = kind
        self._parts = _checked(data, kind)
        self._known: dict[str, dict[str, tuple[str, str]]] = {}
        self._addresses: dict[tuple[str, str], str] = {}
        self._parsed = 0
        self.left_out = set[str]()
        self.drawn_characters = 0
        """The characters of the charts and diagrams that are shown."""
        self.drawn: dict[str, str] = {}
        """The texts of the charts and diagrams that were read, by their parts."""

    def bytes_of(self, part: str) -> bytes:
        """Return the content of a part to parse it, "" if it is missing. Raises `InputError` if it is too much."""
        data = self._parts.get(part.lower(), b"")
        self._parsed += len(data)
        if self._parsed > MAX_PARSED:
            raise refused("slow_document")
        return data

    def xml(self, part: str) -> Any:
        """Return the root element of a part, an empty one if it is missing. Raises `InputError` if it is damaged."""
        from lxml import etree  # pyright: ignore[reportAttributeAccessIssue]

        data = self.bytes_of(part)
        if not data:
            return etree.Element("missing")
        try:
            root = etree.fromstring(data, etree.XMLParser(resolve_entities=False, no_network=True, huge_tree=True))
        except etree.XMLSyntaxError as error:
            raise xml_refusal(error, self._kind) from error
        return without_definitions(root)

    def main(self, root: str) -> str:
        """Return the name of the main part. Raises `InputError` if its root element is another: a wrong suffix."""
        part = next(self.related("", "officeDocument"), "")
        if local(self.xml(part)) != root:
            raise refused("wrong_document", kind=self._kind)
        return part

    def title(self) -> str:
        """Return the title in the document's properties, or ""."""
        found = [text_of(self.xml(part), "title") for part in self.related("", "core-properties")]
        return clean(found[0] if found else "")

    def related(self, part: str, kind: str) -> Iterator[str]:
        """Yield the parts that a part refers to with this kind of relationship, each once."""
        yield from dict.fromkeys(target for found, target in self._relationships(part).values() if found == kind)

    def target(self, part: str, element: Any) -> str:
        """Return the part that an element of a part refers to by its `r:id` or `r:embed`, or ""."""
        ids = [value for name, value in element.attrib.items() if name.endswith(("}id", "}embed", "}dm"))]
        return next((self._relationships(part)[one][1] for one in ids if one in self._relationships(part)), "")

    def address(self, part: str, element: Any) -> str:
        """Return the address outside the document that an element of a part links to by its `r:id`, or ""."""
        self._relationships(part)
        return self._addresses.get((part, attribute(element, "id")), "")

    def _relationships(self, part: str) -> dict[str, tuple[str, str]]:
        if part in self._known:
            return self._known[part]
        folder, name = posixpath.split(part)
        found: dict[str, tuple[str, str]] = {}
        self._known[part] = found
        for one in self.xml(posixpath.join(folder, "_rels", f"{name}.rels")):
            if one.get("TargetMode") == "External":
                self._addresses[part, one.get("Id", "")] = one.get("Target", "")
            elif local(one) == "Relationship":
                target = posixpath.normpath(posixpath.join("/", folder, unquote(one.get("Target", "")))).lstrip("/")
                found[one.get("Id", "")] = one.get("Type", "").rpartition("/")[2], target
        return found


_TOO_MUCH = (1, 2, 114)
"""Error codes of libxml2 for what is too deep or takes too much memory."""


def xml_refusal(error: Any, kind: str) -> InputError:
    """Return why a part cannot be parsed: it is damaged, or it takes too much."""
    return refused("slow_document") if error.code in _TOO_MUCH else refused("broken_document", kind=kind)


def without_definitions(element: Any) -> Any:
    """Return the element. Raises `InputError` if its document defines entities in an encoding not in `_DEFINITIONS`."""
    if element.getroottree().docinfo.internalDTD is not None:
        raise refused("entities")
    return element


def local(element: Any) -> str:
    """Return the tag of an element without its namespace, "" for a comment."""
    return element.tag.rpartition("}")[2] if isinstance(element.tag, str) else ""


def attribute(element: Any, name: str) -> str:
    """Return the attribute with this name in any namespace, or ""."""
    return next((value for key, value in element.attrib.items() if key.rpartition("}")[2] == name), "")


def child(element: Any, *path: str) -> Any:
    """Return the first element at this path of tags, or None."""
    for tag in path:
        element = None if element is None else next((one for one in element if local(one) == tag), None)
    return element


def value_at(element: Any, *path: str) -> str:
    """Return the attribute "val" of the first element at this path of tags, or ""."""
    found = child(element, *path)
    return "" if found is None else attribute(found, "val")


def all_of(element: Any, *tags: str) -> Iterator[Any]:
    """Yield the elements below this one that have one of these tags."""
    return element.iter(*(f"{{*}}{tag}" for tag in tags))


def outermost(element: Any, *tags: str) -> Iterator[Any]:
    """Yield the elements that `all_of` does, except for those within another one of them.

    Prefer it where each element found is walked through: a chain of them would be walked as often as it is long.
    """
    waiting = [element]
    while waiting:
        one = waiting.pop()
        if local(one) in tags:
            yield one
        else:
            waiting.extend(reversed(one))


def text_of(element: Any, *tags: str) -> str:
    """Return the texts of all elements below this one that have one of these tags."""
    return "".join(one.text or "" for one in all_of(element, *tags))


def _checked(data: bytes, kind: str) -> dict[str, bytes]:
    """Return the XML parts by their names in lower case.

    Raises `InputError` for a document that has a password, unpacks to too much, is damaged or defines entities.
    `zipfile` never unpacks more of a part than its entry claims, so the sum of the claims is a limit.
    """
    if data.startswith(_COMPOUND):
        kinds = {"EncryptedPackage": "locked_document", "__substg1.0_": "other_document"}
        named = (kind for name, kind in kinds.items() if name.encode("utf-16-le") in data)
        raise refused(next(named, "old_document"))
    if data and not data.startswith(b"PK"):
        raise refused("wrong_document", kind=kind)
    found: dict[str, bytes] = {}
    try:
        with ZipFile(BytesIO(data)) as archive:
            parts = archive.infolist()
            if any(part.filename.lower().endswith(_OTHERS) for part in parts):
                raise refused("other_document")
            if any(part.flag_bits & 1 for part in parts):
                raise refused("locked_document")
            xml = [part for part in parts if part.filename.lower().endswith((".xml", ".rels", ".vml"))]
            for some, most in ((parts, MAX_UNPACKED), (xml, MAX_XML)):
                if (size := sum(part.file_size for part in some)) > most:
                    raise refused("unpacked_bytes", size=size / 1e6, most=most / 1e6)
            if len(parts) > MAX_PARTS:
                raise refused("slow_document")
            for part in xml:
                text = archive.read(part)
                if any(definition in text for definition in _DEFINITIONS):
                    raise refused("entities")
                found[part.filename.replace("\\", "/").lstrip("/").lower()] = text
    except (BadZipFile, EOFError, NotImplementedError, ValueError, OSError, zlib_error) as error:
        raise refused("broken_document", kind=kind) from error
    return found
