"""Files of owners in a place, with their references and a running total of their sizes. Every call blocks.

A file is `<owner>/<id>`. For each stored message that names it there is an empty file, its reference, in
`<owner>/.references/<id>/`. A reference is written before its message is stored, and removed after the message is
deleted. So a message never lacks the references that keep its files, whenever a process ends.

Threads can share an object. The total is exact after each change through this object. `recount` also finds the changes
of other processes.
"""

from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from contextlib import contextmanager
from hashlib import sha256
from threading import Lock

from agent.files.places import Place

FILE_BYTES = 4096
"""The fewest bytes that a file counts for, because it takes at least one block of the disk."""
REFERENCES = ".references"
LOCKS = 64


class OwnerFiles:
    """Owns the files of all owners in a place."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._sizes = Counter[str]()
        self._is_counted = False
        self._recount_lock, self._sizes_lock = Lock(), Lock()
        self._owner_locks = [Lock() for _ in range(LOCKS)]

    def add(self, owner: str, id_: str, data: bytes, reference: str) -> None:
        """Add a reference to a file, and write the file unless it is there."""
        with self._changing(owner):
            self.place.write(_reference_name(owner, id_, reference), b"")
            size = self.place.size(f"{owner}/{id_}")
            if size != len(data):  # another size: a process was killed while it wrote the file
                self.place.write(f"{owner}/{id_}", data)
                self._add(owner, _counted(len(data)) - _counted(size))

    def add_references(self, owner: str, references: Mapping[str, Iterable[str]]) -> None:
        """Add references to files that are there."""
        with self._changing(owner):
            for id_, names in references.items():
                for name in names:
                    self.place.write(_reference_name(owner, id_, name), b"")

    def remove_references(self, owner: str, references: Mapping[str, Iterable[str]], *, always: Collection[str]) -> int:
        """Remove these references to each file, and the files that lose their last one. Return the number of files.

        A file without any of these references stays, unless it is in `always`. All are tried before the first
        `OSError` is raised.
        """

        def remove(id_: str) -> bool:
            return self._remove_references(owner, id_, {_digest(name) for name in references[id_]}, id_ in always)

        return self._try_all(owner, references, remove)

    def forget(self, owner: str, references: Iterable[str]) -> int:
        """Remove these references to any file of an owner, and the files that lose their last one. Return their number.

        All are tried before the first `OSError` is raised.
        """
        mine = {_digest(name) for name in references}
        ids = [file.name for file in self.place.files(owner)]
        return self._try_all(owner, ids, lambda id_: self._remove_references(owner, id_, mine, always=False))

    def remove_unused(self, owner: str, ids: Iterable[str], before: float) -> int:
        """Remove these files with their references, and return their number.

        Files with a reference that was written since the Unix time `before` stay: its message may not be stored yet.
        All are tried before the first `OSError` is raised.
        """

        def remove(id_: str) -> bool:
            folder = _references_folder(owner, id_)
            references = self.place.files(folder)
            if any(reference.written_at >= before for reference in references):
                return False
            for reference in references:
                self.place.remove(f"{folder}/{reference.name}")
            return self._remove_file(owner, id_)

        return self._try_all(owner, ids, remove)

    def sizes(self) -> Mapping[str, int]:
        """Return the size in bytes of each owner's files. Only the first call reads the folders."""
        with self._recount_lock:
            if not self._is_counted:
                self._recount()
        with self._sizes_lock:
            return dict(self._sizes)

    def recount(self) -> None:
        """Read the sizes of all files again, and remove drafts that nobody will finish."""
        with self._recount_lock:
            self._recount()

    def written_before(self, owner: str, time: float) -> list[str]:
        """Return the ids of an owner's files that were written before this Unix time."""
        return [file.name for file in self.place.files(owner) if file.written_at < time]

    def _try_all(self, owner: str, ids: Iterable[str], remove: Callable[[str], bool]) -> int:
        """Return how many of these files were removed. All are tried before the first `OSError` is raised."""
        removed, failure = 0, None
        for id_ in ids:
            try:
                with self._changing(owner):
                    removed += remove(id_)
            except OSError as error:
                failure = failure or error
        if failure is not None:
            raise failure
        return removed

    def _remove_references(self, owner: str, id_: str, mine: Collection[str], always: bool) -> bool:
        folder = _references_folder(owner, id_)
        found = {reference.name for reference in self.place.files(folder)}
        for name in found.intersection(mine):
            self.place.remove(f"{folder}/{name}")
        if found.difference(mine) or not (found or always):
            return False
        return self._remove_file(owner, id_)

    def _remove_file(self, owner: str, id_: str) -> bool:
        size = self.place.size(f"{owner}/{id_}")
        self.place.remove(f"{owner}/{id_}")
        self._add(owner, -_counted(size))
        return size is not None

    def _recount(self) -> None:
        # Files can be written and removed meanwhile, but not in the folder that is being read.
        with self._sizes_lock:
            counted = list(self._sizes)
        for owner in {*self.place.folders(), *counted}:
            with self._changing(owner):
                self._recount_owner(owner)
        self._is_counted = True

    def _recount_owner(self, owner: str) -> None:
        self.place.remove_drafts(owner)
        size = sum(_counted(file.size) for file in self.place.files(owner))
        with self._sizes_lock:
            self._sizes[owner] = 0
        self._add(owner, size)

    def _add(self, owner: str, size: int) -> None:
        with self._sizes_lock:
            self._sizes[owner] += size
            if self._sizes[owner] <= 0:
                del self._sizes[owner]

    @contextmanager
    def _changing(self, owner: str) -> Generator[None]:
        """Let one thread at a time change the files of an owner. Some owners share a lock."""
        with self._owner_locks[hash(owner) % LOCKS]:
            yield


def _references_folder(owner: str, id_: str) -> str:
    return f"{owner}/{REFERENCES}/{id_}"


def _reference_name(owner: str, id_: str, reference: str) -> str:
    return f"{_references_folder(owner, id_)}/{_digest(reference)}"


def _digest(reference: str) -> str:
    """Return a reference as a file name. It can be any text."""
    return sha256(reference.encode(errors="surrogatepass")).hexdigest()[:32]


def _counted(size: int | None) -> int:
    """Return the bytes that a file of this size counts for, 0 if there is none."""
    return 0 if size is None else max(FILE_BYTES, size)
