"""The visitor of a request, with what conversations and limits need to know."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Visitor:
    """A visitor of the page or of `/chat`.

    `owner` is the id that conversations are stored under. A `guest` sent no cookie, so each guest page has its own
    owner. `address` is the visitor's network address, or None if it is not certain. `login` is the Hugging Face token
    of a visitor who has logged in, and `gpu_token` names the visitor to a ZeroGPU Space; they are never stored.
    """

    owner: str
    guest: bool = False
    address: str | None = None
    login: str | None = field(default=None, repr=False)
    gpu_token: str | None = field(default=None, repr=False)

    @property
    def rate_limit_key(self) -> str:
        """The key of limits per visitor. All guests share one, because each of their sessions would be new."""
        return "guests" if self.guest else f"visitor {self.owner}"
