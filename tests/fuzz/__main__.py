"""`python -m tests.fuzz`: libFuzzer mutates the files of `tests.images`, guided by what the Python code reaches.

It ends with exit code 0 after its time, or at the first finding, which it writes into the folder's `findings`.
"""

import hashlib
import sys
from pathlib import Path

import atheris
import click

# Python's code tells which branches it takes only if it is imported here.
with atheris.instrument_imports(include=["pipeline", "PIL"]):
    from pipeline import decode, headers, sniff  # noqa: F401
    from tests.fuzz.target import LIMITS, take

from tests.images.corpus import corpus
from tests.test_decode_damage import small_files

_DECODE_S = 5


@click.command()
@click.option("--seconds", default=600, show_default=True, type=click.IntRange(min=1), help="How long.")
@click.option(
    "--folder",
    default=".cache/fuzz",
    show_default=True,
    type=click.Path(path_type=Path),
    help="Keeps what was reached from run to run, and the findings.",
)
@click.option("--seed", default=0, help="Of the mutations; 0: another each time.")
@click.argument("files", nargs=-1, type=click.Path(exists=True, path_type=Path))
def main(seconds: int, folder: Path, seed: int, files: tuple[Path, ...]) -> None:
    """Fuzz sniff, header and decode. With FILES, take only these: a finding, to see it again."""
    if files:
        for file in files:
            take(file.read_bytes())
        return
    reached, seeds, findings = (_made(folder / name) for name in ("reached", "seeds", "findings"))
    _write_seeds(seeds)
    atheris.Setup(
        [
            sys.argv[0],
            f"-max_total_time={seconds}",
            f"-timeout={_DECODE_S}",
            f"-max_len={LIMITS.max_bytes}",
            f"-seed={seed}",
            f"-artifact_prefix={findings}/",
            "-print_final_stats=1",
            str(reached),
            str(seeds),
        ],
        take,
    )
    atheris.Fuzz()


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _write_seeds(folder: Path) -> None:
    """Small files are quick, and most of their bytes matter."""
    files = [*small_files().values(), *(sample.data for sample in corpus())]
    for data in files:
        if len(data) <= LIMITS.max_bytes // 4:
            (folder / hashlib.sha1(data, usedforsecurity=False).hexdigest()).write_bytes(data)


if __name__ == "__main__":
    main()
