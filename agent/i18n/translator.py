"""Translates the text of this program. Each language has a GNU gettext catalogue in this folder, such as `de.po`."""

import re
from dataclasses import dataclass
from datetime import date
from functools import cache
from gettext import GNUTranslations, NullTranslations
from io import BytesIO
from pathlib import Path

from babel.core import Locale
from babel.dates import format_date
from babel.messages.catalog import Catalog
from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po

from agent.i18n import NumberMarks, render

HERE = Path(__file__).parent
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
        form = "EEEE, d MMMM y" if self.language == "en" else "full"  # that of English begins with the month
        return format_date(day, form, locale=self.language)

    def date(self, day: date) -> str:
        """Return the date as this language writes it, such as "November 25, 2026"."""
        return format_date(day, "long", locale=self.language)


ENGLISH = Translator()


def negotiate(accepted: str) -> Translator:
    """Return the translator for this Accept-Language header. Its first language decides, as in Gradio itself."""
    language = re.split(r"[-,;]", accepted.strip(), maxsplit=1)[0].lower()
    return Translator(language) if language in LANGUAGES else ENGLISH


@cache
def _catalogue(language: str) -> NullTranslations:
    """Return the catalogue of this language. English needs none. Raises `OSError` if there is no such file."""
    if language == ENGLISH.language:
        return NullTranslations()
    compiled = BytesIO()
    write_mo(compiled, read_catalogue(HERE / f"{language}.po"))
    compiled.seek(0)
    return GNUTranslations(compiled)


@cache
def _number_marks(language: str) -> NumberMarks | None:
    """Return how this language writes numbers, or None if it is as in English."""
    symbols = Locale(language).number_symbols["latn"]
    marks = {",": str(symbols["group"]), ".": str(symbols["decimal"])}
    return None if all(mark == own for mark, own in marks.items()) else str.maketrans(marks)


def read_catalogue(path: Path) -> Catalog:
    """Return the catalogue in a `.po` file, which is named after its language. Raises what Babel raises."""
    with path.open("rb") as file:
        return read_po(file, locale=path.stem, abort_invalid=True)
