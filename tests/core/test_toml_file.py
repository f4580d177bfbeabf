"""Configuration files: the error names each mistake with its line, its key and its value, unless it is a secret."""

import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field

from agent.errors import ConfigError
from agent.system.toml_file import CLOSED, MOST_MISTAKES, TomlFile, check_environment


@dataclass(frozen=True, kw_only=True)
class Site:
    __pydantic_config__ = CLOSED

    url: str = ""
    port: int
    api_key: int = 0
    names: tuple[str, ...] = ()
    headers: dict[str, str] = field(default_factory=dict[str, str])
    open_to: tuple[str, ...] | bool = ()


@dataclass(frozen=True, kw_only=True)
class File:
    __pydantic_config__ = CLOSED

    title: str = ""
    kind: Literal["a", "b"] = "a"
    site: Site | None = None
    sites: tuple[Site, ...] = ()
    by_name: dict[str, Site] = field(default_factory=dict[str, Site])


Read = Callable[..., str]


def load(path: Path, **options: Any) -> File:
    file = TomlFile(path, **options)
    return file.check(File, file.table)


@pytest.fixture
def mistakes(tmp_path: Path) -> Read:
    """Write a file, read it and return the error."""

    def read(text: str, **options: Any) -> str:
        (tmp_path / "a.toml").write_text(text)
        with pytest.raises(ConfigError) as refused:
            load(tmp_path / "a.toml", **options)
        return str(refused.value)

    return read


LINES = {
    "a key": ('# title = 1\n\ntitle = """\ntitle = 2"""\nkind = "c"\n', "5: kind must be 'a' or 'b', not 'c'"),
    "a quoted key": ('title = "kind"\n"kind" = "c"\n', "2: kind must be"),
    "a dotted key": ('[site]\nport = 1\n[by_name]\n"a.b".port = 1\nc.port = "x"\n', "5: by_name.c.port must be"),
    "a quoted table": ('[by_name."a b"]\nport = 1\n[by_name."c.d"]\nport = "x"\n', "4: by_name.c.d.port must be"),
    "a table in a table": ("[by_name]\n[by_name.a]\nport = 1\nurl = 2\n", "4: by_name.a.url must be text in quotes"),
    "an inline table": ("title = 'x'\nsite = { port = 1, url = 2 }\n", "2: site.url must be text in quotes, not 2"),
    "the second of an array": (
        '[[sites]]\nport = 1\n\n[[sites]]\nport = "x"\n',
        "5: sites.port must be a whole number",
    ),
    "a missing key of the second": ("[[sites]]\nport = 1\n\n[[sites]]\nurl = ''\n", "4: sites.port is missing"),
    "a missing key of a table": ("title = ''\n[site]\nurl = ''\n", "2: site.port is missing"),
    "an inline array": ("sites = [\n  { port = 1 },\n  { port = true, prot = 1 },\n]\n", "3: unknown key 'sites.prot'"),
    "an item": (
        '[site]\nport = 1\nnames = [ # "x"\n  "a",\n\n  2, # [\n]\n',
        "6: site.names must be text in quotes, not 2",
    ),
    "an item of text": ('[site]\nport = 1\nnames = ["""\na""", """\nb""",\n3]\n', "6: site.names must be text"),
    "a union": ("[site]\nport = 1\nopen_to = [1]\n", "3: site.open_to must be"),
    "an unknown section": ("title = ''\n\n[stie]\nport = 1\n", "3: unknown section [stie]; perhaps 'site' is meant"),
    "an unknown key": ("title = ''\n[site]\nport = 1\nprot = 2\n", "4: unknown key 'site.prot'; perhaps 'port' is"),
    "a far key": ("[site]\nport = 1\nx = 2\n", "3: unknown key 'site.x'; known are url, port, api_key, names, headers"),
    "a far key in an array": ("[[sites]]\nport = 1\nx = 2\n", "3: unknown key 'sites.x'; known are url, port"),
    "no table": ("title = ''\nsite = 3\n", "2: site must be a table, not 3"),
    "no TOML": ("title = ''\n\nkind: a\n[site]\n", "3: not valid TOML: "),
    "an open list": ("title = ''\n[site]\nnames = [\n'a',\n", "3: not valid TOML: "),
    "a key twice": ("title = ''\n\ntitle = ''\n", "3: not valid TOML: "),
}


@pytest.mark.parametrize("ends", ["\n", "\r\n"], ids=["unix", "dos"])
@pytest.mark.parametrize(("text", "said"), LINES.values(), ids=LINES)
def test_mistake_has_its_line(mistakes: Read, text: str, said: str, ends: str) -> None:
    assert f"a.toml, line {said}" in mistakes(text.replace("\n", ends))


def test_all_mistakes_are_told_in_order(mistakes: Read) -> None:
    said = mistakes("x = 1\nkind = 'c'\n[[sites]]\nport = 1.5\n[[sites]]\n")
    assert said.splitlines() == [
        "a.toml, line 1: unknown key 'x'; known are title, kind, site, sites, by_name.",
        "a.toml, line 2: kind must be 'a' or 'b', not 'c'.",
        "a.toml, line 4: sites.port must be a whole number, not 1.5.",
        "a.toml, line 5: sites.port is missing.",
    ]
    assert len(mistakes("[[sites]]\n" * 100).splitlines()) == MOST_MISTAKES


SECRET = "hush-1234567890"
SECRETS = {
    "of a key with such a name": f"[site]\nport = 1\napi_key = '{SECRET}'\n",
    "of a vendor": f"[site]\nport = 'sk-{SECRET}'\n",
    "in a URL": f"kind = 'https://ann:{SECRET}@example.org'\n",
    "below a hidden key": f"[site]\nport = 1\nheaders = {{ A = ['{SECRET}'] }}\n",
    "at a hidden key": f"[site]\nport = 1\nheaders = '{SECRET}'\n",
    "in a table": f"title = {{ password = '{SECRET}' }}\n",
    "in an unknown key": f"[site]\nport = 1\nx = '{SECRET}'\n",
    "that is long": f"kind = '{SECRET * 10}'\n",
    "behind a syntax error": f"title = '{SECRET}' x\n",
}


@pytest.mark.parametrize("text", SECRETS.values(), ids=SECRETS)
def test_secret_is_never_shown(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(text)
    with pytest.raises(ConfigError) as refused:
        load(tmp_path / "a.toml", hidden=("headers",))
    assert "hush" not in "".join(traceback.format_exception(refused.value))


def test_conversions_can_be_forbidden(mistakes: Read, tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("[site]\nport = '1'\nnames = ['a']\n")
    assert load(tmp_path / "a.toml").site == Site(port=1, names=("a",))
    said = mistakes("[site]\nport = '1'\nnames = ['a']\n", strict=True)
    assert said == "a.toml, line 2: site.port must be a whole number, not '1'."


def test_missing_file_is_empty_only_if_optional(tmp_path: Path) -> None:
    assert TomlFile(tmp_path / "a.toml", optional=True).table == {}
    with pytest.raises(ConfigError, match=r"a\.toml cannot be read: No such file or directory\."):
        TomlFile(tmp_path / "a.toml")


class Variables(BaseModel):
    port: int | None = Field(None, alias="PORT")
    on: bool | None = Field(None, alias="ON")
    key: int | None = Field(None, alias="API_KEY")


def test_variables_are_read_and_named() -> None:
    assert check_environment(Variables, {"PORT": "1", "ON": "", "OTHER": "x"}) == Variables(PORT=1)
    with pytest.raises(ConfigError) as refused:
        check_environment(Variables, {"PORT": "one", "ON": "perhaps", "API_KEY": SECRET})
    assert str(refused.value).splitlines() == [
        "PORT must be a whole number, not 'one'.",
        "ON must be true or false, not 'perhaps'.",
        "API_KEY must be a whole number.",
    ]
    assert "hush" not in "".join(traceback.format_exception(refused.value))
