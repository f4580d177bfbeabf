"""Puts pictures of the page before and after a change side by side: `python -m docs.pictures.compare BEFORE AFTER`.

BEFORE and AFTER are the folders tests/shots of two checkouts in which `make pictures` ran. The sheets of the first
twelve scenes are written beside this file.
"""

import sys
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

SCENES = 12
LOOKS = {"desktop-light": (460, 2), "desktop-dark": (460, 2), "phone-light": (280, 4)}
"""The width in pixels of a picture, and the number of scenes side by side."""
TITLE, SPACE = 34, 16


def scene(before: Path, after: Path, width: int) -> Image.Image:
    """Return both pictures of a scene, `width` pixels wide each, below the name of the scene."""
    pair = [Image.open(file).convert("RGB") for file in (before, after)]
    pair = [one.resize((width, one.height * width // one.width), Image.Resampling.LANCZOS) for one in pair]
    drawn = Image.new("RGB", (2 * width + SPACE, TITLE + max(one.height for one in pair)), "white")
    draw, font = ImageDraw.Draw(drawn), ImageFont.load_default(18)
    name = after.stem.split("-", 3)[3].replace("-", " ")
    for at, (one, label) in enumerate(zip(pair, (f"{name}: before", "after"), strict=True)):
        drawn.paste(one, (at * (width + SPACE), TITLE))
        draw.rectangle(
            (at * (width + SPACE), TITLE, at * (width + SPACE) + width - 1, TITLE + one.height - 1), outline="gray"
        )
        draw.text((at * (width + SPACE), 6), label, fill="black", font=font)
    return drawn


def sheet(before: Path, after: Path, look: str) -> Image.Image:
    """Return a sheet with the first scenes in one look."""
    width, columns = LOOKS[look]
    files = sorted(after.glob(f"{look}-*.png"))[:SCENES]
    scenes = [scene(before / file.name, file, width) for file in files]
    wide, high = scenes[0].width + 2 * SPACE, max(one.height for one in scenes) + SPACE
    drawn = Image.new("RGB", (columns * wide, -(-len(scenes) // columns) * high), "white")
    for at, one in enumerate(scenes):
        drawn.paste(one, (at % columns * wide + SPACE, at // columns * high))
    return drawn


if __name__ == "__main__":
    folders = Path(sys.argv[1]), Path(sys.argv[2])
    for look in LOOKS:
        sheet(*folders, look).save(Path(__file__).with_name(f"before-after-{look}.webp"), quality=60, method=6)
