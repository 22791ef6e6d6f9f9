"""The real peers with a tiny model, where they are installed; and this server, called as they are."""

import sys
from pathlib import Path

import pytest

from bench.peers.callers import Callers, Order
from bench.peers.catalog import ALL, Peer, key
from bench.peers.install import FOLDER, install, installed
from bench.peers.reference import Reference, make_reference
from bench.peers.server import Server
from bench.peers.setup import Setup
from bench.ports import free_port

MODEL = "tests.tiny_model:layers"
MIX = "small"
ALL_CPUS = 2


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    return make_reference(MODEL, "default", MIX, tmp_path_factory.mktemp("weights"))


@pytest.mark.parametrize("peer", ALL, ids=key)
def test_a_peer_gives_the_references_answers(
    peer: Peer, reference: Reference, tmp_path: Path, inductor_cache: Path
) -> None:
    if not installed(peer):
        pytest.skip(f"{peer.name} is not in {FOLDER}: python -m bench.peers --install-only --peers {key(peer)}")
    layout = peer.layouts(ALL_CPUS, False)[0]
    (tmp_path / "inductor").symlink_to(inductor_cache)
    setup = Setup(MODEL, "default", "cpu", 4, 5, free_port(), layout)
    photographs = list(reference.photographs.values())
    environment = install(peer, sys.executable)
    with Server(peer, environment, setup, tmp_path, photographs[0], 200) as server, Callers(MIX) as callers:
        assert tuple(server.ask(photographs)) == reference.photograph_top1
        heard = callers.run(
            Order(server.wire, MIX, reference.mix_top1, 4, warmup_s=1.0, seconds=1.0), server.cpu_seconds
        )
        assert server.rss_bytes() > 100e6
    assert not heard.errors
    assert heard.agreement >= 0.95
    assert heard.server_cpu_s > 0
