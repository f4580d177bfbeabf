"""Models that several tests use, and fake local models."""

from dataclasses import dataclass, field

from agent.models.catalog import ModelSpec
from agent.models.weights import Status
from agent.providers.connection import Endpoint, ServedModel

QWEN3 = ModelSpec(id="vllm:Qwen/Qwen3-8B", name="Qwen/Qwen3-8B", label="Qwen3", provider="vllm", reasoning=True)
SMALL = ModelSpec(id="local:small", name="small", label="Small", provider="llama.cpp", tools="none")
LARGE = ModelSpec(id="local:large", name="large", label="Large", provider="llama.cpp", tools="emulated")


@dataclass
class FakeLocalModels:
    """A fake `LocalModels`: a test sets its status and what it serves."""

    status: Status = field(default_factory=lambda: Status("starting", "Looking.", None))
    served: tuple[ServedModel, ...] = ()

    async def ready(self) -> tuple[ServedModel, ...]:
        return self.served

    def serve(self, *specs: ModelSpec) -> None:
        self.served = tuple(ServedModel(spec, Endpoint("http://127.0.0.1:1/v1")) for spec in specs)


VISION_MODEL = "Qwen/Qwen3-VL-8B-Instruct"
