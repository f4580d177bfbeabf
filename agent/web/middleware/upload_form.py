"""Writes the files of a multipart form while its bytes arrive. Knows neither HTTP nor the sender."""

from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import BinaryIO

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from agent.errors import InputError, Limited
from agent.history import new_id
from agent.i18n import _
from agent.web.file_names import given_name, stored_name

FIELD = "files"
"""The form field that holds files. Other fields are read and dropped."""
MAX_OTHER_PARTS = 16
"""The most parts of a form besides its files."""
MAX_HEADER = 16 * 1024
"""The most bytes of the headers of one part."""
NOT_UNDERSTOOD = _("The upload was not understood.")


class UploadForm:
    """The parser of one request. Owns the files that it writes until `finish`; `discard` removes them.

    Each file gets its own folder under `folder`, so its path cannot be guessed. `name` is the name of the newest file.
    Raises `Limited` for too many files or a file that is too large, and `InputError` for an invalid form. `write` and
    `discard` can be called from different threads.
    """

    def __init__(self, boundary: bytes, folder: Path, *, most_files: int, most_bytes: int) -> None:
        self.sizes: dict[Path, int] = {}
        self.name = ""
        self._folder, self._most_files, self._most_bytes = folder, most_files, most_bytes
        self._lock, self._discarded = Lock(), False
        self._file: BinaryIO | None = None
        self._path = folder
        self._header, self._value, self._disposition = bytearray(), bytearray(), b""
        self._ended, self._parts, self._header_bytes = False, 0, 0
        try:
            self._parser = MultipartParser(
                boundary,
                {
                    "on_part_begin": self._begin_part,
                    "on_header_field": lambda data, start, end: self._extend(self._header, data[start:end]),
                    "on_header_value": lambda data, start, end: self._extend(self._value, data[start:end]),
                    "on_header_end": self._end_header,
                    "on_headers_finished": self._open_file,
                    "on_part_data": self._write_piece,
                    "on_part_end": self._close_file,
                    "on_end": self._end,
                },
            )
        except FormParserError as error:
            raise InputError(NOT_UNDERSTOOD) from error

    def write(self, data: bytes) -> None:
        """Parse the next bytes of the form. Blocks while the disk works."""
        with self._lock:
            if self._discarded:
                return
            try:
                self._parser.write(data)
            except FormParserError as error:
                raise InputError(NOT_UNDERSTOOD) from error

    def finish(self) -> dict[Path, int]:
        """Return the size of each file by path. Raises `InputError` if the form is cut off or has no file."""
        if not self._ended or not self.sizes:
            raise InputError(NOT_UNDERSTOOD)
        return self.sizes

    def discard(self) -> None:
        """Remove what was written, and write nothing more."""
        with self._lock:
            self._discarded = True
            with suppress(OSError):  # closing writes what a full disk has refused
                self._close_file()
            for path in self.sizes:
                path.unlink(missing_ok=True)
                path.parent.rmdir()
            self.sizes.clear()

    def _begin_part(self) -> None:
        self._parts, self._header_bytes = self._parts + 1, 0
        if self._parts > len(self.sizes) + MAX_OTHER_PARTS:
            raise InputError(NOT_UNDERSTOOD)
        self._disposition = b""
        self._header.clear()
        self._value.clear()

    def _extend(self, text: bytearray, piece: bytes) -> None:
        self._header_bytes += len(piece)
        if self._header_bytes > MAX_HEADER:
            raise InputError(NOT_UNDERSTOOD)
        text += piece

    def _end_header(self) -> None:
        if bytes(self._header).lower() == b"content-disposition":
            self._disposition = bytes(self._value)
        self._header.clear()
        self._value.clear()

    def _open_file(self) -> None:
        _type, options = parse_options_header(self._disposition)
        if options.get(b"name", b"").decode("latin-1") != FIELD or b"filename" not in options:
            return
        if len(self.sizes) >= self._most_files:
            raise Limited(_("At most {most} files can be attached at once.", most=self._most_files))
        folder = self._folder / new_id()
        folder.mkdir(parents=True, mode=0o700)
        self._path = folder / stored_name(options[b"filename"].decode(errors="replace"))
        self.name = given_name(self._path)
        self.sizes[self._path] = 0
        self._file = self._path.open("xb")

    def _write_piece(self, data: bytes, start: int, end: int) -> None:
        if self._file is None:
            return
        piece = data[start:end]
        self.sizes[self._path] += len(piece)
        if self.sizes[self._path] > self._most_bytes:
            most = self._most_bytes / 1e6
            raise Limited(_("{name} is larger than {most:.0f} MB, which is the most.", name=self.name, most=most))
        self._file.write(piece)

    def _close_file(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _end(self) -> None:
        self._ended = True
