"""A program that runs in the sandbox and extracts text from an image or speech from audio, with the given models.

    picture|sound FILE...    the input: a PNG or JPEG, or a 16 kHz mono WAV

It writes the text, which can be empty.
"""

# numpy's results are known only in part.
# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportMissingTypeStubs=false

import math
import os
import sys
from collections.abc import Iterator, Sequence
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import Any

MAX_SIDE = 1600
"""The most pixels of the longer side in the detector's input."""
MIN_SIDE = 480
"""Smaller images are enlarged to this longer side, in pixels, because the detector misses tiny letters."""
INK, SURE = 0.3, 0.4
"""The least probability of text for one pixel, and the least average of a line."""
WIDER = 1.6
"""The detector finds the inner part of a line. This is how far its authors extend the box outwards."""
LINE = 48
"""The height of a line in pixels that the recogniser expects. The width can be any."""
MAX_LINE_WIDTH = 3200
READABLE, UPRIGHT = 0.5, 0.85
"""The least confidence to accept a line, and the confidence that most upright lines reach."""
MAX_LINES = 1000

CPU_THREADS = max(1, min(4, (os.cpu_count() or 2)))


# Images: PP-OCR, a detector of lines and a recogniser of their letters


def picture(data: bytes, files: Sequence[str]) -> str:
    """Return the lines of text in an image, from the top down. Tabs separate texts that stand side by side."""
    from PIL import Image

    given: Any = Image.open(BytesIO(data)).convert("RGBA")
    image: Any = Image.new("RGB", given.size, "white")
    image.paste(given, mask=given)
    detector = _session(next(file for file in files if "_det_" in file))
    boxes = list(islice(_boxes(detector, image), MAX_LINES))
    if not boxes:
        return ""
    recogniser = _session(next(file for file in files if "_rec_" in file))
    letters = ["", *recogniser.get_modelmeta().custom_metadata_map["character"].split("\n"), " "]
    read = [(box, _recognize(recogniser, letters, _cut(image, box))) for box in boxes]
    return "\n".join(_in_order([(box, text) for box, text in read if text]))


def _session(model: str) -> Any:
    import onnxruntime

    options: Any = onnxruntime.SessionOptions()
    options.intra_op_num_threads = CPU_THREADS
    options.enable_cpu_mem_arena = False
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def _run(session: Any, pixels: Any) -> Any:
    """Run one image (height, width, 3), 0 to 255, through a network of PaddleOCR, which expects blue first."""
    import numpy as np

    given = (np.asarray(pixels, np.float32)[:, :, ::-1] / 127.5 - 1).transpose(2, 0, 1)[None]
    return session.run(None, {session.get_inputs()[0].name: np.ascontiguousarray(given)})[0][0]


def _boxes(session: Any, image: Any) -> Iterator[Any]:
    """Yield the four corners (4, 2) of each line in pixels of the image. The first two are above the text."""
    import numpy as np

    longer = max(image.size)
    scale = min(1.0, MAX_SIDE / longer) if longer > MIN_SIDE else MIN_SIDE / longer
    size = [max(32, round(side * scale / 32) * 32) for side in image.size]
    likely = _run(session, image.resize(size))[0]
    back = np.array([image.width / size[0], image.height / size[1]])
    for ys, xs in _islands(_thicker(likely > INK)):
        if likely[ys, xs].mean() < SURE:
            continue
        middle, along, half = _rectangle(np.stack([xs, ys], axis=1).astype(np.float64))
        if min(half) < 1.5:
            continue
        out = half[0] * half[1] * WIDER / (half[0] + half[1])
        across = np.array([-along[1], along[0]])
        a, b = along * (half[0] + out), across * (half[1] + out)
        yield np.array([middle - a - b, middle + a - b, middle + a + b, middle - a + b]) * back


def _thicker(mask: Any) -> Any:
    """Return the mask grown by a pixel to the right and down, which closes gaps between letters."""
    out = mask.copy()
    out[:, 1:] |= mask[:, :-1]
    out[1:] |= mask[:-1]
    out[1:, 1:] |= mask[:-1, :-1]
    return out


def _islands(mask: Any) -> Iterator[tuple[Any, Any]]:
    """Yield (rows, columns) of the pixels of each connected part, found from the runs of each row."""
    import numpy as np

    edges = np.diff(np.pad(mask.astype(np.int8), ((0, 0), (1, 1))), axis=1)
    rows, starts = np.nonzero(edges == 1)
    _, ends = np.nonzero(edges == -1)
    first = np.searchsorted(rows, np.arange(mask.shape[0] + 1))
    parent = list(range(len(rows)))

    def root(run: int) -> int:
        while parent[run] != run:
            parent[run] = run = parent[parent[run]]
        return run

    for row in range(1, mask.shape[0]):
        above, here = first[row - 1], first[row]
        while above < first[row] and here < first[row + 1]:
            if starts[above] <= ends[here] and starts[here] <= ends[above]:  # corners that touch count as connected
                parent[root(above)] = root(here)
            if ends[above] < ends[here]:
                above += 1
            else:
                here += 1
    together: dict[int, list[int]] = {}
    for run in range(len(rows)):
        together.setdefault(root(run), []).append(run)
    for runs in together.values():
        ys = np.concatenate([np.full(ends[run] - starts[run], rows[run]) for run in runs])
        yield ys, np.concatenate([np.arange(starts[run], ends[run]) for run in runs])


def _rectangle(points: Any) -> tuple[Any, Any, Any]:
    """Return the smallest rectangle around points (n, 2): centre, text direction, half its length and height.

    One of its sides lies on a side of their convex hull.
    """
    import numpy as np

    corners = _hull(points)
    sides = np.roll(corners, -1, axis=0) - corners
    angles = np.unique(np.round(np.arctan2(sides[:, 1], sides[:, 0]) % (math.pi / 2), 4))
    best: tuple[float, Any] | None = None
    for angle in angles:
        turn = np.array([[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]])
        turned = corners @ turn.T
        low, high = turned.min(axis=0) - 0.5, turned.max(axis=0) + 0.5
        area = float(np.prod(high - low))
        if best is None or area < best[0] - 1e-6:
            best = area, (turn.T @ ((low + high) / 2), turn[0], turn[1], (high - low) / 2)
    assert best is not None
    middle, one, other, half = best[1]
    # Text runs along the longer side, unless both sides are similar. It runs to the right or down.
    if half[1] > 1.5 * half[0] or (abs(one[0]) < abs(other[0]) and half[0] < 1.5 * half[1]):
        one, half = other, half[::-1]
    if one[0] < -0.01 or (abs(one[0]) <= 0.01 and one[1] < 0):
        one = -one
    return middle, one, half


def _hull(points: Any) -> Any:
    """Return the corners of the convex hull in order (Andrew's monotone chain)."""
    import numpy as np

    # In each row, only the outermost pixels can be corners.
    order = np.lexsort((points[:, 0], points[:, 1]))
    rows = points[order]
    first = np.r_[True, rows[1:, 1] != rows[:-1, 1]]
    ends = np.unique(np.concatenate([rows[first], rows[np.r_[first[1:], True]]]), axis=0)
    if len(ends) < 3:
        return ends

    def half(some: Any) -> list[Any]:
        chain: list[Any] = []
        for point in some:
            while len(chain) > 1:
                a, b = chain[-1] - chain[-2], point - chain[-2]
                if a[0] * b[1] - a[1] * b[0] > 0:
                    break
                chain.pop()
            chain.append(point)
        return chain[:-1]

    return np.array(half(ends) + half(ends[::-1]))


def _cut(image: Any, box: Any) -> Any:
    """Cut the line out of the image, upright and with the recogniser's height."""
    from PIL import Image

    length = math.dist(box[0], box[1])
    height = max(1.0, math.dist(box[0], box[3]))
    width = min(MAX_LINE_WIDTH, max(LINE // 3, round(length * LINE / height)))
    corners = [float(value) for at in (0, 3, 2, 1) for value in box[at]]
    # Shrink in two steps, because the transform samples only four pixels.
    step = max(1, round(height / LINE))
    cut = image.transform((width * step, LINE * step), Image.Transform.QUAD, corners, Image.Resampling.BICUBIC)
    return cut.resize((width, LINE), Image.Resampling.BOX) if step > 1 else cut


def _recognize(session: Any, letters: list[str], image: Any) -> str:
    """Return the text of the line, or "" if it is a guess. Try a doubtful line upside down, too."""
    sure, text = _line(session, letters, image)
    if sure < UPRIGHT:
        sure, text = max((sure, text), _line(session, letters, image.rotate(180)))
    return text if sure >= READABLE else ""


def _line(session: Any, letters: list[str], image: Any) -> tuple[float, str]:
    """Return the recogniser's average confidence in a line, and its letters."""
    import numpy as np

    padded = np.full((LINE, max(320, image.width), 3), 127.5, np.float32)
    padded[:, : image.width] = np.asarray(image, np.float32)
    scores = _run(session, padded)
    best = scores.argmax(axis=1)
    kept = (best != 0) & np.r_[True, best[1:] != best[:-1]]  # repeats are one letter, unless a blank separates them
    if not kept.any():
        return 0.0, ""
    return float(scores.max(axis=1)[kept].mean()), "".join(letters[one] for one in best[kept]).strip()


def _in_order(read: Sequence[tuple[Any, str]]) -> list[str]:
    """Return the lines from the top down, each from the left. Join boxes if their centres have a similar height."""
    rows: list[list[tuple[Any, str]]] = []
    for box, text in sorted(read, key=lambda one: float(one[0][:, 1].mean())):
        middle = box[:, 1].mean()
        last = rows[-1][-1][0] if rows else None
        if last is not None and abs(middle - last[:, 1].mean()) < 0.35 * math.dist(last[0], last[3]):
            rows[-1].append((box, text))
        else:
            rows.append([(box, text)])
    return ["\t".join(text for _, text in sorted(row, key=lambda one: float(one[0][:, 0].min()))) for row in rows]


# Audio: Whisper


def sound(data: bytes, files: Sequence[str]) -> str:
    """Return the speech in the audio, in the language that was spoken."""
    import numpy as np
    from faster_whisper import WhisperModel

    held = {Path(file).name: Path(file).read_bytes() for file in files}
    model: Any = WhisperModel("base", device="cpu", compute_type="int8", cpu_threads=CPU_THREADS, files=held)
    held.clear()
    samples = np.frombuffer(data[44:], "<i2").astype(np.float32) / 32768
    segments, _ = model.transcribe(samples, beam_size=3, vad_filter=True, condition_on_previous_text=False)
    return "\n".join(segment.text.strip() for segment in segments)


def main(arguments: list[str]) -> int:
    """Read the input and write the text."""
    job, *files = arguments
    sys.stdout.buffer.write({"picture": picture, "sound": sound}[job](sys.stdin.buffer.read(), files).encode())
    return 0
