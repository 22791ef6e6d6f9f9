"""`python -m bench.doctor`: why is my GPU idle?

    --factory package.module:factory     a model of your own
    --model resnet50 --weights none      a model by the name that the server takes
    --loop package.module:function       one batch of your own loop, data and all
    --target HOST:PORT                   a running service, by its metrics and a profile of its engine
    --trace FILE                         a profile that torch.profiler exported

They combine: beside a loop or a service its model is fed from memory for comparison, and experimented on. For that the
doctor makes a copy of a service's model in its own process; the serving engine is only watched.
"""

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import click
import torch
from rich.console import Console

from bench.doctor.diagnose import Goal, diagnose
from bench.doctor.evidence import Factor
from bench.doctor.look import Examination, Plan
from bench.doctor.report import print_report, to_json
from bench.doctor.subject import DTYPES, Subject, SubjectError, from_factory, from_model, resolve
from bench.live import ProbeError
from pipeline.model import ModelError

_FACTORS = {factor.value.replace(" + ", "-").replace(" ", "-").lower(): factor for factor in Factor}
_SMALLEST_PROFILE = 10
_PORT = click.IntRange(1, 65535)


def _shape(_context: click.Context, _option: click.Parameter, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(size) for size in text.split(","))
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a shape such as 3,224,224") from None


def _factors(_context: click.Context, _option: click.Parameter, text: str) -> tuple[Factor, ...]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if unknown := [name for name in names if name not in _FACTORS]:
        raise click.BadParameter(f"unknown {unknown[0]!r}; there are {', '.join(_FACTORS)}")
    return tuple(_FACTORS[name] for name in names)


@click.command()
@click.option("--factory", help="package.module:factory, a callable that returns an nn.Module.")
@click.option("--model", help="A model by the name that the server takes.")
@click.option("--weights", default="default", show_default=True, help='Of --model; "none" for random ones.')
@click.option("--loop", help="package.module:function that runs one batch of your own loop.")
@click.option("--target", default="", help="HOST:PORT of a running service.")
@click.option("--admin-port", type=_PORT, help="Of that service, on this machine: profiles its engine.")
@click.option("--metrics-port", type=_PORT, help="Of that service, on this machine: its load and queues.")
@click.option("--metrics-url", default="", help="The same by address: http://127.0.0.1:9100/metrics.")
@click.option("--trace", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="A profile, as JSON.")
@click.option("--trace-batches", type=click.IntRange(1), default=1, help="Batches in that profile.")
@click.option("--batch-size", type=click.IntRange(1), default=8, show_default=True)
@click.option("--input", "shape", default="3,224,224", show_default=True, callback=_shape, help="Of one item.")
@click.option("--dtype", type=click.Choice(list(DTYPES)), default="fp32", show_default=True)
@click.option("--goal", type=click.Choice(["throughput", "latency"]), default="throughput", show_default=True)
@click.option("--experiments", default=",".join(_FACTORS), show_default=True, callback=_factors)
@click.option("--batches", type=click.IntRange(_SMALLEST_PROFILE), default=200, show_default=True, help="To profile.")
@click.option(
    "--seconds", type=click.FloatRange(0.0, min_open=True), default=2.0, show_default=True, help="A measurement."
)
@click.option(
    "--profile-s",
    type=click.FloatRange(0.1, 300.0),
    default=30.0,
    show_default=True,
    help="A service may take for them.",
)
@click.option("--gpu", type=click.IntRange(0), default=0, show_default=True, help="As NVML counts.")
@click.option("--json", "as_json", is_flag=True, help="One line of JSON instead of tables.")
def main(goal: Goal, as_json: bool, **options: Any) -> None:
    """Look layer by layer, name the disease, and say which one setting is most worth changing."""
    console = Console(stderr=as_json, highlight=False)

    def progress(layer: str) -> AbstractContextManager[Any]:
        return console.status(f"looking at {layer} ...")

    try:
        examination = Examination(_plan(options), progress)
        evidence = examination.run()
    except (SubjectError, ModelError, ProbeError, ValueError) as error:
        raise click.ClickException(str(error)) from None
    verdict = diagnose(evidence, goal)
    if as_json:
        click.echo(to_json(evidence, examination.unseen, verdict))
    else:
        print_report(console, evidence, examination.unseen, verdict)


def _plan(options: dict[str, Any]) -> Plan:
    if not any(options[name] for name in ("factory", "model", "loop", "target", "trace")):
        raise click.UsageError("nothing to look at: give --factory, --model, --loop, --target or --trace")
    _check_ports(options)
    return Plan(
        admin=_local(options["admin_port"]),
        metrics_url=options["metrics_url"] or _local(options["metrics_port"], "http://{}/metrics"),
        subject=_subject(options),
        loop=resolve(options["loop"]) if options["loop"] else None,
        factors=options["experiments"],
        **{
            name: options[name]
            for name in ("target", "trace", "trace_batches", "gpu", "batches", "seconds", "profile_s")
        },
    )


def _check_ports(options: dict[str, Any]) -> None:
    for name in ("admin_port", "metrics_port", "metrics_url"):
        if options[name] and not options["target"]:
            raise click.UsageError(f"--{name.replace('_', '-')} is of a running service: give its --target too")


def _local(port: int | None, address: str = "{}") -> str:
    """Where the server listens for nobody but its own machine; empty without a port."""
    return address.format(f"127.0.0.1:{port}") if port else ""


def _subject(options: dict[str, Any]) -> Subject | None:
    dtype: torch.dtype = DTYPES[options["dtype"]]
    if options["factory"] and options["model"]:
        raise click.UsageError("--factory or --model, not both")
    if options["factory"]:
        return from_factory(options["factory"], options["batch_size"], options["shape"], dtype)
    if options["model"]:
        return from_model(options["model"], options["weights"], options["batch_size"], dtype)
    return None


if __name__ == "__main__":
    main(prog_name="python -m bench.doctor")
