"""The report of a record that was kept: `python -m bench.report RECORD.json [...]` writes a page beside each."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.report.page import write_report


def main(argv: Sequence[str]) -> int:
    """Write the pages; 1 if a file is no record of a load test."""
    for path in map(Path, argv):
        record = json.loads(path.read_text())
        if "runs" not in record["results"]:
            print(f"{path}: no record of the load test, or of an older one", file=sys.stderr)
            return 1
        write_report(record, path.with_suffix(".html"))
        print(path.with_suffix(".html"))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
