"""Colours, type and spacing of the page: the variables of `page.css`, and Gradio's variables with the same values."""

from pathlib import Path
from typing import Any

from gradio.themes import Base, colors, sizes

COLOURS = {  # light, dark; text has a contrast of at least 4.5:1, the edge of a control 3:1
    "ground": ("#fcfcfd", "#101217"),
    "surface": ("#ffffff", "#191c23"),
    "sunken": ("#f3f4f8", "#1b1f28"),
    "hover": ("#e9ebf2", "#272b36"),
    "line": ("#e3e6ed", "#2b303b"),
    "edge": ("#858c9c", "#6f7789"),
    "ink": ("#1b1e27", "#e8eaf0"),
    "quiet": ("#5a6172", "#a0a8b8"),
    "accent": ("#4f46e5", "#a5b0fb"),
    "on-accent": ("#ffffff", "#14161c"),
    "mine": ("#eceefe", "#262c4a"),
    "bad": ("#a3212f", "#ff9aa4"),
    "bad-ground": ("#fdeef0", "#35191d"),
    "code-comment": ("#5f6675", "#949cad"),
    "code-keyword": ("#7c3aad", "#c9a2f5"),
    "code-string": ("#3b6f12", "#a6d189"),
    "code-number": ("#a3321f", "#f0a988"),
    "code-function": ("#1d5fb8", "#8fb8f7"),
    "shadow": ("rgb(24 28 48 / 7%)", "rgb(0 0 0 / 35%)"),
}
PRINTED = {
    "ground": "#ffffff",
    "ink": "#000000",
    "quiet": "#555555",
    "line": "#bbbbbb",
    "accent": "#1a1a80",
    "mine": "#f1f2fa",
    "bad": "#8a1020",
}
"""The colours of the printed chat that are not those of the light page."""
SIZES = {
    "column": "768px",
    "edge-space": "16px",
    "gap": "8px",
    "round": "16px",
    "rounder": "22px",
    "touch": "36px",
    "read": ".9688rem",
    "small": ".875rem",
    "tiny": ".78rem",
}
STYLES = (
    "page.css",
    "composer/composer.css",
    "chats.css",
    "transfer.css",
    "temporary.css",
    "toasts.css",
    "offline.css",
    "hidden.css",
    "queue.css",
    "options.css",
    "empty.css",
    "transcript/transcript.css",
    "print.css",
)
SANS = ("ui-sans-serif", "system-ui", "-apple-system", "Segoe UI", "Roboto", "Noto Sans", "Noto Sans CJK SC")
SERIF = ("Charter", "Georgia", '"Noto Serif"', '"Noto Serif CJK SC"', "serif")
MONO = ("ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "monospace")
GRADIO = {  # Gradio's variable: the page's variable
    "body_background_fill": "ground",
    "body_text_color": "ink",
    "body_text_color_subdued": "quiet",
    "background_fill_primary": "surface",
    "background_fill_secondary": "sunken",
    "border_color_primary": "line",
    "border_color_accent": "accent",
    "link_text_color": "accent",
    "link_text_color_hover": "accent",
    "link_text_color_active": "accent",
    "link_text_color_visited": "accent",
    "button_secondary_background_fill": "sunken",
    "button_secondary_background_fill_hover": "hover",
    "button_secondary_text_color": "ink",
    "button_secondary_text_color_hover": "ink",
    "code_background_fill": "sunken",
    "table_border_color": "line",
    "table_odd_background_fill": "surface",
    "table_even_background_fill": "surface",
}


def theme() -> Base:
    """Return a quiet theme without remote fonts. Dark mode is Gradio's own with the page's colours."""
    base = Base(
        primary_hue=colors.indigo,
        neutral_hue=colors.slate,
        radius_size=sizes.radius_lg,
        font=[*SANS, "sans-serif"],
        font_mono=list(MONO),
    )
    ours: dict[str, Any] = {f"{name}{dark}": f"var(--{to})" for name, to in GRADIO.items() for dark in ("", "_dark")}
    clear = {f"block_background_fill{dark}": "transparent" for dark in ("", "_dark")}
    return base.set(block_border_width="0px", **clear, **ours)


def style() -> str:
    """Return the page's style: the variables, and the rules of `STYLES` that use them.

    Not passed to Gradio as `css`, because Gradio rewrites rules, leaves some out and applies them late.
    """
    light = {name: light for name, (light, _) in COLOURS.items()} | SIZES
    dark = {name: dark for name, (_, dark) in COLOURS.items()}
    rules = "\n".join((Path(__file__).parent / name).read_text(encoding="utf-8") for name in STYLES)
    first, *others = rules.split("/*")
    rules = first + "".join(one.partition("*/")[2] for one in others)  # without comments
    printed = {name: light[name] for name in dark} | PRINTED | {"serif": ", ".join(SERIF)}
    both = "--color-accent: var(--accent);"  # Gradio sets it once for light and dark
    return (
        f":root {{ {_declarations(light)} {both} }}\n.dark {{ {_declarations(dark)} {both} }}\n"
        f"@media print {{ :root, .dark {{ color-scheme: light; {_declarations(printed)} }} }}\n{rules}"
    )


def _declarations(values: dict[str, str]) -> str:
    return " ".join(f"--{name}: {value};" for name, value in values.items())
