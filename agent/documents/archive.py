"""Checks the ZIP archive of an Office document before a library opens it. Runs inside the sandbox."""

from io import BytesIO
from zipfile import BadZipFile, ZipFile

from agent.media.sentences import refused

MAX_UNPACKED = 200_000_000
MAX_XML = 50_000_000
"""Bytes that all parts, and all XML parts, of a document can have unpacked. An XML tree takes ten times its text."""
MAX_PARTS = 20_000

_COMPOUND = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
"""The beginning of Office files before 2007, and of newer ones that have a password."""
_DEFINITIONS = tuple(
    text.encode(encoding)
    for text in ("<!DOCTYPE", "<!ENTITY")
    for encoding in ("utf-8", "utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be")
)


def check_archive(data: bytes, kind: str) -> None:
    """Raise `InputError` for a document that has a password, unpacks to too much, is damaged or defines entities.

    `zipfile` never unpacks more of a part than its entry claims, so the sum of the claims is a limit.
    """
    if data.startswith(_COMPOUND):
        raise refused("locked_document" if "EncryptedPackage".encode("utf-16-le") in data else "old_document")
    try:
        with ZipFile(BytesIO(data)) as archive:
            parts = archive.infolist()
            if any(part.flag_bits & 1 for part in parts):
                raise refused("locked_document")
            xml = [part for part in parts if part.filename.lower().endswith((".xml", ".rels", ".vml"))]
            for some, most in ((parts, MAX_UNPACKED), (xml, MAX_XML)):
                if (size := sum(part.file_size for part in some)) > most:
                    raise refused("unpacked_bytes", size=size / 1e6, most=most / 1e6)
            if len(parts) > MAX_PARTS:
                raise refused("broken_document", kind=kind)
            for part in xml:
                text = archive.read(part)
                if any(definition in text for definition in _DEFINITIONS):
                    raise refused("entities")
    except (BadZipFile, EOFError, NotImplementedError, ValueError, OSError) as error:
        raise refused("broken_document", kind=kind) from error
