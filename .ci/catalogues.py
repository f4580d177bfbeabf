"""Keeps the catalogues complete: collects the marked sentences of the code, and updates or checks each `.po` file.

`PYTHONPATH=. python .ci/catalogues.py` writes new sentences into every catalogue, untranslated, and removes those that
the code no longer has. It also writes `formats.json`. With `--check` it changes nothing. Both print what is missing or
broken, and exit with 1 for that. Babel is a package for development only.
"""

import argparse
import json
import re
import string
import sys
from collections.abc import Iterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import cast

from babel.core import Locale, UnknownLocaleError
from babel.messages.catalog import Catalog, Message
from babel.messages.extract import extract_from_dir
from babel.messages.pofile import PoFileError, read_po, write_po

from agent.i18n.translator import FORMATS, LANGUAGES

PACKAGE = FORMATS.parents[1]
KEYWORDS = {"_": None, "N_": None, "ngettext": (1, 2), "ngettext_noop": (1, 2)}
"""The functions that mark a sentence, as in `agent.i18n`."""

_NOT_WRITTEN = (b'"Project', b'"Report', b'"POT', b'"PO-', b'"Last', b'"Language-Team', b'"Generated')
"""The header fields that say nothing here, or that would change with every update."""


def collect() -> Catalog:
    """Return a catalogue of all marked sentences, with the files that contain them."""
    catalogue = Catalog(project="Switchboard", fuzzy=False)
    for file, _line, sentence, comments, context in extract_from_dir(PACKAGE, [("**.py", "python")], keywords=KEYWORDS):
        catalogue.add(sentence, locations=[(f"agent/{file}", 0)], auto_comments=comments, context=context)
    return catalogue


def paths() -> list[Path]:
    """Return the catalogues, one for each language but English."""
    return sorted(FORMATS.parent.glob("*.po"))


def load(path: Path) -> Catalog:
    """Return the catalogue in a file. Raises `ValueError` if it is not one."""
    try:
        with path.open("rb") as file:
            return read_po(file, locale=path.stem, abort_invalid=True)
    except (PoFileError, UnknownLocaleError) as error:
        raise ValueError(f"{path.name}: {error}") from error


def update(path: Path, sentences: Catalog) -> None:
    """Write the catalogue with exactly these sentences. Translations of sentences that stay are kept."""
    catalogue = load(path)
    catalogue.update(sentences, no_fuzzy_matching=True, update_header_comment=False)
    catalogue.obsolete.clear()
    catalogue.header_comment = f"# Switchboard in {Locale(path.stem).english_name}."
    text = BytesIO()
    write_po(text, catalogue, width=120, include_lineno=False, sort_output=True)
    lines = text.getvalue().splitlines(keepends=True)
    path.write_bytes(b"".join(line for line in lines if not line.startswith(_NOT_WRITTEN)))


_FIELDS = {
    "EEEE": "{weekday}",
    "MMMM": "{month}",
    "MM": "{number:02}",
    "M": "{number}",
    "dd": "{day:02}",
    "d": "{day}",
    "y": "{year}",
}
"""The fields of CLDR's patterns for dates, and ours."""


def formats() -> str:
    """Return the text of `formats.json` for all languages. Raises `KeyError` if a pattern has an unknown field."""

    def template(pattern: str) -> str:
        parts = re.findall(r"'([^']*)'|(([A-Za-z])\3*)|([^'A-Za-z]+)", pattern)
        return "".join(quoted or (_FIELDS[field] if field else text) for quoted, field, _letter, text in parts)

    found: dict[str, object] = {}
    for language in LANGUAGES:
        locale = Locale(language)
        full = "EEEE, d MMMM y" if language == "en" else str(locale.date_formats["full"].pattern)
        found[language] = {
            "full": template(full),  # that of English would begin with the month
            "long": template(str(locale.date_formats["long"].pattern)),
            "months": [locale.months["format"]["wide"][number] for number in range(1, 13)],
            "days": [locale.days["format"]["wide"][number] for number in range(7)],
            "group": locale.number_symbols["latn"]["group"],
            "decimal": locale.number_symbols["latn"]["decimal"],
        }
    return json.dumps(found, ensure_ascii=False, indent=1) + "\n"


def problems(path: Path, sentences: Catalog) -> Iterator[str]:
    """Yield what is missing or broken in a catalogue, one line each."""
    try:
        catalogue = load(path)
    except ValueError as error:
        yield str(error)
        return
    wanted = {_forms(message.id) for message in sentences if message.id}
    present = {_forms(message.id): message for message in catalogue if message.id}
    for id_ in sorted(wanted - present.keys()):
        yield f"{path.name}: {id_[0]!r} is missing; run `make translations`"
    for id_ in sorted(present.keys() - wanted):
        yield f"{path.name}: {id_[0]!r} is not used; run `make translations`"
    for id_ in sorted(wanted & present.keys()):
        if fault := _fault(present[id_], catalogue.num_plurals):
            yield f"{path.name}: {id_[0]!r} {fault}"


def _fault(message: Message, forms: int) -> str:
    """Return what is wrong with a translation; "" if nothing is."""
    sentences, translations = _forms(message.id), _forms(message.string)
    if message.fuzzy:
        return "is marked as fuzzy"
    if len(translations) != (forms if len(sentences) > 1 else 1) or not all(translations):
        return "is not translated"
    fields = _fields(list(sentences)[-1])
    for translation in translations:
        if translation.strip() != translation:
            return "has white space around its translation"
        if _fields(translation) != fields:
            return "has other fields than its translation"
    return ""


def _forms(value: object) -> tuple[str, ...]:
    """Return the forms of a sentence or a translation: one, or as many as the language has plurals."""
    return tuple(map(str, cast(Sequence[object], value))) if isinstance(value, tuple | list) else (str(value or ""),)


def _fields(sentence: str) -> list[tuple[str, str | None]]:
    """Return the names of the fields with their conversions."""
    parts = string.Formatter().parse(sentence)
    return sorted((name, conversion) for _text, name, _spec, conversion in parts if name is not None)


def main() -> int:
    """Update or check all catalogues."""
    parser = argparse.ArgumentParser(description="Update the catalogues, or check them.")
    parser.add_argument("--check", action="store_true", help="change nothing, print what is missing or broken")
    check = parser.parse_args().check
    sentences = collect()
    if not check:
        for path in paths():
            update(path, sentences)
        FORMATS.write_text(formats(), encoding="utf-8")
    found = [line for path in paths() for line in problems(path, sentences)]
    if not FORMATS.is_file() or FORMATS.read_text(encoding="utf-8") != formats():
        found.append(f"{FORMATS.name} is not up to date; run `make translations`")
    print("\n".join(found) or f"{len(paths())} catalogues, {len(sentences)} sentences each, nothing is missing")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
