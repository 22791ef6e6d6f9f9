"""The words in which the doctor answers."""

from dataclasses import dataclass
from enum import StrEnum


class Disease(StrEnum):
    """Why the GPU idles, or that it need not worry."""

    FED_SLOWLY = "fed too slowly by the CPU"
    LAUNCH = "launch-bound"
    SYNC = "sync-bound"
    CHURN = "shape churn"
    MEMORY = "memory-bound"
    COMPUTE = "compute-bound (healthy)"
    LITTLE_ASKED = "idle because little is asked of it"
    LATENCY = "healthy for a latency goal"
    UNKNOWN = "cannot be told from what could be seen"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is said at the end.

    Attributes:
        evidence: sentences with the numbers behind the disease.
        setting: the one most worth changing.
        gain: times faster that it was measured to make a batch; None where nothing measured it.
        measured: how the gain was measured, or why it was not.
        secondary: what else was seen, most telling first.
    """

    disease: Disease
    evidence: tuple[str, ...]
    setting: str
    gain: float | None
    measured: str
    secondary: tuple[str, ...] = ()
