"""`make demo`: starts the server, classifies the sample photographs as any caller would, shows the answers, stops."""

import sys
import time
from pathlib import Path

from rich.bar import Bar
from rich.console import Console
from rich.table import Table

from bench.console import running_service
from bench.mix import PHOTOGRAPHS
from bench.service import ServiceError
from warmlane.client import Client
from warmlane.errors import WarmlaneError
from warmlane.results import Classification
from warmlane.show import SHOWN_STAGES

_TOP_K = 5
_BAR_COLUMNS = 24
_LABEL_COLUMNS = 40


def main() -> int:
    """Run the demo; the exit code."""
    console = Console(highlight=False)
    try:
        with running_service(console) as service, Client(service.target) as client:
            _show(console, client)
            console.print("\nThe server is told to stop ...", end="")
        console.print(" it has answered everything and ended well.\nStart one that stays: [bold]make serve[/]")
    except (ServiceError, WarmlaneError) as error:
        console.print(f"[red]the demo failed:[/] {error}")
        return 1
    return 0


def _show(console: Console, client: Client) -> None:
    model = client.model()
    console.print(f"{model.name} on {model.device}, {model.dtype}, {model.execution}, {len(model.labels)} classes\n")
    spent = _time_table()
    for path in sorted(PHOTOGRAPHS.glob("*.jpg")):
        started_s = time.perf_counter()
        answer = client.classify(path, top_k=_TOP_K, explain=True)
        round_trip_ms = 1e3 * (time.perf_counter() - started_s)
        console.print(_predictions(path, answer), "")
        spent.add_row(path.name, *_times(answer), f"{round_trip_ms:.2f}")
    console.print(spent)


def _predictions(path: Path, answer: Classification) -> Table:
    found = answer.explanation
    size = f", {found.width}x{found.height} {found.format}, {path.stat().st_size / 1e3:.0f} KB" if found else ""
    table = Table(title=f"[bold]{path.name}[/]{size}", title_justify="left", box=None, show_header=False)
    table.add_column(justify="right", width=8)
    table.add_column(width=_BAR_COLUMNS)
    table.add_column(width=_LABEL_COLUMNS)
    for prediction in answer.predictions:
        bar = Bar(1.0, 0.0, prediction.score, color="green")
        table.add_row(f"{prediction.score:.4f}", bar, prediction.label)
    return table


def _time_table() -> Table:
    table = Table(title="Where the time went, milliseconds", title_justify="left")
    table.add_column("photograph")
    for stage in (*SHOWN_STAGES, "round trip"):
        table.add_column(stage, justify="right")
    return table


def _times(answer: Classification) -> list[str]:
    return [f"{getattr(answer.timings, stage + '_ms'):.2f}" for stage in SHOWN_STAGES]


if __name__ == "__main__":
    sys.exit(main())
