"""What a torch profiler saw, as plain events: one list for host and device, from a run or from a file."""

import gzip
import json
import tempfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torch.profiler import profile

Kind = Literal["kernel", "copy", "call", "op", "mark"]
Shape = tuple[int, ...]
Chrome = dict[str, Any]

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
_GZIP = b"\x1f\x8b"


@dataclass(frozen=True, slots=True)
class Event:
    """One interval of a trace.

    Attributes:
        kind: "kernel" and "copy" on the device; "call" (CUDA API), "op" (aten) and "mark" (a named range) on the host.
        start_us, end_us: on one clock for host and device.
        shapes: of an op's inputs.
        thread: of the host that it ran on, as the system counts; on the device, the stream.
    """

    kind: Kind
    name: str
    start_us: float
    end_us: float
    shapes: tuple[Shape, ...] = ()
    thread: int | str = 0


def from_profiler(prof: profile) -> list[Event]:
    """The events of a profiler run that has ended."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        prof.export_chrome_trace(str(path))
        return from_file(path)


def from_file(path: Path) -> list[Event]:
    """The events of a trace that `export_chrome_trace` wrote, gzip'd or not.

    Raises:
        ValueError: the file is no such trace.
    """
    return from_json(path.read_bytes(), str(path))


def from_json(trace: bytes, name: str = "what was received") -> list[Event]:
    """The events of a Chrome trace, gzip'd or not; `name` is for the error.

    Raises:
        ValueError: the bytes are no such trace.
    """
    return events_of(parse(trace, name))


def parse(trace: bytes, name: str = "what was received") -> Chrome:
    """A Chrome trace, gzip'd or not, as the object that it is; see `from_json`."""
    try:
        content: Chrome = json.loads(gzip.decompress(trace) if trace.startswith(_GZIP) else trace)
        if not all(isinstance(row, dict) for row in content["traceEvents"]):
            raise TypeError("an event is no object")
    except (KeyError, TypeError, AttributeError, ValueError, OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{name} is not a trace written by torch.profiler's export_chrome_trace ({error!r})") from None
    return content


def events_of(trace: Chrome) -> list[Event]:
    """The intervals in it that are work."""
    return [_event(row) for row in trace["traceEvents"] if row.get("ph") == "X" and row.get("cat") in _KINDS]


def _event(row: dict[str, Any]) -> Event:
    shapes = tuple(tuple(shape) for shape in row.get("args", {}).get("Input Dims", ()) if _is_shape(shape))
    return Event(_KINDS[row["cat"]], row["name"], row["ts"], row["ts"] + row.get("dur", 0.0), shapes, row.get("tid", 0))


def _is_shape(dims: object) -> bool:
    return isinstance(dims, list) and all(isinstance(size, int) for size in dims)
