"""What each model can take: `configs/models.toml` and what a server says of itself, as `ModelSpec`s."""

from dataclasses import dataclass
from typing import Literal

Dialect = Literal["chat"]
ToolSupport = Literal["native", "router", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """One model that can be chosen.

    `id` is unique in the menu (`vllm:Qwen/Qwen3-8B`); `name` is what its server calls it. `context_tokens` is for
    prompt and answer together. `tools` is "router" where only the JSON-schema router works (see providers/router.py).
    `source` and `licence` are shown to people. `defaults` are sampling settings that the model needs to do its best.
    """

    id: str
    name: str
    label: str
    provider: str
    dialect: Dialect = "chat"
    image: bool = False
    audio: bool = False
    reasoning: bool = False
    tools: ToolSupport = "native"
    context_tokens: int = 32_768
    max_output_tokens: int = 4_096
    source: str = ""
    licence: str = ""
    defaults: tuple[tuple[str, float], ...] = ()
