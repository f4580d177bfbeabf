"""The address of a PostgreSQL history: reads its URL, and names the database in sentences without the password."""

from dataclasses import dataclass, field

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from agent.errors import ConfigError, HistoryError, StoreUnavailable, without_paths
from agent.i18n import _

CONTACT_SECONDS = 4
"""Seconds until a server counts as unreachable if it does not even refuse a connection."""
# A connection to a machine that has vanished ends by itself.
_KEEPALIVE = {"keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3, "tcp_user_timeout": 20_000}


@dataclass(frozen=True, slots=True)
class PostgresAddress:
    """A database on a server. `conninfo` is what the driver takes; it can hold a password."""

    name: str
    conninfo: str = field(repr=False)

    @classmethod
    def of(cls, url: str) -> "PostgresAddress":
        """Read the URL. Raises `ConfigError`, whose sentence does not quote it."""
        try:
            given = conninfo_to_dict(url)
        except psycopg.ProgrammingError:
            given = {"host": "@"}
        host, port = str(given.get("host") or given.get("hostaddr") or "localhost"), str(given.get("port") or 5432)
        database = str(given.get("dbname") or given.get("user") or "")
        if "@" in host + port + database or not port.replace(",", "").isdigit():  # a part of a password is in them
            raise ConfigError(
                "The URL of the history database cannot be read. It is postgresql://user:password@host:port/database; "
                "in a password, write @ as %40, / as %2F, : as %3A, ? as %3F, # as %23 and % as %25."
            ) from None
        defaults = {"connect_timeout": CONTACT_SECONDS, "application_name": "switchboard", **_KEEPALIVE}
        shown = "localhost" if host.startswith("/") else host  # the folder of a socket is for nobody to see
        return cls(f"{database} at {shown}:{port}", make_conninfo(url, **{**defaults, **given}))

    def unreachable(self, error: Exception) -> StoreUnavailable:
        """Return the error that no connection can be made."""
        sentence = _(
            "Nothing can be kept at the moment: the history database {name} cannot be reached ({error}). "
            "Start it, or correct SWITCHBOARD_STORE.",
            name=self.name,
            error=_reason(error),
        )
        return StoreUnavailable(sentence)

    def unusable(self, error: Exception) -> HistoryError:
        """Return the error that the server refused an operation."""
        reason = error.text if isinstance(error, HistoryError) else _reason(error)
        return HistoryError(_("The history database {name} cannot be used: {error}.", name=self.name, error=reason))


def _reason(error: Exception) -> str:
    """Return what the server or the driver says, without values of the statement."""
    if isinstance(error, TimeoutError):
        return _("it does not answer")
    said = error.diag.message_primary if isinstance(error, psycopg.Error) else None
    first = (said or str(error) or type(error).__name__).splitlines()[0]
    return without_paths(" ".join(first.rpartition(" failed: ")[2].split()).removesuffix("."))
