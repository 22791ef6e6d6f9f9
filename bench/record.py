"""The record of a benchmark run: one JSON file with what was measured, with what, on what."""

import json
import math
import platform
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from pipeline.cpus import available_cpus

RESULTS = Path(__file__).parent / "results"
_PACKAGES = ("torch", "torchvision", "grpcio", "protobuf", "uvloop", "numpy", "pillow", "simplejpeg")
_DIGITS = 5
# A list of numbers, which indenting gives a line each.
_NUMBERS = re.compile(r"\[[\s\d.,eE+nul-]+\]")


@dataclass(frozen=True, slots=True)
class Record:
    """One run.

    Attributes:
        bench: which benchmark, for example "load".
        device: where the model ran, as a word for file names: "cpu2" is a CPU of two cores.
        date: of the run, UTC, YYYY-MM-DD.
        commit: short hash of the code, with "-dirty" where files differ from it; "none" outside a repository.
        versions: of Python and the libraries that matter.
        conditions: everything that was chosen, and the machine.
        results: numbers that were measured; a list where several services were.
    """

    bench: str
    device: str
    date: str
    commit: str
    versions: Mapping[str, str]
    conditions: Mapping[str, Any]
    results: Mapping[str, Any] | Sequence[Mapping[str, Any]]

    @property
    def stem(self) -> str:
        """What its files are called: a second run of the same benchmark, commit and day replaces the first."""
        return f"{self.bench}_{self.device}_{self.date}_{self.commit}"

    def content(self) -> dict[str, Any]:
        """The record as JSON has it: rounded, and null for what could not be measured."""
        content: dict[str, Any] = _rounded(asdict(self))
        return content

    @property
    def figures(self) -> Mapping[str, Any]:
        """The results of one service."""
        assert isinstance(self.results, Mapping), "these are of several"
        return self.results

    def line(self) -> str:
        """The record as one line of JSON."""
        return json.dumps(self.content())

    def write(self, folder: Path = RESULTS) -> Path:
        """Write the record under its `stem`."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.stem}.json"
        path.write_text(_NUMBERS.sub(_in_a_line, json.dumps(self.content(), indent=1)) + "\n")
        return path


def new_record(
    bench: str,
    model_device: str,
    conditions: Mapping[str, Any],
    results: Mapping[str, Any] | Sequence[Mapping[str, Any]],
) -> Record:
    """A record of now. `model_device` is what the service says it runs on: "cpu", or a GPU's name."""
    return Record(
        bench=bench,
        device=device_word(model_device),
        date=datetime.now(UTC).strftime("%Y-%m-%d"),
        commit=_commit(),
        versions={"python": platform.python_version()} | _installed_versions(),
        conditions={"machine": machine()} | dict(conditions),
        results=dict(results) if isinstance(results, Mapping) else list(results),
    )


def device_word(model_device: str) -> str:
    """A device's name as a word for file names."""
    if model_device == "cpu":
        return f"cpu{available_cpus()}"
    return re.sub(r"[^a-z0-9]+", "-", model_device.lower()).strip("-")


def machine() -> str:
    """The CPU in words, for example "AMD EPYC, 2 cores"."""
    try:
        name = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        name = None
    return f"{name[1].strip() if name else platform.machine()}, {available_cpus()} cores"


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    try:
        found = subprocess.run(command, cwd=RESULTS.parent, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "none"
    return found.stdout.strip()


def _installed_versions() -> dict[str, str]:
    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _in_a_line(numbers: re.Match[str]) -> str:
    return re.sub(r"\s+", " ", numbers[0]).replace("[ ", "[").replace(" ]", "]")


def _rounded(value: Any) -> Any:
    """Digits beyond the fifth are noise; JSON has no NaN, so what was not measured is null."""
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _rounded(item) for key, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, (list, tuple)) else value
