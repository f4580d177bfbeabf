"""A recording and pictures whose texts are known, for tests of transcription."""

import io
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

SAMPLES = Path(__file__).parents[1] / "samples"
SPEECH = (SAMPLES / "speech.ogg").read_bytes()
SPOKEN = "Hello. The meeting has moved to Thursday at half past three. Please bring the blue folder."
INVOICE = ("Invoice 4711", "Total: 99.50 EUR")


def plain(colour: str, size: tuple[int, int]) -> bytes:
    """Return a picture of one colour, without any text."""
    out = io.BytesIO()
    Image.new("RGB", size, colour).save(out, "PNG")
    return out.getvalue()


def picture_of_text(
    *lines: str, ink: str = "black", paper: str | tuple[int, ...] = "white", turned: float = 0
) -> bytes:
    """Return a picture of these lines, turned by `turned` degrees."""
    image = Image.new("RGBA", (640, 80 + 70 * len(lines)), paper)
    draw, font = ImageDraw.Draw(image), ImageFont.load_default(32)
    for number, line in enumerate(lines):
        draw.text((30, 30 + 70 * number), line, fill=ink, font=font)
    out = io.BytesIO()
    image.rotate(turned, expand=True, fillcolor=paper).save(out, "PNG")
    return out.getvalue()
