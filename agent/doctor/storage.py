"""Checks of the data that must survive a restart: history, disk space, and the storage of a Space."""

import asyncio
import errno
import shutil
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

from agent.doctor.check import Check, fault, ok, warning
from agent.errors import AgentError, ConfigError, HistoryError, OtherVersion, StoreUnavailable
from agent.files.places import LocalFolder, Place, open_place
from agent.history import Conversation, new_id
from agent.history.json_files import damaged_conversations
from agent.history.open_store import FILE, StoreOnServer, json_path, open_store, sqlite_path
from agent.models.catalog import load_catalog as catalog
from agent.settings import Settings

FAULT_BYTES, WARNING_BYTES = 50 * 10**6, 500 * 10**6
"""Free bytes. Below the first, conversations are soon refused; below the second, attachments soon fill the disk."""


async def store(settings: Settings) -> list[Check]:
    """Check that the history opens, is undamaged, and accepts a conversation (which is then deleted)."""
    if settings.is_in_memory:
        return [warning("store", "history is kept in memory: a restart loses it", "Set SWITCHBOARD_STORE=sqlite.")]
    if settings.store.startswith(("postgres", "redis", "unix")):
        return await _server(settings)
    if settings.store.startswith("json"):
        path, find_damage, kind = json_path(settings.store, settings.data_dir), _damaged_files, "json:"
    else:
        path, find_damage, kind = sqlite_path(settings.store, settings.data_dir), _damage, "sqlite:///"
    return await _local_store(settings, path, kind, find_damage)


async def _local_store(
    settings: Settings, path: Path, kind: str, find_damage: Callable[[Path], str | None]
) -> list[Check]:
    """Check a history on this machine's disk."""
    fix = f"Make {settings.data_dir} writable for this user, or set SWITCHBOARD_DATA to another folder."
    try:
        if (damage := find_damage(path)) is None:
            return [await _new(path.parent, kind)]
        if damage:
            fix = f"Move {path} away and start with an empty one, or restore a copy of it."
            return [fault("store", f"{path} {damage}", fix)]
        await _write(f"{kind}{path}")
    except AgentError as error:
        if _is_disk_full(error):
            fix = f"Make room in {settings.data_dir}, or set SWITCHBOARD_DATA to a folder with room."
        elif isinstance(error, OtherVersion):
            fix = "Use the version of this program that wrote it, or set SWITCHBOARD_DATA to another folder."
        return [fault("store", str(error), fix)]
    except OSError as error:
        return [fault("store", f"{settings.data_dir} cannot be written: {error.strerror or error}", fix)]
    return [ok("store", f"{path} opens and can be written")]


def _is_disk_full(error: BaseException | None) -> bool:
    """Return True if SQLite or the system says so, behind this error."""
    if error is None:
        return False
    code = getattr(error, "sqlite_errorcode", 0)
    if code == sqlite3.SQLITE_IOERR_SHMSIZE or code & 0xFF == sqlite3.SQLITE_FULL:  # the first one: beside its log
        return True
    return getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or _is_disk_full(error.__cause__)


async def _new(folder: Path, kind: str) -> Check:
    """Check with a temporary store that one can be made in this folder. The first start creates the folder itself."""
    place = _existing(folder)
    with TemporaryDirectory(dir=place, prefix=".doctor-") as trial:
        await _write(f"{kind}{Path(trial) / FILE}")
    return ok("store", f"{folder} has no history yet; it can be made there")


async def _server(settings: Settings) -> list[Check]:
    """Check that the server of the history answers, accepts a conversation, and is set to keep it."""
    try:
        weaknesses = await _write(settings.store)
    except ConfigError as error:
        return [fault("store", str(error), "Install the driver, or correct SWITCHBOARD_STORE.")]
    except StoreUnavailable as error:
        return [fault("store", str(error), "Start the database, or correct SWITCHBOARD_STORE.")]
    except HistoryError as error:
        fix = "Change the server's settings, or correct SWITCHBOARD_STORE."
        if settings.store.startswith("postgres"):
            fix = "Make a database of its own with ENCODING 'UTF8', whose owner is the user in SWITCHBOARD_STORE."
        return [fault("store", str(error), fix)]
    found = [warning("store", f"the history database can be written, but {what}", fix) for what, fix in weaknesses]
    return found or [ok("store", "the history database answers and can be written")]


async def _write(url: str) -> Sequence[tuple[str, str]]:
    """Store a conversation and delete it. Return what could lose conversations."""
    opened = await open_store(url, folder=Path())
    try:
        conversation = await opened.save(Conversation(owner="doctor"))
        await opened.delete(conversation.id, owner=conversation.owner)
        return await opened.find_weaknesses() if isinstance(opened, StoreOnServer) else ()
    finally:
        await opened.aclose()


def _damage(path: Path) -> str | None:
    """Return SQLite's complaint about a file, "" if the file is undamaged, and None if there is none."""
    if not path.exists():
        return None
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=5)) as base:
            ((result, *_), *_) = base.execute("PRAGMA quick_check(1)").fetchall()
    except sqlite3.DatabaseError as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code == sqlite3.SQLITE_NOTADB:
            return "is not a SQLite database"
        return "is damaged" if code == sqlite3.SQLITE_CORRUPT else ""  # opening the store reports other errors
    return "" if result == "ok" else "is damaged"


def _damaged_files(folder: Path) -> str | None:
    """Return what is wrong in the folder of a JSON history, "" if nothing is, and None if there is none."""
    if not folder.exists():
        return None
    damaged = [*damaged_conversations(folder)]
    return f"has {len(damaged)} damaged conversations, the first in {damaged[0].parent}" if damaged else ""


async def attachments(settings: Settings) -> list[Check]:
    """Check that the place of attached files can be written, with a file that is then removed."""
    place, fix = open_place(settings.media_url), "Make it writable, or set SWITCHBOARD_MEDIA to another place."
    folder, label = place.path(""), place.label
    try:
        if folder is None or folder.is_dir():
            await asyncio.to_thread(_write_trial, place)
        else:  # the first start creates the folder itself
            existing = next(path for path in folder.parents if path.exists())
            with TemporaryDirectory(dir=existing, prefix=".doctor-") as trial:
                await asyncio.to_thread(_write_trial, LocalFolder(Path(trial)))
    except OSError as error:
        return [fault("attachments", f"{label} cannot be written: {error.strerror or error}", fix)]
    if settings.media_url.startswith("memory:"):
        message = "attached files are kept in memory: a restart loses them"
        return [warning("attachments", message, "Set SWITCHBOARD_MEDIA to a folder, such as file:data/media.")]
    return [ok("attachments", f"{label} can be written")]


def _write_trial(place: Place) -> None:
    name = f".doctor/{new_id()}"
    place.write(name, b"trial")
    try:
        if place.read(name) != b"trial":
            raise OSError("a file that was written there has other bytes")
    finally:
        place.remove(name)


async def disk(settings: Settings) -> list[Check]:
    """Check the free space for conversations and attachments. `weights` checks the space for weights."""
    place = _existing(settings.data_dir)
    free = shutil.disk_usage(place).free
    message = f"{free / 10**9:.1f} GB are free in {place}"
    fix = "Make room there, or set SWITCHBOARD_DATA to a folder with room."
    if free < FAULT_BYTES:
        return [fault("disk", f"{free // 10**3} kB are free in {place}", fix)]
    return [warning("disk", message, fix) if free < WARNING_BYTES else ok("disk", message)]


def _existing(folder: Path) -> Path:
    """Return the folder, or its nearest existing parent."""
    return next(path for path in (folder, *folder.parents) if path.is_dir())


async def space(settings: Settings, env: Mapping[str, str]) -> list[Check]:
    """Check the configuration that a Space on the hub needs."""
    if settings.space is None:
        return [ok("space", "this is not a Space")]
    found = [ok("space", f"this is the Space {settings.space.id}")]
    if settings.host in ("127.0.0.1", "localhost", "::1"):
        message = f"the page listens on {settings.host}, where the hub's proxy cannot reach it"
        found.append(fault("space", message, "Remove the variable GRADIO_SERVER_NAME, or set it to 0.0.0.0."))
    if settings.loses_history_on_restart:
        message = "nothing outlives a restart: its disk is wiped, conversations are lost"
        found.append(
            warning("storage", message, "Name a `storage` in the Spacefile, or attach one in the Space's settings.")
        )
        if not env.get("SWITCHBOARD_SECRET"):
            message = "cookies are signed with a key of this start's: after a restart nobody is known any more"
            found.append(warning("secrets", message, "Add the secret SWITCHBOARD_SECRET, a long random word."))
    keys = [name for provider in catalog().providers.values() for name in provider.key_names]
    if settings.local.vllm_base_url is None and not any(env.get(name, "").strip() for name in keys):
        message = "no secret holds a provider's key: only the small model on this CPU answers"
        found.append(warning("secrets", message, f"Add one of {', '.join(keys)} as a secret, or VLLM_BASE_URL."))
    return found
