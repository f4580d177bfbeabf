"""Text in images and speech in audio, extracted on this machine for models that cannot see or hear.

The models are downloaded when they are first needed. They run in a separate process (`transcribe_worker`), one file at
a time. This process loads nothing of them, and a file that harms the other process harms nothing else.
"""

import asyncio
import logging
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from agent.errors import InputError, LocalModelError, combine_errors
from agent.files import transcribe_worker
from agent.files.remarks import ConvertedMedia
from agent.files.sandbox import SandboxProgram, environment, inherited
from agent.i18n.text import N_, LocalizedText, _
from agent.models.weights import HubFile, Pinned, Status, fetch, find, hub_answers
from agent.system.project import IS_INSTALLED
from agent.system.request_queue import RequestQueue

log = logging.getLogger(__name__)

Kind = Literal["image", "audio"]
ReportProgress = Callable[[Status | None], None]
"""A callback that receives the current activity, or None when there is none."""

PROGRAM = SandboxProgram(transcribe_worker, memory=2 * 1024**3, seconds=1800, timeout_seconds=900, max_output=4_000_000)
"""Whisper takes 600 MB, the largest image less. Ten minutes of speech take 300 seconds on all cores together.

The output holds the longest text of an image: a thousand lines of several hundred letters.
"""
MAX_CHARACTERS = 200_000
"""The most characters that are kept of the extracted text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TranscriptionModel:
    """The model that reads one kind of file: its name for people, origin, licence and files."""

    job: str
    label: str
    licence: str
    source: str
    files: tuple[Pinned, ...]
    module: str
    """The module that runs it, which the extra `extra` brings."""
    extra: str

    @property
    def size(self) -> int:
        """The size of all its files in bytes."""
        return sum(file.size for file in self.files)


OCR = TranscriptionModel(
    job="picture",
    label="PP-OCRv6",
    licence="Apache-2.0",
    source="PaddleOCR's small models, from the rapidocr package",
    module="onnxruntime",
    extra="ocr",
    files=(
        Pinned(
            file="models/PP-OCRv6_det_small.onnx",
            size=9_929_594,
            sha256="090f04abcd9d9a7498bc4ebf677e4cb9bdce1fe4197ddb7e529f1ef44e1ff94f",
            package="rapidocr",
            requirements="requirements-ocr.txt",
        ),
        Pinned(
            file="models/PP-OCRv6_rec_small.onnx",
            size=21_234_383,
            sha256="6f327246b50388f3c176ae304bd95767ea6dc0c9ae92153ef8cbe210b3c14884",
            package="rapidocr",
            requirements="requirements-ocr.txt",
        ),
    ),
)


def _whisper(file: str, size: int, sha256: str) -> Pinned:
    hub = HubFile("Systran/faster-whisper-base", "ebe41f70d5b6dfa9166e2c581c45c9c0cfc57b66", file)
    return Pinned(file=f"faster-whisper-base/{file}", size=size, sha256=sha256, hub=hub)


SPEECH = TranscriptionModel(
    job="sound",
    label="Whisper base",
    licence="MIT",
    source="OpenAI's model as Systran converted it, from the model hub, Systran/faster-whisper-base",
    module="faster_whisper",
    extra="speech",
    files=(
        _whisper("config.json", 2_309, "56a6d8110d311f19c8f0471e562832c7527f146b567275bfca59fcf7c184da9a"),
        _whisper("tokenizer.json", 2_203_239, "fb7b63191e9bb045082c79fd742a3106a12c99513ab30df4a0d47fa6cb6fd0ab"),
        _whisper("vocabulary.txt", 459_861, "34ce3fe1c5041027b3f8d42912270993f986dbc4bb34cf27f951e34a1e453913"),
        _whisper("model.bin", 145_217_532, "d01c3014881c9c6f3133c182f3d2887eb6ca1c789a7538c5c007196857a0a6a9"),
    ),
)
TRANSCRIPTION_MODELS: dict[Kind, TranscriptionModel] = {"image": OCR, "audio": SPEECH}


class Transcriber:
    """Extracts text from files, one at a time. Owns the worker processes; their models are stored under `cache_dir`.

    Visitors take turns.
    """

    def __init__(self, cache_dir: Path, *, downloads: bool = True) -> None:
        self._cache, self._downloads = cache_dir, downloads
        self._queue = RequestQueue(1)
        self._absent: dict[Kind, str] = {}

    @property
    def absent(self) -> Mapping[Kind, str]:
        """The kinds of files that could not be transcribed at the last `check_models`, each with the reason."""
        return self._absent

    async def check_models(self) -> None:
        """Find out which kinds of files can be transcribed: their models are on this disk or can be downloaded."""
        for kind in TRANSCRIPTION_MODELS:
            try:
                await self.to_fetch(kind)
                self._absent.pop(kind, None)
            except InputError as error:
                self._absent[kind] = error.text

    async def to_fetch(self, kind: Kind) -> int:
        """Return the bytes to download before the first file of that kind. Raises `InputError` if it is impossible."""
        if find_spec(TRANSCRIPTION_MODELS[kind].module) is None:
            raise InputError(_not_installed(TRANSCRIPTION_MODELS[kind]))
        is_on_disk = [await find(file, self._cache) is not None for file in TRANSCRIPTION_MODELS[kind].files]
        missing = [file for file, found in zip(TRANSCRIPTION_MODELS[kind].files, is_on_disk, strict=True) if not found]
        if missing and not self._downloads:
            raise InputError(_not_on_disk(TRANSCRIPTION_MODELS[kind]))
        if any(file.hub for file in missing) and not await hub_answers():
            raise InputError(_unreachable(TRANSCRIPTION_MODELS[kind]))
        return sum(file.size for file in missing)

    async def text(self, name: str, converted: ConvertedMedia, report: ReportProgress) -> str:
        """Return the text in the image, or the speech in the audio, called `name`. The text is never empty.

        Raises `InputError` if nothing was found, if it took too much time or memory, or if the model is not available.
        Cancelling it ends the worker process.
        """
        text = await self.text_or_nothing(name, converted, report)
        if not text:
            if converted.media_type.startswith("image/"):
                raise InputError(
                    _("No text was found in {name}. Remove it, or choose a model that can see it.", name=name)
                )
            raise InputError(
                _("No speech was found in {name}. Remove it, or choose a model that can hear it.", name=name)
            )
        return text

    async def text_or_nothing(self, name: str, converted: ConvertedMedia, report: ReportProgress) -> str:
        """Return the text like `text`, or "" if nothing was found. A page of a scanned document can be empty."""
        kind: Kind = "image" if converted.media_type.startswith("image/") else "audio"
        model = TRANSCRIPTION_MODELS[kind]
        async with self._queue.slot(
            lambda _position: report(
                _activity(_("Waiting to extract the text of {name}: another file comes first.", name=name))
            )
        ):
            files = await self._fetch_files(model, report)
            report(_activity(_("Extracting the text of {name} …", name=name)))
            text = (await _run_worker(model, name, converted.data, files)).strip()
        if not any(map(str.isalnum, text)):  # the edge of a shape is read as "_"
            return ""
        return text if len(text) <= MAX_CHARACTERS else text[:MAX_CHARACTERS] + " …"

    async def _fetch_files(self, model: TranscriptionModel, report: ReportProgress) -> list[Path]:
        def report_bytes(have: int) -> None:
            done, all_ = have // 10**6, model.size // 10**6
            share = have / model.size
            text = _(
                "Downloading {reader} (one time): {have} of {total} MB …", reader=model.label, have=done, total=all_
            )
            report(_activity(text, share))

        paths: list[Path] = []
        before = 0
        for file in model.files:
            path = await find(file, self._cache)
            if path is None and not self._downloads:
                raise InputError(_not_on_disk(model))
            if path is None:
                report_bytes(before)
                try:
                    path = await fetch(
                        file, self._cache, report=lambda have, _, before=before: report_bytes(before + have)
                    )
                except LocalModelError as error:
                    refused = InputError(
                        _("{reader}, which extracts the text, could not be fetched.", reader=model.label)
                    )
                    raise combine_errors(InputError, refused, error) from error
            paths.append(path)
            before += file.size
        return paths


async def _run_worker(model: TranscriptionModel, name: str, data: bytes, files: list[Path]) -> str:
    process = await asyncio.create_subprocess_exec(
        # Absolute, but not resolved: links in the hub's cache have the file names, and their targets do not.
        *PROGRAM.command(model.job, *(str(file.absolute()) for file in files)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment(),
        pass_fds=inherited(),
    )
    assert process.stdin
    assert process.stdout
    assert process.stderr
    try:
        async with asyncio.timeout(PROGRAM.timeout_seconds):
            with suppress(ConnectionError):  # it ended before it had read everything; its status tells why
                process.stdin.write(data)
                await process.stdin.drain()
                process.stdin.close()
            streams = (process.stdout, process.stderr)
            out, error_output = await asyncio.gather(*(_read_bounded(stream, process) for stream in streams))
            status = await process.wait()
    except TimeoutError as error:
        raise _too_slow(name) from error
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        process.stdin.close()
    if max(len(out), len(error_output)) > PROGRAM.max_output:
        log.warning("%s wrote more than %d bytes", model.label, PROGRAM.max_output)
        raise _worker_failed(name)
    if status == 0:
        return out.decode(errors="replace")
    log.warning("%s ended with %s: %s", model.label, status, error_output[-500:].decode(errors="replace"))
    if status == -getattr(signal, "SIGXCPU", 24):
        raise _too_slow(name)
    is_memory_error = status in (-signal.SIGABRT, -9) or b"MemoryError" in error_output or b"bad_alloc" in error_output
    if is_memory_error:
        raise InputError(_("The text of {name} could not be extracted: there was not enough memory.", name=name))
    raise _worker_failed(name)


async def _read_bounded(stream: asyncio.StreamReader, process: asyncio.subprocess.Process) -> bytes:
    """Return what the process writes to `stream`. Kill the process when this exceeds the program's `max_output`."""
    out = bytearray()
    while piece := await stream.read(1 << 16):
        if len(out) > PROGRAM.max_output:
            continue  # asyncio ends the process only once its pipes are empty
        out += piece
        if len(out) > PROGRAM.max_output:
            with suppress(ProcessLookupError):
                process.kill()
    return bytes(out)


def _activity(text: str, done: float | None = None) -> Status:
    return Status("loading" if done is None else "fetching", text, done)


def _not_installed(model: TranscriptionModel) -> LocalizedText:
    command = f'pip install ".[{model.extra}]"' if IS_INSTALLED else "make extras"
    return _(
        "{reader} is not installed. Run `{command}` in the folder of Switchboard.", reader=model.label, command=command
    )


def _not_on_disk(model: TranscriptionModel) -> LocalizedText:
    return _("{reader} is not on this disk, and downloads are off.", reader=model.label)


def _unreachable(model: TranscriptionModel) -> LocalizedText:
    return _("{reader} is not on this disk, and the model hub cannot be reached.", reader=model.label)


def _too_slow(name: str) -> InputError:
    return InputError(_("Extracting the text of {name} took too long.", name=name))


def _worker_failed(name: str) -> InputError:
    text = N_("The text of {name} could not be extracted: the program failed, its log has the details.")
    return InputError(LocalizedText(text, {"name": name}))
