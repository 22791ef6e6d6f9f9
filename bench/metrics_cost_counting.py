"""What runs in a process of `bench.metrics_cost`: times counting, with files behind it, and prints JSON.

python -m bench.metrics_cost_counting FOLDER ROUNDS BATCH_SIZE
"""

import json
import os
import sys
import time
from collections.abc import Callable
from statistics import median

from server.metrics_files import VARIABLE, adopt

_TIMES = 1000


def main(folder: str, rounds: int, batch_size: int) -> None:
    """Count as a frontend, then as an engine."""
    os.environ[VARIABLE] = folder
    adopt("frontend-0")
    answer, batch = _frontend(), _engine(batch_size)
    print(json.dumps({"answer_us": _cpu_us(answer, rounds), "batch_us": _cpu_us(batch, rounds)}))


def _frontend() -> Callable[[], None]:
    """Counts `_TIMES` answers, and writes them: a frontend that answers 4,000 a second writes as many at a time."""
    from pipeline import metrics
    from server.images import stages_ms
    from warmlane.v1 import classifier_pb2 as pb

    timings = pb.Timings(admission_ms=0.3, decode_ms=4.0, queue_ms=1.7, transfer_ms=0.1, forward_ms=0.6, reply_ms=0.2)

    def count() -> None:
        for _ in range(_TIMES):
            metrics.count_answer(stages_ms(timings))
        metrics.flush()

    return count


def _engine(batch_size: int) -> Callable[[], None]:
    """Counts `_TIMES` batches as `pipeline.engine` and `pipeline.cuda_lane` do, two lanes busy by turns."""
    from pipeline import metrics
    from pipeline.lane_use import LaneUse

    use = LaneUse()
    use.begin()

    def count() -> None:
        for _ in range(_TIMES):
            use.begin()
            use.end()
            metrics.PADDING_ROWS.inc(0)
            metrics.BATCH_FILL.observe(batch_size)

    return count


def _cpu_us(count: Callable[[], None], rounds: int) -> float:
    """Median CPU microseconds of one of the `_TIMES` of `count`."""
    times_us = []
    for _ in range(rounds):
        started_s = time.thread_time()
        count()
        times_us.append(1e6 * (time.thread_time() - started_s) / _TIMES)
    return median(times_us)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
