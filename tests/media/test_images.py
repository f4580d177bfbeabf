"""Pictures for models: upright, small enough, without metadata. Harmful files are never decoded."""

import asyncio
import io
import json
import pickle
import socket
import subprocess
import sys
import timeit
import tracemalloc
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from typing import Any

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from agent.errors import InputError
from agent.files import sandbox
from agent.files.convert import convert_file
from agent.files.images import KINDS as KINDS_READ
from agent.files.images import ImageLimits, convert_image
from agent.files.sandbox import SandboxJob
from agent.files.sandbox_limits import landlock
from agent.settings import ROOT
from agent.system.media_types import detect_mime, label
from tests.conftest import becomes
from tests.support import media_files
from tests.support.media_files import drawn, encoded, exif, gif_of, harmful_pictures, picture, red_corner
from tests.support.waiting import command_of
from tests.tiers import examples

pytestmark = pytest.mark.slow

ALL = ImageLimits(types=KINDS_READ)
FEW = ImageLimits()
SMALL = ImageLimits(side=32)


def opened(data: bytes) -> Image.Image:
    image = Image.open(io.BytesIO(data))
    image.load()
    return image


# --- each format ------------------------------------------------------------------------------------------------------

KINDS = [
    ("png", picture("PNG"), "image/png"),
    ("png, grey", picture("PNG", mode="L"), "image/png"),
    ("png, 16 bits", picture("PNG", mode="I;16"), "image/png"),
    ("png, two colours", picture("PNG", mode="1"), "image/png"),
    ("png, palette", picture("PNG", mode="P"), "image/png"),
    ("png, transparent", picture("PNG", mode="RGBA"), "image/png"),
    ("png, moving", picture("PNG", save_all=True, append_images=[drawn().rotate(180)]), "image/png"),
    ("jpeg", picture("JPEG"), "image/jpeg"),
    ("jpeg, progressive", picture("JPEG", progressive=True), "image/jpeg"),
    ("jpeg, cmyk", picture("JPEG", mode="CMYK"), "image/jpeg"),
    ("gif", picture("GIF", mode="P"), "image/png"),
    ("gif, moving", picture("GIF", save_all=True, append_images=[drawn().rotate(180)]), "image/png"),
    ("webp", picture("WEBP"), "image/jpeg"),
    ("webp, transparent", picture("WEBP", mode="RGBA"), "image/png"),
    ("webp, moving", picture("WEBP", save_all=True, append_images=[drawn().rotate(180)]), "image/jpeg"),
    ("heic", picture("HEIF"), "image/jpeg"),
    ("avif", picture("AVIF"), "image/jpeg"),
    ("avif, transparent", picture("AVIF", mode="RGBA"), "image/png"),
]


@pytest.mark.parametrize("limits", [FEW, SMALL], ids=["fits", "is scaled"])
@pytest.mark.parametrize(("data", "becomes"), [case[1:] for case in KINDS], ids=[case[0] for case in KINDS])
def test_every_format_becomes_a_portable_one(data: bytes, becomes: str, limits: ImageLimits) -> None:
    normal = convert_image(data, limits)
    image = opened(normal.data)
    assert (normal.media_type, detect_mime(normal.data)) == (becomes, becomes)
    assert image.size == ((64, 48) if limits is FEW else (32, 24))
    assert image.mode in ("1", "L", "P", "RGB", "RGBA")
    assert getattr(image, "n_frames", 1) == 1
    if image.mode not in ("1", "L"):
        assert red_corner(image) == "upper left"
    assert convert_image(normal.data, limits) == convert_image(normal.data, limits)
    assert convert_image(normal.data, limits).data == normal.data


@pytest.mark.parametrize("turn", range(1, 9))
@pytest.mark.parametrize("format_", ["JPEG", "PNG", "WEBP", "AVIF", "HEIF"])
def test_picture_is_turned_and_stripped(format_: str, turn: int) -> None:
    ways = Image.Transpose
    undone = [None, ways.FLIP_LEFT_RIGHT, ways.ROTATE_180, ways.FLIP_TOP_BOTTOM, ways.TRANSPOSE, ways.ROTATE_90]
    undo = [*undone, ways.TRANSVERSE, ways.ROTATE_270][turn - 1]
    stored = drawn() if undo is None else drawn().transpose(undo)
    data = encoded(stored, format_, exif=exif(turn))
    assert media_files.SECRET.encode() in data
    for limits in (ALL, SMALL):
        normal = convert_image(data, limits)
        image = opened(normal.data)
        assert red_corner(image) == "upper left"
        assert image.size == ((64, 48) if limits is ALL else (32, 24))
        assert media_files.SECRET.encode() not in normal.data
        assert b"Exif" not in normal.data
        assert not image.getexif()


AS_IT_IS = [
    ("png", picture("PNG")),
    ("jpeg", picture("JPEG", quality=37)),
    ("jpeg, progressive", picture("JPEG", progressive=True)),
    ("webp", picture("WEBP")),
    ("gif", picture("GIF", mode="P")),
    ("at the limit", picture("PNG", (1568, 10 + 6))),
]


@pytest.mark.parametrize("data", [case[1] for case in AS_IT_IS], ids=[case[0] for case in AS_IT_IS])
def test_fitting_clean_picture_keeps_every_byte(data: bytes) -> None:
    normal = convert_image(data, ALL)
    assert normal.data == data
    assert normal.said == ""


@pytest.mark.parametrize(
    "dirty",
    [
        picture("PNG", exif=exif()),
        picture("JPEG", quality=37, exif=exif(), comment=b"hello"),
        picture("WEBP", exif=exif(), xmp=b"<x/>"),
        picture("JPEG") + b"what a phone appends: " * 9,
        picture("PNG") + b"and something else",
        picture("MPO", save_all=True, append_images=[drawn()]),
    ],
    ids=["png", "jpeg", "webp", "jpeg and more", "png and more", "two pictures"],
)
def test_metadata_goes_and_pixels_stay(dirty: bytes) -> None:
    normal = convert_image(dirty, ALL)
    assert len(normal.data) < len(dirty)
    assert normal.said == "without its metadata"
    assert convert_image(normal.data, ALL).data == normal.data
    assert opened(normal.data).tobytes() == opened(dirty).tobytes()


def test_colour_profile_is_kept() -> None:
    from PIL import ImageCms

    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    for format_ in ("PNG", "JPEG", "WEBP"):
        for limits in (ALL, SMALL):
            assert (
                opened(convert_image(picture(format_, icc_profile=profile), limits).data).info["icc_profile"] == profile
            )
    grey = opened(convert_image(picture("PNG", mode="L", icc_profile=profile), SMALL).data)
    assert "icc_profile" not in grey.info


def test_high_depth_and_transparency_look_the_same() -> None:
    wide = opened(convert_image(picture("PNG", mode="I;16"), SMALL).data)
    usual = opened(convert_image(picture("PNG", mode="L"), SMALL).data)
    assert max(abs(a - b) for a, b in zip(wide.tobytes(), usual.tobytes(), strict=True)) <= 2
    clear = opened(convert_image(picture("WEBP", mode="RGBA"), SMALL).data)
    assert clear.mode == "RGBA"
    assert clear.getpixel((3, 3))[3] == 128  # type: ignore[index]


def test_conversion_is_described() -> None:
    large = drawn((400, 300))
    assert convert_image(encoded(large, "HEIF"), ImageLimits(side=100)).said == "converted to JPEG, 400 to 100 px"
    assert convert_image(encoded(large, "PNG"), ImageLimits(side=100)).said == "400 to 100 px"
    moving = picture("GIF", save_all=True, append_images=[drawn().rotate(180)])
    assert convert_image(moving, ALL).said == "converted to PNG, its first picture"
    noise = Image.effect_noise((300, 300), 90).convert("RGB")
    noise.putalpha(Image.linear_gradient("L").resize((300, 300)))
    on_white = convert_image(encoded(noise, "PNG"), ImageLimits(max_bytes=60_000))
    assert on_white.said == "converted to JPEG, on white"
    assert len(on_white.data) <= 60_000
    assert convert_image(encoded(noise.convert("RGB"), "PNG"), ImageLimits(max_bytes=60_000)).media_type == "image/jpeg"


@given(
    size=st.tuples(st.integers(1, 90), st.integers(1, 90)),
    format_=st.sampled_from(["PNG", "JPEG", "WEBP", "GIF"]),
    side=st.integers(1, 100),
    types=st.sampled_from([ALL.types, FEW.types]),
)
@settings(max_examples=examples(60))
def test_picture_is_never_enlarged(size: tuple[int, int], format_: str, side: int, types: tuple[str, ...]) -> None:
    limits = ImageLimits(types=types, side=side)
    normal = convert_image(picture(format_, size), limits)
    image = opened(normal.data)
    assert normal.media_type in types
    assert max(image.size) == min(side, max(size))
    assert all(now <= before for now, before in zip(image.size, size, strict=True))
    assert convert_image(normal.data, limits).data == normal.data


# --- what is refused --------------------------------------------------------------------------------------------------

CUT = [(format_, cut) for format_ in ("PNG", "JPEG", "WEBP", "GIF", "HEIF", "AVIF") for cut in (0.3, 0.7, 0.98)]


@pytest.mark.parametrize(("format_", "cut"), CUT)
def test_truncated_picture_is_refused(format_: str, cut: float) -> None:
    data = encoded(Image.effect_noise((200, 150), 60).convert("RGB"), format_)
    with pytest.raises(InputError, match="broken or cut off"):
        convert_image(data[: int(cut * len(data))], ALL)


@given(st.sampled_from([case[1] for case in KINDS]), st.data())
@settings(max_examples=examples(60))
def test_broken_bytes_are_refused_or_read(data: bytes, draw: Any) -> None:
    broken = bytearray(data)
    for _ in range(draw.draw(st.integers(1, 8))):
        broken[draw.draw(st.integers(0, len(broken) - 1))] = draw.draw(st.integers(0, 255))
    with suppress(InputError):
        assert max(opened(convert_image(bytes(broken), FEW).data).size) <= FEW.side


def test_only_content_identifies_pictures() -> None:
    for data in (b"", b"GIF", b"<svg xmlns='http://www.w3.org/2000/svg'/>", b"BM" + bytes(60), b"II*\0" + bytes(60)):
        with pytest.raises(InputError, match="be opened as an image"):
            convert_image(data, ALL)
    assert label(detect_mime(picture("HEIF"))) == "HEIC"


WATCHED = """
import pickle, resource, sys
from agent.errors import InputError
from agent.files.sandbox import convert_image
from agent.files.images import ImageLimits

def used():
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return children.ru_utime + children.ru_stime, children.ru_maxrss // 1024

for name, data in pickle.load(open(sys.argv[1], "rb")).items():
    before, _ = used()
    try:
        outcome = f"taken, {len(convert_image(data, ImageLimits()).data)}"
    except InputError as refused:
        outcome = f"refused: {refused}"
    seconds, megabytes = used()
    print(name, round(seconds - before, 2), megabytes, outcome, sep="|")
print("here", 0, 0, [name for name in ("PIL", "pillow_heif", "numpy") if name in sys.modules], sep="|")
"""


def measured(files: dict[str, bytes], folder: Path) -> dict[str, tuple[float, int, str]]:
    """Return for each file the sandbox's CPU seconds, the most megabytes so far, and the outcome."""
    (folder / "files").write_bytes(pickle.dumps(files))
    done = subprocess.run(
        [sys.executable, "-c", WATCHED, str(folder / "files")], cwd=ROOT, capture_output=True, text=True, check=True
    )
    rows = [line.split("|", 3) for line in done.stdout.splitlines()]
    return {name: (float(seconds), int(megabytes), outcome) for name, seconds, megabytes, outcome in rows}


def test_decompression_bomb_is_refused_by_header(tmp_path: Path) -> None:
    files = harmful_pictures()
    lying = files.pop("avif, lying")
    found = measured({**files, "avif, lying": lying}, tmp_path)
    assert found.pop("here")[2] == "[]", "the caller has loaded a decoder"
    assert found.pop("avif, lying")[1] < 400
    for name, (seconds, megabytes, outcome) in found.items():
        assert seconds < 2, name  # decoding any of them would take far longer
        assert megabytes < 90, f"{name} was decoded"
        assert outcome.startswith("refused"), (name, outcome)


def test_gif_with_comments_and_many_frames_is_its_first_frame() -> None:
    plain = gif_of((64, 48), (64, 48))
    body = plain[13 + (6 << (plain[10] & 7)) : -1]
    comment, odd = b"\x21\xfe" + b"\x01a" * 3_000 + b"\0", b"\x21\x01\x01a\0"
    shown = opened(convert_image(plain, ALL).data).convert("RGB")
    for data in (
        plain[:-1] + comment + b";",
        plain[: -1 - len(body)] + comment + odd + body + b"\0\0" + body * 900 + b";",
    ):
        converted = convert_image(data, ALL)
        assert opened(converted.data).convert("RGB").tobytes() == shown.tobytes()
        assert ("its first picture" in converted.said) == (data.count(body) > 1)


@pytest.mark.parametrize("name", ["jpeg, scans", "avif, parts", "gif, comment"])
def test_picture_of_too_many_parts_takes_no_time_to_open(name: str) -> None:
    """Imports and tools open pictures of all formats without converting them."""
    data, before = harmful_pictures()[name], getrusage(RUSAGE_CHILDREN).ru_utime
    with pytest.raises((InputError, ValueError)):
        sandbox.open_image(data)
    assert getrusage(RUSAGE_CHILDREN).ru_utime - before < 2, "seconds of the processor"


LIMITS = {"time": {"timeout_seconds": 0}, "time of the processor": {"seconds": 0}}


@pytest.mark.parametrize("limits", LIMITS.values(), ids=LIMITS)
def test_picture_of_too_much_is_not_called_broken(limits: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "DECODING", replace(sandbox.DECODING, **limits))
    with pytest.raises(InputError, match="takes too much time or memory"):
        sandbox.convert_image(media_files.png_of(4_000, 4_000, 8), ImageLimits())


# --- the sandbox ------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform != "linux", reason="asks the system about another process")
def test_sandbox_has_no_key_and_keeps_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "swordfish")
    monkeypatch.setenv("SWITCHBOARD_SECRET", "swordfish")
    limits = json.dumps(asdict(FEW))
    with SandboxJob(sandbox.DECODING, "picture", limits).start() as process:
        proc, data = Path(f"/proc/{process.pid}"), picture("HEIF")

        def kept() -> tuple[str, ...]:
            values = {line[:26].strip(): line[26:].split()[0] for line in (proc / "limits").read_text().splitlines()}
            return tuple(values[f"Max {name}"] for name in ("data size", "cpu time", "file size", "core file size"))

        becomes((str(sandbox.DECODING.memory), "20", "0", "0"), kept)  # the process sets one after the other
        names = {one.partition(b"=")[0].decode() for one in (proc / "environ").read_bytes().split(b"\0") if one}
        assert names <= {"PATH", "LD_LIBRARY_PATH", "MALLOC_ARENA_MAX", "OPENBLAS_NUM_THREADS", "LC_CTYPE"}
        assert b"swordfish" not in (proc / "environ").read_bytes() + (proc / "cmdline").read_bytes()
        becomes(  # it opens and closes the modules that it imports
            [],
            lambda: [
                one.name
                for one in (proc / "fd").iterdir()
                if int(one.name) > 2 and one.exists() and not one.is_fifo()  # a pipe closes when this process ends
            ],
        )
        out, _ = process.communicate(data, timeout=30)
    assert process.returncode == 0
    assert json.loads(out.partition(b"\n")[0])["media_type"] == "image/jpeg"


REACHING = r"""
import os, socket
key, port, parent = {key!r}, {port}, os.getppid()
for name, attempt in dict(
    environment=lambda: open(f"/proc/{{parent}}/environ", "rb").read(),
    memory=lambda: open(f"/proc/{{parent}}/mem", "rb"),
    key=lambda: open(key).read(),
    folder=lambda: os.listdir(os.path.dirname(key)),
    change=lambda: os.truncate(key, 0),
    remove=lambda: os.unlink(key),
    signal=lambda: os.kill(parent, 0),
    network=lambda: socket.create_connection(("127.0.0.1", port), 5),
).items():
    try:
        attempt()
        print(name, "allowed")
    except PermissionError:
        print(name, "refused")
print("end")
"""


@pytest.mark.skipif(landlock() < 4, reason="this kernel has no Landlock, or one that does not know TCP")
def test_sandbox_reaches_nothing_of_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = tmp_path / "cookie.key"
    key.write_text("swordfish")
    program = sandbox.SandboxProgram(
        timeit, memory=128 * 1024 * 1024, seconds=5, timeout_seconds=20
    )  # its `main` runs the given code
    with socket.create_server(("127.0.0.1", 0)) as listener:
        code = REACHING.format(key=str(key), port=listener.getsockname()[1])
        status, out = SandboxJob(program, "-n1", "-r1", code).run(b"")
        outcomes = dict(line.split() for line in out.decode().partition("end")[0].splitlines())
        if landlock() < 6:
            assert outcomes.pop("signal") == "allowed"
        assert len(outcomes) >= 7
        assert set(outcomes.values()) == {"refused"}
        assert status == 0
        monkeypatch.setattr(sandbox.SandboxProgram, "command", lambda *_: [sys.executable, "-c", code])
        _, out = SandboxJob(program).run(b"")  # the same code outside the sandbox
        assert b"key allowed" in out
        assert b"network allowed" in out


@pytest.mark.parametrize(
    "out",
    [
        b"",
        b"[]\n" + picture("PNG"),
        b'{"done": [["nobody", {}]]}\n' + picture("PNG"),
        b'{"done": [["scaled", {}]]}\n' + picture("PNG"),
        b'{"done": []}\n<script>',
        b'{"done": []}\n' + picture("GIF"),
        b'{"done": []}\n' + picture("PNG") + bytes(5_000_000),
    ],
    ids=["nothing", "no table", "an unknown sentence", "half a sentence", "a page", "another kind", "too much"],
)
def test_hostile_decoder_output_is_refused(monkeypatch: pytest.MonkeyPatch, out: bytes) -> None:
    monkeypatch.setattr(SandboxJob, "run", lambda *_: (0, out))
    with pytest.raises(InputError, match="broken or cut off"):
        sandbox.convert_image(picture("PNG"), FEW)


FLOOD = "import sys\nfor _ in range(600): sys.stdout.buffer.write(bytes(100_000))"


def test_flood_from_decoder_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    program = sandbox.SandboxProgram(timeit, memory=1 << 27, seconds=5, timeout_seconds=20, max_output=1000)
    with pytest.raises(ValueError, match="wrote more than 1000 bytes"):
        SandboxJob(program, "-n1", "-r1", FLOOD).run(b"")
    status, out = SandboxJob(program, "-n1", "-r1", "print('x' * 900)").run(b"")
    assert (status, out.startswith(b"x" * 900)) == (0, True)
    monkeypatch.setattr(sandbox.SandboxProgram, "command", lambda *_: [sys.executable, "-c", FLOOD])
    data = picture("PNG")
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match="broken or cut off"):
            sandbox.convert_image(data, FEW)
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()


def test_only_the_sandbox_decodes() -> None:
    code = """
import asyncio, pickle, sys
from agent import Image
from agent.models.catalog import load_catalog
from agent.files.convert import convert_file
for data in pickle.load(sys.stdin.buffer):
    asyncio.run(convert_file(data, load_catalog().find("openai:gpt-4o")))
    Image.from_bytes(data)
print([name for name in ("PIL", "pillow_heif", "av", "numpy", "soundfile") if name in sys.modules])
"""
    files = [encoded(drawn(), format_) for format_ in ("PNG", "JPEG", "WEBP", "GIF", "HEIF", "AVIF")]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, input=pickle.dumps(files), capture_output=True, check=True
    )
    assert done.stdout.decode().strip() == "[]"


async def test_abandoned_conversion_ends_its_process() -> None:
    def decoders() -> list[psutil.Process]:
        return [one for one in psutil.Process().children() if "agent.files.sandbox_worker" in command_of(one)]

    task = asyncio.create_task(convert_file(media_files.png_of(5900, 4000, 8), None))
    await asyncio.to_thread(becomes, 1, lambda: len(decoders()))
    [process] = decoders()
    process.suspend()
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()
    await asyncio.to_thread(becomes, False, process.is_running)
