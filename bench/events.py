"""What a torch profiler saw, as plain events: one list for host and device, from a run or from a file."""

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torch.profiler import profile

Kind = Literal["kernel", "copy", "call", "op", "mark"]
Shape = tuple[int, ...]

# Chrome trace categories. Others (annotations mirrored on the device, flow arrows, overhead) are no work of its own.
_KINDS: dict[str, Kind] = {
    "kernel": "kernel",
    "gpu_memcpy": "copy",
    "gpu_memset": "copy",
    "cuda_runtime": "call",
    "cuda_driver": "call",
    "cpu_op": "op",
    "user_annotation": "mark",
}


@dataclass(frozen=True, slots=True)
class Event:
    """One interval of a trace.

    Attributes:
        kind: "kernel" and "copy" on the device; "call" (CUDA API), "op" (aten) and "mark" (a named range) on the host.
        start_us, end_us: on one clock for host and device.
        shapes: of an op's inputs.
    """

    kind: Kind
    name: str
    start_us: float
    end_us: float
    shapes: tuple[Shape, ...] = ()


def from_profiler(prof: profile) -> list[Event]:
    """The events of a profiler run that has ended."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        prof.export_chrome_trace(str(path))
        return from_file(path)


def from_file(path: Path) -> list[Event]:
    """The events of a trace that `export_chrome_trace` wrote.

    Raises:
        ValueError: the file is no such trace.
    """
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
        return [_event(row) for row in rows if row.get("ph") == "X" and row.get("cat") in _KINDS]
    except (KeyError, TypeError, AttributeError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} is not a trace written by torch.profiler's export_chrome_trace ({error!r})") from None


def _event(row: dict[str, Any]) -> Event:
    shapes = tuple(tuple(shape) for shape in row.get("args", {}).get("Input Dims", ()) if _is_shape(shape))
    return Event(_KINDS[row["cat"]], row["name"], row["ts"], row["ts"] + row.get("dur", 0.0), shapes)


def _is_shape(dims: object) -> bool:
    return isinstance(dims, list) and all(isinstance(size, int) for size in dims)
