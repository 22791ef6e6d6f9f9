"""What `bench.peers` prints: how each service was configured, and the table."""

from collections.abc import Iterator, Sequence

from rich.table import Table

from bench.peers.rows import MEASURED, Point, Row

NOT_MEASURED = "Triton with TensorRT and DALI: not measured."
_NONE = "-"


def configurations(rows: Sequence[Row]) -> Table:
    """How each was set up, so that its authors can object."""
    table = Table(title="Configurations", title_justify="left", show_header=False, box=None)
    for row in rows:
        told = ", ".join(f"{name} {value}" for name, value in row.configuration.items() if name != "about")
        about = row.configuration.get("about", "")
        table.add_row(f"{row.name} {row.version}".strip(), "; ".join(filter(None, (told, about))) or _NONE)
        if len(row.tried) > 1:
            tried = "; ".join(f"{_layout(each['layout'])}: {each['img_s']:.1f} img/s" for each in row.tried)
            table.add_row("", f"tried: {tried}")
    return table


def results(rows: Sequence[Row], slo_ms: float, rate: float) -> Table:
    """One row a service, in the order of its images a second; those without figures say why below."""
    table = Table(title="Side by side", title_justify="left")
    table.add_column("")
    for title in (
        f"img/s, p99 <= {slo_ms:g} ms",
        "of each start",
        "callers",
        f"p50 ms at {rate:.1f}/s",
        "p99 ms",
        "CPU, cores",
        "callers' CPU",
        "memory MiB",
        "processes",
        "cold start s",
        "warm start s",
    ):
        table.add_column(title, justify="right")
    for row in sorted(rows, key=lambda row: -(row.img_s or 0)):
        table.add_row(row.name, *_cells(row))
    return table


def closed_loops(rows: Sequence[Row]) -> Table:
    """Every closed loop: img/s, and p50 / p99 in milliseconds."""
    counts = sorted({point.callers for row in rows for point in row.closed})
    table = Table(title="Closed loops: img/s, p50 / p99 ms", title_justify="left")
    table.add_column("callers")
    for count in counts:
        table.add_column(str(count), justify="right")
    for row in rows:
        found = {point.callers: point for point in row.closed}
        if found:
            table.add_row(row.name, *(_point(found.get(count)) for count in counts))
    return table


def findings(rows: Sequence[Row]) -> Iterator[str]:
    """What went wrong, and how this project stands to the others."""
    for row in rows:
        if row.status != MEASURED:
            yield f"{row.name}: {row.status}: {row.reason}"
        elif not row.img_s:
            yield f"{row.name}: no load had a p99 within the limit, or none was valid"
    ours, *others = sorted(rows, key=lambda row: row.name != "warmlane")
    others = [row for row in others if not row.name.startswith("warmlane")]
    for row in others:
        if ours.name == "warmlane" and ours.img_s and row.img_s:
            word = "faster" if ours.img_s > row.img_s else "slower"
            yield f"warmlane is {_times(ours.img_s, row.img_s):.2f} times {word} than {row.name}. {NOT_MEASURED}"


def _times(one: float, other: float) -> float:
    return max(one, other) / min(one, other)


def _cells(row: Row) -> Iterator[str]:
    if row.status != MEASURED:
        yield row.status
        return
    yield _number(row.img_s, 1)
    yield ", ".join(_number(img_s, 1) for img_s in row.img_s_of) or _NONE
    yield _number(row.callers, 0)
    yield _number(row.p50_ms, 1)
    yield _number(row.p99_ms, 1) + ("" if all(point.valid for point in row.paced) else " (not valid)")
    yield _number(row.cpu, 2)
    yield _number(max((point.generator_cpu for point in row.paced), default=None), 2)
    yield _number(row.rss_mib, 0)
    yield _number(row.processes, 0)
    yield _number(row.cold_start_s, 1)
    yield _number(row.warm_start_s, 1)


def _point(point: Point | None) -> str:
    if point is None:
        return _NONE
    return f"{point.img_s:.1f}, {point.p50_ms:.0f} / {point.p99_ms:.0f}" + ("" if point.valid else " (not valid)")


def _number(value: float | None, digits: int) -> str:
    return _NONE if value is None else f"{value:,.{digits}f}"


def _layout(layout: dict[str, int]) -> str:
    return ", ".join(f"{name} {value}" for name, value in layout.items()) or "defaults"
