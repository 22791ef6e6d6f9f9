"""All services in one run: each started from nothing, checked, loaded; then started again, by turns, for one rate."""

import argparse
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.peers.callers import Callers, Heard, Order
from bench.peers.catalog import Layout, Peer, key
from bench.peers.install import Environment, PeerError, install
from bench.peers.reference import Reference
from bench.peers.rows import FAILED, MEASURED, WRONG, Point, Row, make_point
from bench.peers.server import Server, compile_beforehand
from bench.peers.setup import Setup
from bench.ports import free_ports
from pipeline.cpus import available_cpus

# Reduced precision and another decoder may flip a close call of a noisy image, but not many.
LEAST_AGREEMENT = 0.95


@dataclass(slots=True)
class Comparison:
    """The run as it grows.

    Attributes:
        args: of the command line; see `bench.peers.__main__`.
        rows: by the order of the peers.
        rate: the one that is the same for all, once it is known.
    """

    console: Console
    args: argparse.Namespace
    peers: Sequence[Peer]
    reference: Reference
    rows: list[Row] = field(default_factory=list)
    rate: float = 0.0
    environments: dict[str, Environment] = field(default_factory=dict)
    layouts: dict[str, Layout] = field(default_factory=dict)

    def run(self) -> list[Row]:
        """Everything, one service at a time."""
        with tempfile.TemporaryDirectory(prefix="warmlane-peers-") as folder, self._callers() as callers:
            if self.args.once:
                self._compile(Path(folder))
            for peer in self.peers:
                row = Row(peer.name)
                self.rows.append(row)
                with self._noting_failures(row):
                    self._first_visit(peer, row, callers, Path(folder))
            self._fix_the_rate()
            if self.args.once:
                return self.rows
            for _ in range(self.args.rounds):
                for peer, row in zip(self.peers, self.rows, strict=True):
                    if self.rate and row.status == MEASURED:
                        with self._noting_failures(row):
                            self._visit_again(peer, row, callers, Path(folder))
        return self.rows

    def _compile(self, folder: Path) -> None:
        """Fill the caches that are then everybody's."""
        self._say("compiling for all")
        if any(peer.requirements for peer in self.peers):
            compile_beforehand(Environment(self.args.python), self._setup({}), folder / _cache_name(True))
        for peer in [peer for peer in self.peers if not peer.requirements][:1]:
            self.environments[peer.name] = Environment(self.args.python)
            layout = peer.layouts(available_cpus(), self.args.device == "cuda")[0]
            with self._served(peer, folder / _cache_name(False), layout):
                pass

    def _callers(self) -> Callers:
        return Callers(self.args.mix, self.args.processes)

    def _first_visit(self, peer: Peer, row: Row, callers: Callers, folder: Path) -> None:
        """Install, try the layouts, keep the best."""
        self._say(f"{peer.name}: installing")
        environment = install(peer, self.args.python, self.args.wheels)
        row.version = environment.version
        self.environments[peer.name] = environment
        layouts = peer.layouts(available_cpus(), self.args.device == "cuda")
        for number, layout in enumerate(layouts if self.args.tune else layouts[:1]):
            name = _cache_name(bool(peer.requirements)) if self.args.once else f"{key(peer)}-{number}"
            self._try_layout(peer, row, callers, folder / name, layout)

    def _try_layout(self, peer: Peer, row: Row, callers: Callers, cache: Path, layout: Layout) -> None:
        before = row.best()
        with self._served(peer, cache, layout) as server:
            self._check(server)
            points = [self._closed(server, callers, count) for count in self.args.callers]
            rss_mib, processes = server.rss_bytes() / 2**20, server.process_count()
            paced = self._paced(peer, server, callers) if self.args.once else None
        peak = max((point.img_s for point in points if point.valid), default=0.0)
        row.tried.append({"layout": dict(layout), "img_s": peak})
        if before and before.img_s >= peak:
            return
        self.layouts[peer.name] = layout
        row.closed, row.rss_mib, row.processes = points, rss_mib, processes
        row.configuration = self._configuration(peer, layout)
        if paced:
            row.warm_starts_s, row.paced = [server.start_s], [paced]
        else:
            row.cold_start_s = server.start_s
        self._fill_in(row)
        row.sum_up()

    def _visit_again(self, peer: Peer, row: Row, callers: Callers, folder: Path) -> None:
        """Start with what is compiled already, measure at the rate, and the best closed loop once more."""
        number = [tried["layout"] for tried in row.tried].index(dict(self.layouts[peer.name]))
        with self._served(peer, folder / f"{key(peer)}-{number}", self.layouts[peer.name]) as server:
            row.warm_starts_s.append(server.start_s)
            row.paced.append(self._paced(peer, server, callers))
            if row.callers:
                row.img_s_of.append(self._closed(server, callers, row.callers).img_s)
        row.sum_up()

    def _served(self, peer: Peer, cache: Path, layout: Layout) -> Server:
        self._say(f"{peer.name}: starting with {_words(layout)}")
        probe = next(iter(self.reference.photographs.values()))
        return Server(peer, self.environments[peer.name], self._setup(layout), cache, probe, self.args.start_timeout)

    def _setup(self, layout: Layout) -> Setup:
        args = self.args
        setup = Setup(args.model, self.reference.weights, args.device, args.batch_size, args.batch_wait_ms, 0, layout)
        return replace(setup, port=free_ports(1 + setup.own_ports))

    def _check(self, server: Server) -> None:
        """Raises: WrongAnswers: a sample photograph's best class is not the reference's."""
        found = server.ask(list(self.reference.photographs.values()))
        pairs = zip(self.reference.photographs, found, self.reference.photograph_top1, strict=True)
        if differing := [f"{name}: class {one}, not {other}" for name, one, other in pairs if one != other]:
            raise WrongAnswers("; ".join(differing))

    def _closed(self, server: Server, callers: Callers, count: int) -> Point:
        order = self._order(server, count)
        point = self._point(f"  {count} callers", order, callers.run(order, server.cpu_seconds))
        if point.agreement < LEAST_AGREEMENT:
            raise WrongAnswers(f"{100 * point.agreement:.1f}% of the answers under load have the reference's class")
        return point

    def _paced(self, peer: Peer, server: Server, callers: Callers) -> Point:
        order = self._order(server, max(self.args.callers), rate=self.rate or self.args.rate)
        return self._point(peer.name, order, callers.run(order, server.cpu_seconds))

    def _order(self, server: Server, count: int, rate: float = 0.0) -> Order:
        args = self.args
        return Order(server.wire, args.mix, self.reference.mix_top1, count, rate, args.warmup_seconds, args.seconds)

    def _point(self, what: str, order: Order, heard: Heard) -> Point:
        point = make_point(order, heard, self.args.processes)
        self._say(
            f"{what}{f' at {order.rate:.1f} calls/s' if order.rate else ''}: {point.img_s:.1f} img/s, "
            f"p50 {point.p50_ms:.0f} ms, p99 {point.p99_ms:.0f} ms, {point.cpu:.2f} cores"
            + ("" if point.valid else f"; not valid, errors: {point.errors}")
        )
        return point

    def _fill_in(self, row: Row) -> None:
        within = [point for point in row.closed if point.valid and point.p99_ms <= self.args.slo_ms]
        if within:
            best = max(within, key=lambda point: point.img_s)
            row.img_s_of, row.callers = [best.img_s], best.callers

    def _fix_the_rate(self) -> None:
        """As asked for, or a share of what the slowest can do, so that all can keep up."""
        bests = [best.img_s for row in self.rows if row.status == MEASURED and (best := row.best())]
        self.rate = self.args.rate or (self.args.rate_share * min(bests) if bests else 0.0)
        self._say(f"the same rate for all: {self.rate:.1f} calls/s; load average {os.getloadavg()[0]:.1f}")

    @contextmanager
    def _noting_failures(self, row: Row) -> Iterator[None]:
        try:
            yield
        except PeerError as error:
            row.status, row.reason = (WRONG if isinstance(error, WrongAnswers) else FAILED), str(error)
            self.console.print(f"[red]{row.name}: {row.status}:[/]")
            self._say(row.reason)

    def _configuration(self, peer: Peer, layout: Layout) -> dict[str, Any]:
        waits = {} if peer.name in _WITHOUT_A_WAIT else {"batch_wait_ms": self.args.batch_wait_ms}
        # A path says nothing to anybody else.
        variables = {name: value for name, value in peer.environment.items() if not name.endswith("_PATH")}
        chosen = {"max_batch_size": self.args.batch_size, **waits, **layout, **variables}
        return chosen | {"about": peer.about}

    def _say(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False)


class WrongAnswers(PeerError):
    """The service answers, but not what the reference does."""


def _cache_name(is_others: bool) -> str:
    """Of the folder of compiled code: this project's own, or the classifier's that all others serve."""
    return "others" if is_others else "own"


def _words(layout: Layout) -> str:
    return ", ".join(f"{name} {value}" for name, value in layout.items()) or "its own defaults"


_WITHOUT_A_WAIT = ("warmlane", "BentoML", "PyTriton")
