"""The page's own words in the visitor's language: one table (`words.toml`), one lookup."""

import json
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import gradio as gr

HERE = Path(__file__).parent
LANGUAGES = ("en", "zh", "ko", "de", "fr")
LOCALES = {"zh-CN": "zh", "zh-TW": "zh"}
"""What Gradio calls a language, where it is not what we call it."""

Table = dict[str, dict[str, str]]


@dataclass(frozen=True)
class Words:
    """The words of one language: `words("tokens", count=3)`."""

    language: str = "en"

    def __call__(self, key: str, **values: object) -> str:
        """The sentence of that name, with the values in it."""
        sentence = (table("say").get(key) or table("static")[key])[self.language]
        return sentence.format(**values) if values else sentence


ENGLISH = Words()


def words_of(request: gr.Request) -> Words:
    """The words for who asks. The first language of the browser's list decides, as it does for Gradio's own words."""
    wanted = str(request.headers.get("accept-language", "")) if request.request else ""
    language = wanted.strip()[:2].lower()
    return Words(language) if language in LANGUAGES else ENGLISH


@cache
def table(section: str) -> Table:
    """The words of a section, by key and language."""
    return tomllib.loads((HERE / "words.toml").read_text(encoding="utf-8"))[section]


def static(key: str) -> Any:
    """A word of a widget that never changes: the browser looks it up in what `i18n` gave it."""
    return gr.I18n()(key)


def i18n() -> gr.I18n:
    """The words of widgets that never change, as Gradio gives them to the browser."""
    locales = {locale: locale for locale in LANGUAGES} | LOCALES
    return gr.I18n(**{locale: _in(language, "static") for locale, language in locales.items()})


def script() -> str:
    """`page.js` with its words."""
    words = {one: _in(one, "browser") | {"labels": _in(one, "labels")} for one in LANGUAGES}
    page = (HERE / "page.js").read_text(encoding="utf-8").split("\n(words) =>", 1)[1]
    return f"() => ((words) =>{page})({json.dumps(words, ensure_ascii=False)})"


def _in(language: str, section: str) -> dict[str, str]:
    return {key: said[language] for key, said in table(section).items()}
