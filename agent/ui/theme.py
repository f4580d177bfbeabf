"""Colour, type and spacing of the page, in one place; `page.css` uses the variables that this sets."""

from gradio.themes import Base
from gradio.themes.utils import colors, sizes


def theme() -> Base:
    """A quiet theme without remote fonts; dark is Gradio's own dark mode with our colours."""
    sans = ("ui-sans-serif", "system-ui", "-apple-system", "Segoe UI", "Roboto", "Noto Sans", "sans-serif")
    mono = ("ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "monospace")
    base = Base(
        primary_hue=colors.indigo,
        neutral_hue=colors.slate,
        radius_size=sizes.radius_lg,
        font=list(sans),
        font_mono=list(mono),
    )
    return base.set(
        body_background_fill="#fbfbfd",
        body_background_fill_dark="#111318",
        block_border_width="0px",
        block_background_fill="transparent",
        block_background_fill_dark="transparent",
        background_fill_secondary="#f2f3f7",
        background_fill_secondary_dark="#1a1d24",
    )
