"""The page's own modules and style as files with a hash in their names, which browsers keep for good.

In the page itself they would be loaded again with each visit, and Gradio would write them into the page each time. The
modules import one another by relative names, so their folder has the hash. What they say is a module of its own, which
they import as `texts`.
"""

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from html import escape
from pathlib import Path
from typing import Any

from agent.i18n.translator import LANGUAGES
from agent.web.ui.composer.component import Composer, SettingsPanel
from agent.web.ui.page_text import SCRIPTS, translated
from agent.web.ui.theme import style
from agent.web.ui.transcript.component import Transcript

HERE = Path(__file__).parent
FOLDERS = ("modules", "composer", "transcript")
FIRST, ENTRY = "modules/gradio.js", "modules/page.js"
"""The module that runs before Gradio, and the one that imports all others."""
LAZY = tuple(
    [
        "viewer",
        "models",
        "compare",
        "share",
        "settings",
        "gauge",
        "prompts",
        "attachments",
        "annotate",
        "order",
        "folders",
        "picture",
        "voice",
    ]
)
"""The modules that are loaded when they are used, with a style of the same name."""
LAZY_PARTS = (
    "preview",
    "artifacts",
    "contents",
    "columns",
    "editing",
    "python",
    "recorder",
    "film",
    "spoken",
    "worklet",
)
"""Those of the transcript and of the composer, and others that have no style of their own."""
START = "() => import(document.getElementById('page-module').href)"
"""Starts the page's modules. Gradio runs this once it shows the page. Without a part of it, the page loads again."""


@dataclass(frozen=True, slots=True)
class PageFiles:
    """The files by name. `folder` is that of the modules, and `texts` has the name of the texts by language.

    `parts` are the names of Gradio's files that each page needs, and `joined` is the file with all styles of these.
    """

    contents: dict[str, bytes]
    folder: str
    texts: dict[str, str]
    style: str
    parts: tuple[str, ...]
    joined: str

    def tags(self, path: str, language: str) -> str:
        """Return the tags that load the files early. `path` is the path of the app, without a slash at its end."""
        folder = escape(f"{path}/assets")
        names = json.dumps({"imports": {"texts": f"{path}/assets/{self.texts[language]}"}}).replace("<", "\\u003c")
        lazy = tuple(f"/{one}.js" for one in (*LAZY, *LAZY_PARTS))
        modules = [one for one in self.contents if one.startswith(self.folder) and one.endswith(".js")]
        early = [self.texts[language], *(one for one in modules if not one.endswith((*lazy, ENTRY)))]
        styles = [one for one in self.parts if one.endswith(".css")]
        # The map must come before all modules. The first module runs before Gradio's, because both are modules.
        return (
            f'<script type="importmap">{names}</script>\n'
            f'<link rel="preload" as="style" href="{folder}/{self.style}" />\n'
            + "".join(f'<link rel="modulepreload" data-page href="{folder}/{one}" />\n' for one in early)
            + f'<link rel="modulepreload" data-page id="page-module" href="{folder}/{self.folder}/{ENTRY}" />\n'
            f'<script type="module" data-page src="{folder}/{self.folder}/{FIRST}"></script>\n'
            + f'<link rel="stylesheet" data-page href="{folder}/{self.joined}" />\n'
            # Gradio does not load a style whose link the page has, and browsers do not load what is disabled.
            + "".join(f'<link rel="stylesheet" disabled href="{folder}/{one}" />\n' for one in styles)
            + "".join(
                f'<link rel="modulepreload" href="{folder}/{one}" />\n' for one in self.parts if one not in styles
            )
        )

    def gradio_head(self) -> str:
        """Return the tag that applies the style. Gradio adds it behind its own styles, which it overrides."""
        return f'<link rel="stylesheet" href="assets/{self.style}" />'


@dataclass(frozen=True, slots=True, kw_only=True)
class PageFacts:
    """The facts of this app that the page's modules must know.

    `links`: chats can have links. `diagrams` has the addresses of the modules that draw. `space` is the id of the Space
    on which the app runs, or "". `rates`: visitors can rate answers. `python` is the address of Pyodide's files, which
    run Python code, or "".
    """

    links: bool = True
    diagrams: Mapping[str, str] = field(default_factory=dict[str, str])
    space: str = ""
    rates: bool = False
    python: str = ""


USUAL = PageFacts()


def page_files(facts: PageFacts = USUAL, parts: Sequence[str] = (), styles: bytes = b"") -> PageFiles:
    """Build the files. `parts` are the names of Gradio's files that each page needs, and `styles` all styles of these.

    Joined styles are one request instead of ten.
    """
    paths = [path for one in FOLDERS for path in sorted((HERE / one).iterdir()) if path.suffix in (".js", ".css")]
    used = [path for path in paths if path.suffix == ".js" or path.stem in (*LAZY, *LAZY_PARTS)]
    modules = {path.relative_to(HERE).as_posix(): _content(path) for path in used}
    folder = f"page-{_digest(b''.join(modules.values()))}"
    early = [path.read_text(encoding="utf-8") for path in used if path.stem not in (*LAZY, *LAZY_PARTS)]
    at_once = _used_texts(early)
    others = {one: later_texts(one, at_once).encode() for one in LANGUAGES}
    later = {one: _name(f"later-{one}", content, "js") for one, content in others.items()}
    texts = {one: texts_module(one, facts, at_once=at_once, later=later[one]).encode() for one in LANGUAGES}
    names = {one: _name(f"texts-{one}", content, "js") for one, content in texts.items()}
    rules = style().encode()
    css, joined = _name("page", rules, "css"), _name("gradio", styles, "css")
    contents = {joined: styles} | {names[one]: content for one, content in texts.items()} | {css: rules}
    contents |= {later[one]: content for one, content in others.items()}
    contents |= {f"{folder}/{name}": content for name, content in modules.items()}
    return PageFiles(contents, folder, names, css, tuple(parts), joined)


def texts_module(
    language: str, facts: PageFacts = USUAL, *, at_once: Collection[str] = SCRIPTS, later: str = ""
) -> str:
    """Return a module with the texts of the modules in one language, and with what they must know of this page.

    `at_once` are the names of the texts that it has. The others are in the module `later`.
    """
    said: dict[str, Any] = {**translated({name: SCRIPTS[name] for name in SCRIPTS if name in at_once}, language)}
    for name, kind in (("transcript", Transcript), ("composer", Composer), ("settings", SettingsPanel)):
        said[name] = translated(kind.LABELS, language)
    values = {"said": said, "language": language, "languages": [*LANGUAGES], **asdict(facts)}
    rest = f'new URL("{later}", import.meta.url).href' if later else '""'
    lines = [f"export const {name} = {json.dumps(one, ensure_ascii=False)};\n" for name, one in values.items()]
    return "".join([*lines, f"export const later = {rest};\n"])


def later_texts(language: str, at_once: Collection[str]) -> str:
    """Return a module with the texts of the modules that are loaded when they are used."""
    texts = translated({name: text for name, text in SCRIPTS.items() if name not in at_once}, language)
    return f"export const said = {json.dumps(texts, ensure_ascii=False)};\n"


def _used_texts(scripts: Iterable[str]) -> set[str]:
    """Return the names of the texts that the scripts can use. They may make the end of a name of variables."""
    found = [one for script in scripts for one in _SAID.finditer(script)]
    whole = {one["whole"] for one in found}
    begins = tuple({one["begins"] for one in found if one["begins"]})
    return {name for name in SCRIPTS if name in whole or name.startswith(begins)}


_SAID = re.compile(r"\bsaid(?:\.(?P<whole>\w+)|\[[\"`](?P<begins>\w+))")
_COMMENT = re.compile(r"(?m)^ *//.*$|^ */\*\*(?:(?!\*/)[\s\S])*\*/ *$")
_TYPE = "/** @"


def without_comments(script: str) -> str:
    """Return a script without its lines that are comments, and without types. The other lines keep their numbers."""
    script = _COMMENT.sub(lambda comment: "\n" * comment[0].count("\n"), script)
    return "\n".join(map(_code_of, script.split("\n")))


def _code_of(line: str) -> str:
    """Return a line without its types, and without the comment at its end if that has no sign of a string."""
    code, *types = line.split(_TYPE)
    for one in types:
        _type, end, rest = one.partition("*/")
        code += rest.removeprefix(" ") if end else _TYPE + one
    while (at := code.rfind(" // ")) >= 0 and not {*code[at:]} & {"'", '"', "`"}:
        code = code[:at]
    return code


def _content(path: Path) -> bytes:
    text = path.read_text(encoding="utf-8")
    return (without_comments(text) if path.suffix == ".js" else text).encode()


def _name(name: str, content: bytes, kind: str) -> str:
    return f"{name}-{_digest(content)}.{kind}"


def _digest(content: bytes) -> str:
    return sha256(content).hexdigest()[:16]
