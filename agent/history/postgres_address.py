"""The address of a PostgreSQL history: reads its URL, and names the database in sentences without the password."""

from dataclasses import dataclass, field

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from agent.errors import ConfigError, HistoryError, StoreUnavailable
from agent.history.server_errors import connection_reason, refusal_reason, unreachable, unusable
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
    is_secret: bool = field(default=False, repr=False)

    @classmethod
    def of(cls, url: str, *, is_secret: bool = False) -> "PostgresAddress":
        """Read the URL. Errors don't name the server if it `is_secret`.

        Raises `ConfigError`, whose sentence does not quote the URL.
        """
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
        return cls(f"{database} at {shown}:{port}", make_conninfo(url, **{**defaults, **given}), is_secret)

    def unreachable(self, error: Exception) -> StoreUnavailable:
        """Return the error that no connection can be made."""
        reason = connection_reason(error, is_secret=self.is_secret)
        sentence = _(
            "Nothing can be kept at the moment: the history database {name} cannot be reached ({error}). "
            "Start it, or correct SWITCHBOARD_STORE.",
            name=self.name,
            error=reason,
        )
        return unreachable(sentence, reason, is_secret=self.is_secret)

    def unusable(self, error: Exception) -> HistoryError:
        """Return the error that the server refused an operation."""
        reason = refusal_reason(error, is_secret=self.is_secret)
        sentence = _("The history database {name} cannot be used: {error}.", name=self.name, error=reason)
        return unusable(sentence, reason, is_secret=self.is_secret)
