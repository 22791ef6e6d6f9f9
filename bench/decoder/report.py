"""The decoder's rungs on the terminal: paces beside the published ones, causes, what the doctor says."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

from rich.console import Console
from rich.table import Table

from bench.decoder.experiments import Trial
from bench.decoder.measure import Row

# What is to be shown on an H200.
GAIN_WANTED, GRAPH_TOKENS_S_WANTED = 40.0, 1_000.0
_FIRST, _GRAPH, _BATCH_4 = 0, 6, 7
# Two runs of the same rung differ by about as much.
_NOISE = 0.05


def print_rows(console: Console, rows: Sequence[Row]) -> None:
    """All that was measured of the rungs."""
    console.print(_paces(rows), _causes(rows))
    for row in rows:
        console.print(f"{row.number} {row.name}: {row.verdict or 'no verdict: no GPU, so no kernels to see'}")
        for sentence in row.evidence:
            console.print(f"    {sentence}", markup=False)
    for line in findings(rows):
        console.print(f"  - {line}", markup=False)


def gain(rows: Sequence[Row]) -> float | None:
    """Tokens per second at batch 4 over the first draft's; None if one of them was not measured."""
    paces = {row.number: row.tokens_s for row in rows}
    return paces[_BATCH_4] / paces[_FIRST] if {_FIRST, _BATCH_4} <= paces.keys() else None


def findings(rows: Sequence[Row]) -> Iterator[str]:
    """What the rows say at once: the goals, answers that disagree, rungs that made it slower."""
    reached = gain(rows)
    if reached:
        yield f"batch 4 writes {reached:.0f} times the tokens of the first draft ({_met(reached, GAIN_WANTED)})"
    for row in rows:
        if row.number == _GRAPH:
            met = _met(row.tokens_s, GRAPH_TOKENS_S_WANTED)
            yield f"one text on rung {_GRAPH}: {row.tokens_s:,.0f} tokens/s ({met})"
        if not row.agreement.is_good:
            yield f"rung {row.number} ({row.name}) does not compute the same: {row.agreement}"
    for before, after in pairwise(rows):
        if after.tokens_s < (1 - _NOISE) * before.tokens_s:
            yield (
                f"rung {after.number} ({after.name}) is slower than rung {before.number}: "
                f"{after.tokens_s:,.1f} against {before.tokens_s:,.1f} tokens/s"
            )


def trials_table(trials: Sequence[Trial]) -> Table:
    """The experiments A to E."""
    table = Table(title="single changes to the first draft", title_justify="left")
    table.add_column("")
    table.add_column("change")
    for title in ("tokens/s", "gain", "over"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("")
    for trial in trials:
        over = "" if trial.letter == trial.against else trial.against.replace("-", "first draft")
        gained = f"{trial.gain:.2f}" if trial.gain and over else ""
        table.add_row(trial.letter, trial.change, _number(trial.tokens_s, 1), gained, over, trial.note)
    return table


def _paces(rows: Sequence[Row]) -> Table:
    title = "\nPace; in brackets what the case's author reports of a similar model of 150 M parameters"
    table = Table(title=title, title_justify="left")
    table.add_column("rung")
    for column in (
        "tokens/s",
        "ms a step",
        "floor ms",
        "of the floor",
        "logits differ",
        "tokens agree",
        "settled s",
    ):
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        agreement = row.agreement
        published = f" \\[{row.published_tokens_s:,.0f}]" if row.published_tokens_s else ""
        table.add_row(
            f"{row.number} {row.name}",
            f"{row.tokens_s:,.1f}{published}",
            f"{row.step_ms:.3f}",
            f"{row.floor_ms:.3f}",
            f"{100 * row.floor_ms / row.step_ms:.1f}%",
            f"{agreement.logits_diff:.1e} <= {agreement.tolerance:g}",
            f"{agreement.forced + agreement.free - agreement.wrong} of {agreement.forced + agreement.free}",
            f"{row.settle_s:.1f}",
        )
    return table


def _causes(rows: Sequence[Row]) -> Table:
    table = Table(title="causes, means of a step", title_justify="left")
    table.add_column("rung")
    for title in ("GPU busy", "kernel ms", "kernels", "launches", "under 10 us", "syncs"):
        table.add_column(title, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            f"{row.number} {row.name}",
            _percent(row.gpu_busy),
            _number(row.kernel_ms, 3),
            _number(row.kernels, 0),
            _number(row.launches, 1),
            _percent(row.short_kernels),
            _number(row.syncs, 1),
        )
    return table


def _met(reached: float, wanted: float) -> str:
    return f"wanted {wanted:,.0f}: {'met' if reached >= wanted else 'short'}"


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.0f}%"
