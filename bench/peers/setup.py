"""What a peer's server is told: one environment variable, so that it reaches whatever processes the peer starts."""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Self

VARIABLE = "WARMLANE_PEER"


@dataclass(frozen=True, slots=True)
class Setup:
    """The same for every peer but for its port and layout.

    Attributes:
        weights: "default", or the path of a state dict.
        device: "cpu" or "cuda".
        batch_size: most images in a forward; on a GPU every forward has so many rows.
        batch_wait_ms: how long an incomplete batch waits, for peers that have such a setting.
        port: to listen on, on the loopback address.
        layout: processes and threads, by the names that the peer's module uses.
    """

    model: str
    weights: str
    device: str
    batch_size: int
    batch_wait_ms: int
    port: int
    layout: Mapping[str, int] = field(default_factory=dict)

    @property
    def own_ports(self) -> int:
        """Of processes that listen on a port each, from `port` + 1 up; 0 if all listen on one."""
        frontends = self.layout.get("frontends", 1)
        return frontends if frontends > 1 else 0

    @property
    def on_gpu(self) -> bool:
        """Whether the model runs there."""
        return self.device == "cuda"

    @property
    def resizes_on_gpu(self) -> bool:
        """Whether whole images go to the GPU; a stage of processes that decode also resizes, and sends what is left."""
        return self.on_gpu and not self.layout.get("decode_processes")

    @classmethod
    def from_environment(cls) -> Self:
        """As the harness, or the process above, has set it."""
        return cls(**json.loads(os.environ[VARIABLE]))

    def environment(self) -> dict[str, str]:
        """The variable, for a process's environment."""
        return {VARIABLE: json.dumps(asdict(self))}
