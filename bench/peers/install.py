"""An environment for each peer: a folder of its own packages, put before those of the Python that runs it.

So torch, torchvision and what else this project needs come from one place for all, and two peers can need different
versions of the same library.
"""

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from bench.peers.catalog import Peer, key
from bench.service import ROOT, python_path

FOLDER = ROOT / ".peers"
_TIMEOUT_S = 1800.0
_SHOWN = 400


class PeerError(Exception):
    """A peer could not be installed, started, or called; the message says why."""


@dataclass(frozen=True, slots=True)
class Environment:
    """Where a peer's packages are.

    Attributes:
        python: the interpreter.
        site: the folder; None for this project, which has none.
        version: of the peer.
    """

    python: str
    site: Path | None
    version: str

    def variables(self) -> dict[str, str]:
        """For the processes that run in it."""
        before = [str(self.site)] if self.site else []
        return {"PYTHONPATH": os.pathsep.join([*before, python_path()])}


def install(peer: Peer, python: str, wheels: Path | None = None, folder: Path = FOLDER) -> Environment:
    """Install a peer, unless it is there already.

    Args:
        wheels: a folder of wheel files, or of a folder of them for each peer, to be installed as they are and without
            looking for anything else; None asks the package index.

    Raises:
        PeerError: it could not be installed.
    """
    if not peer.requirements:
        return Environment(python, None, "")
    site = folder / key(peer) / "site"
    if not site.exists():
        partial = site.with_name("partial")
        shutil.rmtree(partial, ignore_errors=True)
        _run([python, "-m", "pip", "install", "--quiet", "--target", str(partial), *_what(peer, wheels)])
        partial.rename(site)
    return Environment(python, site, _version(peer, site))


def _what(peer: Peer, wheels: Path | None) -> Sequence[str]:
    if wheels is None:
        return peer.requirements
    own = wheels / key(peer)
    files = sorted(str(path) for path in (own if own.is_dir() else wheels).glob("*.whl"))
    if not files:
        raise PeerError(f"no wheels in {own} or {wheels}")
    return ["--no-index", "--no-deps", *files]


def _run(command: Sequence[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PeerError(f"could not be installed: {error}") from None
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or [done.stderr.strip()]
        raise PeerError(f"could not be installed: {' '.join(lines)[-_SHOWN:]}")


def _version(peer: Peer, site: Path) -> str:
    """Raises: PeerError: what was installed is not the peer."""
    for found in metadata.distributions(name=peer.package, path=[str(site)]):
        return found.version
    raise PeerError(f"could not be installed: {site} has no {peer.package}")
