"""Writes the table of what models can do in docs/models.md: `PYTHONPATH=. python .ci/capability_table.py`."""

from collections.abc import Callable, Sequence
from pathlib import Path

from agent.errors import ConfigError
from agent.models.catalog import TABLE, Catalog, ModelSpec, ProviderSpec, load_catalog

PAGE = TABLE.parent.parent / "docs" / "models.md"
BEGIN, END = "<!-- made by `make docs` out of configs/models.toml -->", "<!-- until here -->"

_COLUMNS: tuple[tuple[str, Callable[[ModelSpec], bool]], ...] = (
    ("image", lambda spec: spec.image),
    ("audio", lambda spec: spec.audio),
    ("video", lambda spec: spec.video),
    ("reasoning", lambda spec: spec.reasoning),
    ("tools", lambda spec: spec.tools != "none"),
)
_FEW = 2
"""The most models that a cell names. A cell with more says "some"."""


def table(catalog: Catalog) -> str:
    """Return the table in Markdown, one row per provider. It omits retired models and models with a retirement date."""
    head = ("provider", *(title for title, _ in _COLUMNS), "key", "in the menu")
    return "\n".join(_row(cells) for cells in (head, ["---"] * len(head), *_body(catalog)))


def written(page: str, table: str) -> str:
    """Return the page with this table between its markers. Raises `ConfigError` without both markers in order."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ConfigError(f"docs/models.md needs the lines {BEGIN} and {END}, for the table to stand between them")
    return f"{before}{BEGIN}\n\n{table}\n\n{END}{after}"


def _body(catalog: Catalog) -> list[list[str]]:
    return [_cells(catalog, provider) for provider in catalog.providers.values()]


def _cells(catalog: Catalog, provider: ProviderSpec) -> list[str]:
    specs = [one for one in catalog.models.values() if one.provider == provider.id]
    current = [one for one in specs if not (one.retired or one.retired_on)]
    can = [_which(current, has) for _, has in _COLUMNS]
    key = " or ".join(f"`{name}`" for name in provider.key_names)
    return [f"`{provider.id}:`", *can, key, ", ".join(f"`{one.name}`" for one in current if one.menu)]


def _which(specs: Sequence[ModelSpec], has: Callable[[ModelSpec], bool]) -> str:
    """Return a short text that says for which of the models `has` is true."""
    if not specs:
        return "asked of the server"
    yes = [spec.name.rsplit("/", 1)[-1] for spec in specs if has(spec)]
    no = [spec.name.rsplit("/", 1)[-1] for spec in specs if not has(spec)]
    if not yes or not no:
        return "yes" if yes else "no"
    if len(no) <= _FEW:
        return f"all but {', '.join(f'`{name}`' for name in no)}"
    return f"only {', '.join(f'`{name}`' for name in yes)}" if len(yes) <= _FEW else "some"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _write(page: Path) -> None:
    page.write_text(written(page.read_text(encoding="utf-8"), table(load_catalog())), encoding="utf-8")


if __name__ == "__main__":
    _write(PAGE)
