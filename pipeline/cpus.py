"""How many CPUs this process may use: the cgroup's quota and the affinity mask, not the host's core count."""

import math
import os
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")


def available_cpus(cgroup: Path = _CGROUP) -> int:
    """CPUs that may be used at once, at least 1.

    A quota of 1.5 CPUs counts as 2. Sources: Linux Documentation/admin-guide/cgroup-v2.rst (cpu.max) and
    Documentation/scheduler/sched-bwc.rst (cpu.cfs_quota_us).
    """
    allowed = len(os.sched_getaffinity(0))
    quota = _quota_v2(cgroup) or _quota_v1(cgroup)
    return max(1, min(allowed, math.ceil(quota))) if quota else allowed


def _quota_v2(cgroup: Path) -> float | None:
    try:
        quota, period = (cgroup / "cpu.max").read_text().split()
    except (OSError, ValueError):
        return None
    return None if quota == "max" else int(quota) / int(period)


def _quota_v1(cgroup: Path) -> float | None:
    try:
        quota = int((cgroup / "cpu" / "cpu.cfs_quota_us").read_text())
        period = int((cgroup / "cpu" / "cpu.cfs_period_us").read_text())
    except (OSError, ValueError):
        return None
    return quota / period if quota > 0 else None
