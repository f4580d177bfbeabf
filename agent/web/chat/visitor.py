"""Who asks for something, as far as conversations and limits need to know."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Visitor:
    """A visitor of the page or of `/chat`.

    `owner` is the id that conversations are stored under. A `guest` sent no cookie, so each of their pages has an owner
    of its own. `address` is the network address they come from, None where it is not known for certain. `login` is the
    hub's token of a visitor who has logged in there; it is never kept.
    """

    owner: str
    guest: bool = False
    address: str | None = None
    login: str | None = field(default=None, repr=False)

    @property
    def rate_limit_key(self) -> str:
        """The name that limits of one visitor go by. All guests are one: each of their sessions would be new else."""
        return "guests" if self.guest else f"visitor {self.owner}"
