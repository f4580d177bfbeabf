"""The page's own words in the visitor's language: one table (`words.toml`), one lookup."""

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
    """The words of one language: `words("tokens", count=3)`."""

    language: str = "en"

    def __call__(self, key: str, **values: object) -> str:
        """The sentence of that name, with the values in it."""
        sentence = (table("say").get(key) or table("static")[key])[self.language]
        return sentence.format(**values) if values else sentence

    def render(self, sayings: Iterable[LocalizedText]) -> str:
        """These sentences one after the other; "" where there is none, or one that this table does not have."""
        found = [(one, (table("said").get(one.key) or {}).get(self.language)) for one in sayings]
        if not all(sentence for _, sentence in found):
            return ""
        return " ".join(str(sentence).format(**self._values(one)) for one, sentence in found)

    def model(self, spec: ModelSpec) -> str:
        """The model's name, and that it runs here where it does."""
        return self("on_cpu", model=spec.label) if spec.id.startswith("local:") else spec.label

    def source(self, english: str) -> str:
        """Where a model comes from; what this table does not have is a name, the same in every language."""
        return (table("source").get(english) or {}).get(self.language, english)

    def _values(self, saying: LocalizedText) -> dict[str, object]:
        """What stands in the sentence; a sentence in a sentence without its full stop."""
        return {
            name: self.render((value,)).rstrip(".。") if isinstance(value, LocalizedText) else value
            for name, value in saying.values.items()
        }


ENGLISH = Translator()


def page_error(kind: Callable[..., Failure], key: str, /, **values: Value) -> Failure:
    """An exception with a sentence of the page's own; `kind` is its class, or makes one."""
    return localized_error(kind, column("en", "said"), key, **values)


def negotiate(accepted: str) -> Translator:
    """The words for who sends this Accept-Language. Its first language decides, as it does for Gradio's own words."""
    language = re.split(r"[-,;]", accepted.strip(), maxsplit=1)[0].lower()
    return Translator(language) if language in LANGUAGES else ENGLISH


def table(section: str) -> Table:
    """The words of a section, by key and language."""
    return _tables()[section]


@cache
def _tables() -> dict[str, Table]:
    return tomllib.loads((HERE / "words.toml").read_text(encoding="utf-8"))


def column(language: str, section: str) -> dict[str, str]:
    """The words of a section in one language."""
    return {key: said[language] for key, said in table(section).items()}
