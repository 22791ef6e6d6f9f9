"""What a chaos run found, on the terminal and for the record."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.table import Table

from bench.chaos.outcomes import Check, Outcome, Spell, Strike


@dataclass(frozen=True, slots=True)
class Pace:
    """How the service did in a quiet time.

    Attributes:
        img_s: images answered a second.
        p50_ms: median wait of patient callers of one good image; NaN where there were none.
    """

    img_s: float
    p50_ms: float


def pace(outcomes: Sequence[Outcome], quiet: Spell) -> Pace:
    """The pace of the calls that ended in `quiet`."""
    answered = [each for each in outcomes if each.status == "OK" and quiet.from_s <= each.ended_s <= quiet.to_s]
    waits = [each.ended_s - each.started_s for each in answered if (each.shape, each.temper) == ("unary", "patient")]
    p50_ms = 1e3 * float(np.median(waits)) if waits else float("nan")
    return Pace(len(answered) / (quiet.to_s - quiet.from_s), p50_ms)


def check_paces(before: Pace, after: Sequence[Pace], tolerance: float) -> list[Check]:
    """At the end it serves as at the start, within a share of `tolerance`, in one of the times that were looked at."""
    fast = any(pace.img_s >= before.img_s * (1 - tolerance) for pace in after)
    prompt = any(pace.p50_ms * (1 - tolerance) <= before.p50_ms for pace in after)
    rates, waits = (", ".join(f"{getattr(pace, name):.0f}" for pace in after) for name in ("img_s", "p50_ms"))
    return [
        Check("as many images a second as at the start", fast, f"{before.img_s:.0f}, then {rates} img/s"),
        Check("as prompt as at the start", prompt, f"p50 {before.p50_ms:.0f}, then {waits} ms"),
    ]


def outcomes_table(outcomes: Sequence[Outcome]) -> Table:
    """Images by kind and outcome."""
    table = Table(title="Images by what they were and what became of them", title_justify="left", box=None)
    statuses = [status for status, _ in Counter(outcome.status for outcome in outcomes).most_common()]
    for name in ("image", "call", *statuses):
        table.add_column(name, justify="left" if name in ("image", "call") else "right")
    count = Counter((outcome.image, outcome.temper, outcome.status) for outcome in outcomes)
    for image, temper in sorted({key[:2] for key in count}):
        table.add_row(image, temper, *(f"{count[image, temper, status]:,}" for status in statuses))
    return table


def counted(outcomes: Sequence[Outcome], strikes: Sequence[Strike]) -> dict[str, Any]:
    """For the record: outcomes by image, temper and status; strikes by action and role."""
    by_kind = Counter(f"{each.image}, {each.temper}: {each.status}" for each in outcomes)
    struck = Counter(f"{strike.action} {strike.role}" for strike in strikes)
    waits = [strike.replaced_s - strike.at_s for strike in strikes if strike.replaced_s is not None]
    return {
        "images": len(outcomes),
        "statuses": dict(Counter(outcome.status for outcome in outcomes).most_common()),
        "outcomes": dict(sorted(by_kind.items())),
        "strikes": dict(sorted(struck.items())),
        "replaced_max_s": max(waits, default=0.0),
    }
