"""A process that counts: `python -m tests.counting_child NAME`. It counts, says so, and goes on until its end.

Nothing of it may import `pipeline.metrics` before it has adopted its files.
"""

import sys

from server.metrics_files import adopt

RECOMPILES, SLOTS, ANSWERS = 10, 3, 7


class Pool:
    """Stands in for `SlotPool`, which would import torch."""

    in_use = SLOTS


def main(name: str) -> None:
    adopt(name)
    from pipeline import metrics

    metrics.RECOMPILES.inc(RECOMPILES)
    pool = Pool()
    metrics.watch_slots(pool)
    for number in range(ANSWERS):
        metrics.count_answer([0.3 + number] * len(metrics.STAGES))
    metrics.flush()
    print("counted", flush=True)
    while True:
        metrics.BATCH_FILL.observe(8)
        metrics.DROPPED.labels("batch", "expired").inc()


if __name__ == "__main__":
    main(sys.argv[1])
