"""Translates the text of this program. Each language has a GNU gettext catalogue in this folder, such as `de.po`."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cache
from gettext import NullTranslations, c2py
from pathlib import Path
from typing import Any

from agent.i18n.text import NumberMarks, render

HERE = Path(__file__).parent
FORMATS = HERE / "formats.json"
"""The file of the forms of dates and numbers in each language, from CLDR; `.ci/catalogues.py` writes it."""
LANGUAGES = ("en", *sorted(path.stem for path in HERE.glob("*.po")))


@dataclass(frozen=True)
class Translator:
    """The text of this program in one language. `translator(text)` returns the text in that language."""

    language: str = "en"

    def __call__(self, text: str) -> str:
        """Return the translation of a `LocalizedText`, or English if there is none. Other strings stay as they are."""
        return render(text, _catalogue(self.language), _number_marks(self.language))

    def template(self, sentence: str) -> str:
        """Return the translation of a sentence with its fields in braces, which the caller fills."""
        return _catalogue(self.language).gettext(sentence)

    def weekday_and_date(self, day: date) -> str:
        """Return the date with the day of the week, such as "Wednesday, 25 November 2026"."""
        return _write_date(self.language, "full", day)

    def date(self, day: date) -> str:
        """Return the date as this language writes it, such as "November 25, 2026"."""
        return _write_date(self.language, "long", day)


ENGLISH = Translator()


def negotiate(accepted: str) -> Translator:
    """Return the translator for this Accept-Language header. Its first language decides, as in Gradio itself."""
    language = re.split(r"[-,;]", accepted.strip(), maxsplit=1)[0].lower()
    return Translator(language) if language in LANGUAGES else ENGLISH


def translator_for(headers: Mapping[str, str]) -> Translator:
    """Return the translator for a request with these headers."""
    return negotiate(headers.get("accept-language", ""))


class _Catalogue(NullTranslations):
    """The translations of one language, each in the forms of its plural."""

    def __init__(self, forms: Mapping[str, Sequence[str]], plural: Callable[[int], int]) -> None:
        super().__init__()
        self._forms, self._plural = forms, plural

    def gettext(self, message: str) -> str:
        """Return the translation, or the sentence itself."""
        return self._forms[message][0] if message in self._forms else message

    def ngettext(self, msgid1: str, msgid2: str, n: int) -> str:
        """Return the translation in the form for this number, or the English one."""
        return self._forms[msgid1][self._plural(n)] if msgid1 in self._forms else super().ngettext(msgid1, msgid2, n)


@cache
def _catalogue(language: str) -> NullTranslations:
    """Return the catalogue of this language. English needs none. Raises `OSError` if there is no such file."""
    if language == ENGLISH.language:
        return NullTranslations()
    forms = read_forms((HERE / f"{language}.po").read_text(encoding="utf-8"))
    plural = re.search(r"plural=([^;\n]+)", forms.pop("")[0])
    return _Catalogue(forms, c2py(plural[1] if plural else "n != 1"))


def read_forms(text: str) -> dict[str, list[str]]:
    """Return the translations in the text of a `.po` file by their sentences. "" has the header.

    Leaves out what is not translated. Raises `ValueError` if the text is no catalogue.
    """
    entries: list[dict[str, str]] = []
    field = ""
    for line in text.splitlines():
        if line.startswith("#") or not line.strip():
            continue
        name, _space, quoted = ("", "", line) if line.startswith('"') else line.partition(" ")
        field = name or field
        if name == "msgid":
            entries.append({})
        if not entries:
            raise ValueError(f"{line!r} stands before the first sentence")
        entries[-1][field] = entries[-1].get(field, "") + json.loads(quoted)
    found = {entry["msgid"]: [entry[name] for name in entry if name.startswith("msgstr")] for entry in entries}
    return {sentence: forms for sentence, forms in found.items() if forms and all(forms)}


@cache
def _formats(language: str) -> Mapping[str, Any]:
    """Return how this language writes dates and numbers; as English does if it is new and the file lacks it."""
    known = json.loads(FORMATS.read_text(encoding="utf-8"))
    return known.get(language) or known[ENGLISH.language]


def _write_date(language: str, form: str, day: date) -> str:
    own = _formats(language)
    names = {"month": own["months"][day.month - 1], "weekday": own["days"][day.weekday()]}
    return own[form].format(day=day.day, number=day.month, year=day.year, **names)


@cache
def _number_marks(language: str) -> NumberMarks | None:
    """Return how this language writes numbers, or None if it is as in English."""
    own = _formats(language)
    marks = {",": own["group"], ".": own["decimal"]}
    return None if all(mark == own for mark, own in marks.items()) else str.maketrans(marks)
