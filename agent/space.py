"""What the environment says of the Space that this program runs as. It knows the variables of the hub, not the hub."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

MOUNT = Path("/data")
"""Where the hub puts storage that outlives a restart."""
MOUNTS = Path("/proc/self/mountinfo")
FLEETING = "This Space keeps nothing for long: conversations are lost when it restarts."
LOGIN = ("OAUTH_CLIENT_ID", "OAUTH_CLIENT_SECRET", "OAUTH_SCOPES", "OPENID_PROVIDER_URL")
"""What `hf_oauth: true` sets; without one of them nobody can log in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """A Space: `id` is owner/name, `host` its name on the web, "" where the hub does not say it.

    `storage` is the folder that outlives a restart, None where nothing does; `login`: visitors may log in to the hub.
    """

    id: str
    host: str = ""
    storage: Path | None = None
    login: bool = False


def find_space(env: Mapping[str, str], mounts: Path = MOUNTS) -> Space | None:
    """The Space that `env` tells of, None where this is none."""
    if not env.get("SPACE_ID"):
        return None
    kept = env.get("PERSISTANT_STORAGE_ENABLED", "").lower() in ("1", "true") or _mounted(mounts)
    return Space(
        id=env["SPACE_ID"],
        host=env.get("SPACE_HOST", "").split(",")[0].strip(),  # with a domain of its own there are two
        storage=MOUNT if kept else None,
        login=all(env.get(name) for name in LOGIN),
    )


def _mounted(mounts: Path) -> bool:
    """Whether storage is mounted there. The folder that an image's VOLUME gets is a mount, too, and is thrown away."""
    try:
        lines = [line.split(" ") for line in mounts.read_text(encoding="utf-8").splitlines()]
    except OSError:
        return False
    # The fourth field is the place within the mounted file system, the fifth where it shows (man 5 proc).
    return any(len(line) > 4 and line[4] == str(MOUNT) and "/volumes/" not in line[3] for line in lines)
