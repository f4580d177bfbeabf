"""Weights of a toy model on the hub."""

import hashlib

from agent.models.catalog import ModelSpec
from agent.models.weights import HubFile, Weights

SPEC = ModelSpec(id="local:toy", name="toy", label="Toy", provider="llama.cpp", tools="none", context_tokens=512)


def from_hub(data: bytes, *, sha256: str | None = None, spec: ModelSpec = SPEC, kv_bytes: int = 1000) -> Weights:
    """Return pinned weights with the content `data`, kept by the hub at /org/toy/resolve/rev/toy.gguf."""
    digest = sha256 or hashlib.sha256(data).hexdigest()
    hub = HubFile("org/toy", "rev", "toy.gguf")
    return Weights(spec=spec, file="toy.gguf", size=len(data), sha256=digest, kv_bytes=kv_bytes, hub=hub)
