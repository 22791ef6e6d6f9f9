"""What the garbage collector need not look at: all that a start-up has made."""

import gc


def spare_what_exists() -> None:
    """Have the collector look only at what is made from now on.

    A full collection of a process with torch in it stops all its threads for 0.1 to 0.3 s (bench/LOG.md, 2026-11-30),
    and finds nothing in what lives as long as the process.
    """
    gc.collect()
    gc.freeze()
