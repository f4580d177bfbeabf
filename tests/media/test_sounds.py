"""Sounds for models: audible content stays, people learn what changed, and harmful files are never fully unpacked."""

import pickle
import subprocess
import sys
from array import array
from functools import cache
from time import process_time

import numpy as np
import pytest

from agent.errors import InputError
from agent.files import sandbox_worker
from agent.files.convert import SoundLimits, convert_audio
from agent.files.sandbox import SandboxJob, run_decoder
from agent.files.sandbox_worker import RATE, SPARE_SECONDS
from agent.settings import ROOT
from agent.system.media_types import detect_mime
from tests.support import media_files
from tests.support.gate_rows import gate_rows
from tests.support.media_files import FORMATS, heard, sound, tone

pytestmark = pytest.mark.slow

WAV = SoundLimits()
BOTH = SoundLimits(types=("audio/wav", "audio/mpeg"))


@pytest.mark.parametrize("format_", gate_rows({name: name for name in FORMATS}, ("wav", "mp3", "m4a")))
def test_every_format_becomes_equal_wav(format_: str) -> None:
    normal = convert_audio(sound(format_, tone(1.5, hertz=440)), WAV)
    seconds, hertz = heard(normal.data)
    assert (normal.media_type, detect_mime(normal.data)) == ("audio/wav", "audio/wav")
    assert abs(seconds - 1.5) < 0.1
    assert abs(normal.seconds - seconds) < 0.001
    assert abs(hertz - 440) < 3
    assert len(normal.data) == 44 + 2 * 16_000 * seconds
    assert normal.note is None
    assert convert_audio(normal.data, WAV) == convert_audio(normal.data, BOTH)
    assert convert_audio(normal.data, WAV).data == normal.data


SILENT, CLIPPED = "It is silent.", "It is clipped: it was recorded too loud."


def test_fitting_sound_is_sent_unchanged() -> None:
    ours = convert_audio(sound("wav", rate=44_100), WAV)
    assert ours.said == "to 16 kHz, mono"
    assert convert_audio(ours.data, WAV).said == ""
    mp3 = sound("mp3")
    assert (convert_audio(mp3, BOTH).data, convert_audio(mp3, BOTH).said) == (mp3, "")
    assert convert_audio(mp3, WAV).said == "converted to WAV"
    tag = b"ID3\4\0\0\0\0\0\x14" + b"TPE1\0\0\0\x0a\0\0somebody.."
    tagged = tag + mp3 + b"TAG" + b"somebody".ljust(125)
    assert (convert_audio(tagged, BOTH).data, convert_audio(tagged, BOTH).said) == (mp3, "without its tags")


def test_channels_are_mixed_without_aliasing() -> None:
    both = np.stack([tone(1, hertz=500), tone(1, hertz=500)])
    assert heard(convert_audio(sound("wav", both), WAV).data) == pytest.approx((1, 500), abs=2)
    too_high = convert_audio(sound("wav", tone(1, hertz=15_000) + tone(1, hertz=300, loud=0.05)), WAV)
    assert heard(too_high.data)[1] == pytest.approx(300, abs=2)


@pytest.mark.parametrize(
    ("loud", "note"), [(0.0, SILENT), (0.0005, SILENT), (0.01, None), (1.0, None), (1.5, CLIPPED), (8.0, CLIPPED)]
)
@pytest.mark.parametrize(
    ("format_", "rate"),
    [("wav", 16_000), pytest.param("wav", 44_100, marks=pytest.mark.full), ("m4a, lossless", 48_000)],
)
def test_silence_and_clipping_are_noticed(loud: float, note: str | None, format_: str, rate: int) -> None:
    normal = convert_audio(sound(format_, tone(1, hertz=300, loud=loud, rate=rate), rate=rate), WAV)
    assert normal.note == note


def test_ten_silent_minutes_are_detected_in_sandbox() -> None:
    second = convert_audio(sound("wav", tone(1, loud=0.0, rate=16_000), rate=16_000), WAV).data
    samples = second[44:] * 600
    size = len(samples)
    data = b"RIFF" + (36 + size).to_bytes(4, "little") + second[8:40] + size.to_bytes(4, "little") + samples
    began = process_time()
    normal = convert_audio(data, WAV)
    spent = process_time() - began
    assert (normal.note, normal.data == data) == (SILENT, True)
    began = process_time()
    assert max(array("h", samples)) == 0
    assert spent < process_time() - began, "it took longer than one pass over the samples"


# --- what is refused --------------------------------------------------------------------------------------------------

REFUSED = [
    ("text", b"hello", "be opened as audio"),
    ("picture", media_files.picture("PNG"), "be opened as audio"),
    ("nothing", b"", "be opened as audio"),
    ("empty", sound("wav", tone(0)), "no sound in it"),
    ("cut", sound("m4a")[:3000], "broken or cut off"),
    ("rubbish", b"OggS" + bytes(3000), "broken or cut off"),
    ("too long", sound("flac", tone(6, rate=8000), rate=8000), "longer than 5 s"),
    ("too long, no length", sound("aac", tone(6)), "longer than 5 s"),
    ("too large", sound("wav", tone(4)), r"0\.1 MB as WAV; 0\.1 MB is the most"),
]


@pytest.mark.parametrize(("data", "says"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED])
def test_bad_sound_is_refused_with_reason(data: bytes, says: str) -> None:
    with pytest.raises(InputError, match=says):
        convert_audio(data, SoundLimits(seconds=5, max_bytes=100_000))


def test_video_is_no_sound() -> None:
    import io
    from typing import Any

    import av

    out = io.BytesIO()
    with av.open(out, "w", format="webm") as file:
        stream: Any = file.add_stream("libvpx", rate=5)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        frame = av.VideoFrame.from_ndarray(np.zeros((48, 64, 3), np.uint8), "rgb24")
        for given in (frame, None):
            file.mux(stream.encode(given))
    with pytest.raises(InputError, match="is a video"):
        convert_audio(out.getvalue(), WAV)


@cache
def harmful() -> dict[str, bytes]:
    return media_files.harmful_sounds()


WATCHED = """
import pickle, resource, sys
from tests.support.memory import most_memory
from agent.errors import InputError
from agent.files.convert import SoundLimits, convert_audio

def used():
    own, others = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + others.ru_utime, max(most_memory(), others.ru_maxrss)

for name, data in pickle.load(sys.stdin.buffer).items():
    before, _ = used()
    try:
        convert_audio(data, SoundLimits())
        outcome = "taken"
    except InputError:
        outcome = "refused"
    print(name, outcome, used()[0] - before, used()[1], sep="|")
"""


def test_audio_bomb_is_refused_by_header() -> None:
    names = ["opus, two hours", "webm, two hours", "flac, two hours", "m4a, samples", "wav, channels", "wav, rate"]
    given = pickle.dumps({name: harmful()[name] for name in names})
    done = subprocess.run([sys.executable, "-c", WATCHED], cwd=ROOT, input=given, capture_output=True, check=True)
    seen = [line.split("|") for line in done.stdout.decode().splitlines()]
    assert [name for name, *_ in seen] == names
    for name, outcome, seconds, kilobytes in seen:
        assert outcome == "refused", name
        assert float(seconds) < 3, f"{name}: takes too much CPU time; decoding one takes a minute"
        assert int(kilobytes) < 200 * 1024, name


def test_sound_without_length_is_decoded_to_limit() -> None:
    silent = media_files.hours_of_opus(0.01, container="webm", live="1")
    with pytest.raises(InputError, match="longer than 5 s"):
        convert_audio(silent, SoundLimits(seconds=5))
    assert 5 < len(run_decoder("sound", "matroska", "5", data=silent)) / 2 / RATE < 5 + 2 * SPARE_SECONDS


def test_flac_without_length_is_read() -> None:
    """A program that writes to a pipe can't go back to the header."""
    whole = bytearray(sound("flac", tone(1.5, rate=RATE), rate=RATE))
    whole[18:26] = (int.from_bytes(whole[18:26], "big") >> 36 << 36).to_bytes(8, "big")
    assert convert_audio(bytes(whole), WAV).seconds == pytest.approx(1.5, abs=0.01)
    long = bytearray(sound("flac", tone(4, rate=RATE), rate=RATE))
    long[18:26] = whole[18:26]
    with pytest.raises(InputError, match="longer than 1 s"):
        convert_audio(bytes(long), SoundLimits(seconds=1))


def test_exaggerated_header_costs_nothing() -> None:
    assert convert_audio(media_files.wav_of(), WAV).seconds == pytest.approx(1)


@pytest.mark.parametrize(
    "said", [b"", b"\xff", b"[]", b"7", b'["video"]', b'["nobody", {}]', b'["odd_sound", {"rate": 1}]']
)
def test_hostile_decoder_message_is_not_shown(monkeypatch: pytest.MonkeyPatch, said: bytes) -> None:
    monkeypatch.setattr(SandboxJob, "run", lambda *_: (sandbox_worker.REFUSED, b"\n" + said))
    with pytest.raises(InputError, match=r"is a sound \(WAV\) that is broken or cut off"):
        convert_audio(sound("wav", tone(1)), WAV)
