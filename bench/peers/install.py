"""An environment for each peer: a venv with its own packages, and behind them those of the Python that runs the bench.

So torch, torchvision and what else this project needs come from one place for all, and two peers can need different
versions of the same library.
"""

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from bench.peers.catalog import Peer, key
from bench.service import ROOT

FOLDER = ROOT / ".peers"
_TIMEOUT_S = 1800.0
_SHOWN = 400
_PACKAGES = "import sys; print(*(path for path in sys.path if path.endswith('-packages')), sep='\\n')"


class PeerError(Exception):
    """A peer could not be installed, started, or called; the message says why."""


@dataclass(frozen=True, slots=True)
class Environment:
    """What runs a peer.

    Attributes:
        python: the interpreter.
        version: of the peer; empty for this project.
    """

    python: str
    version: str = ""


def install(peer: Peer, python: str, wheels: Path | None = None, folder: Path = FOLDER) -> Environment:
    """Install a peer, unless it is there already.

    Args:
        python: whose packages come after the peer's own.
        wheels: a folder of wheel files, or of a folder of them for each peer, to be installed as they are and without
            looking for anything else; None asks the package index.

    Raises:
        PeerError: it could not be installed.
    """
    if not peer.requirements:
        return Environment(python)
    environment = folder / key(peer)
    done = environment / "installed"
    if not done.exists():
        what = _what(peer, wheels)
        shutil.rmtree(environment, ignore_errors=True)
        _run([python, "-m", "venv", "--without-pip", str(environment)])
        _run([python, "-m", "pip", "--python", str(environment), "install", "--quiet", *what])
        # Only now, or pip would take what it finds there for installed.
        (_site(environment) / "behind.pth").write_text(_run([python, "-c", _PACKAGES]))
        done.touch()
    return Environment(str(environment / "bin" / "python"), _version(peer, environment))


def installed(peer: Peer, folder: Path = FOLDER) -> bool:
    """Whether `install` has nothing to do."""
    return not peer.requirements or (folder / key(peer) / "installed").exists()


def _what(peer: Peer, wheels: Path | None) -> Sequence[str]:
    if wheels is None:
        return peer.requirements
    own = wheels / key(peer)
    files = sorted(str(path) for path in (own if own.is_dir() else wheels).glob("*.whl"))
    if not files:
        raise PeerError(f"could not be installed: no wheels in {own} or {wheels}")
    return ["--no-index", "--no-deps", *files]


def _run(command: Sequence[str]) -> str:
    """What it printed."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PeerError(f"could not be installed: {error}") from None
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or [done.stderr.strip()]
        raise PeerError(f"could not be installed: {' '.join(lines)[-_SHOWN:]}")
    return done.stdout


def _site(environment: Path) -> Path:
    return next(environment.glob("lib/python*/site-packages"))


def _version(peer: Peer, environment: Path) -> str:
    for found in metadata.distributions(name=peer.package, path=[str(_site(environment))]):
        return found.version
    raise PeerError(f"could not be installed: {environment} has no {peer.package}")
