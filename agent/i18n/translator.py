"""Looks up the page's own text in the visitor's language. All text is in one table, `words.toml`."""

import re
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from agent.errors import Failure, localized_error
from agent.i18n import LocalizedText, Value
from agent.models.catalog import ModelSpec

HERE = Path(__file__).parent
LANGUAGES = ("en", "zh", "ko", "de", "fr")

Table = dict[str, dict[str, str]]


@dataclass(frozen=True)
class Translator:
    """The page's text in one language. `translator("tokens", count=3)` returns a sentence."""

    language: str = "en"

    def __call__(self, key: str, **values: object) -> str:
        """Return the sentence with this key and these values."""
        sentence = (table("say").get(key) or table("static")[key])[self.language]
        return sentence.format(**values) if values else sentence

    def render(self, sayings: Iterable[LocalizedText]) -> str:
        """Return these sentences joined by spaces; "" if there are none or the table lacks one of them."""
        found = [(one, (table("said").get(one.key) or {}).get(self.language)) for one in sayings]
        if not all(sentence for _, sentence in found):
            return ""
        return " ".join(str(sentence).format(**self._values(one)) for one, sentence in found)

    def model(self, spec: ModelSpec) -> str:
        """Return the model's name, with a remark if it runs on this machine."""
        return self("on_cpu", model=spec.label) if spec.id.startswith("local:") else spec.label

    def source(self, english: str) -> str:
        """Translate the source of a model. A source that is not in the table is a name, the same in every language."""
        return (table("source").get(english) or {}).get(self.language, english)

    def _values(self, saying: LocalizedText) -> dict[str, object]:
        """Return the values for the sentence. A sentence inside a sentence loses its full stop."""
        return {
            name: self.render((value,)).rstrip(".。") if isinstance(value, LocalizedText) else value
            for name, value in saying.values.items()
        }


ENGLISH = Translator()


def page_error(kind: Callable[..., Failure], key: str, /, **values: Value) -> Failure:
    """Return an exception with a sentence of the page. `kind` is its class or a factory."""
    return localized_error(kind, column("en", "said"), key, **values)


def negotiate(accepted: str) -> Translator:
    """Return the translator for this Accept-Language header. Its first language decides, as in Gradio itself."""
    language = re.split(r"[-,;]", accepted.strip(), maxsplit=1)[0].lower()
    return Translator(language) if language in LANGUAGES else ENGLISH


def table(section: str) -> Table:
    """Return a section of the table: text by key, then by language."""
    return _tables()[section]


@cache
def _tables() -> dict[str, Table]:
    return tomllib.loads((HERE / "words.toml").read_text(encoding="utf-8"))


def column(language: str, section: str) -> dict[str, str]:
    """Return the text of a section in one language, by key."""
    return {key: said[language] for key, said in table(section).items()}
