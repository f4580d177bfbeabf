"""The Hugging Face Space that this program runs in, read from the hub's environment variables without calling it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

MOUNT = Path("/data")
"""The folder where the hub mounts storage that survives a restart."""
MOUNTS = Path("/proc/self/mountinfo")
FLEETING = "Chats here are deleted when the Space restarts."
LOGIN = ("OAUTH_CLIENT_ID", "OAUTH_CLIENT_SECRET", "OAUTH_SCOPES", "OPENID_PROVIDER_URL")
"""The variables that `hf_oauth: true` sets. Logging in needs all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """A Space. `id` is owner/name, and `host` its host name, "" if unknown.

    `storage` is the folder that survives a restart, None if there is none. `login`: visitors can log in to the hub.
    `zero_gpu`: the hub lends it a GPU for each call of a function.
    """

    id: str
    host: str = ""
    storage: Path | None = None
    login: bool = False
    zero_gpu: bool = False


def find_space(env: Mapping[str, str], mounts: Path = MOUNTS) -> Space | None:
    """Return the Space that `env` describes, or None if this is not a Space."""
    if not env.get("SPACE_ID"):
        return None
    kept = env.get("PERSISTANT_STORAGE_ENABLED", "").lower() in ("1", "true") or _is_mounted(mounts)
    return Space(
        id=env["SPACE_ID"],
        host=env.get("SPACE_HOST", "").split(",")[0].strip(),  # with a custom domain there are two
        storage=MOUNT if kept else None,
        login=all(env.get(name) for name in LOGIN),
        zero_gpu=env.get("SPACES_ZERO_GPU", "").lower() in ("1", "t", "true"),
    )


def _is_mounted(mounts: Path) -> bool:
    """Return True if storage is mounted at `MOUNT`. The VOLUME of an image does not count: it is lost at a restart."""
    try:
        lines = [line.split(" ") for line in mounts.read_text(encoding="utf-8").splitlines()]
    except OSError:
        return False
    # The fourth field is the root within the mounted file system, the fifth the mount point (man 5 proc).
    return any(len(line) > 4 and line[4] == str(MOUNT) and "/volumes/" not in line[3] for line in lines)
