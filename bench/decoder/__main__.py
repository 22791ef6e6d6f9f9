"""`make decoder`: a 135 M-parameter decoder, from a first draft of its loop to one graph launch a token.

    python -m bench.decoder [--rungs 0,1,2,3,4,5,6,7,8] [--experiments ABCDE]

Every rung is checked against eager fp32 before it is measured. A step writes one token for each text; its floor is the
time to read every weight once at the bandwidth measured here. The last line printed is the record, in JSON.
"""

import argparse
import copy
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

import torch
from rich.console import Console

from bench.console import conditions_table, finish
from bench.decoder import report
from bench.decoder.agreement import TOLERANCE
from bench.decoder.experiments import LETTERS, Trial, run_trials
from bench.decoder.floor import measure_ceilings, parameters
from bench.decoder.measure import PROFILED_STEPS, STEPS_UNDER_PROFILE, Bench, Plan, Row
from bench.decoder.model import Sizes, build
from bench.decoder.rungs import RUNGS, Rung, pick_rungs
from bench.record import machine, new_record
from bench.rungs import rungs_table
from pipeline.lanes import device_name, resolve_device
from pipeline.model import ModelError

_WIDTH = 150
# On a CPU a text of the whole model takes minutes, in half precision most of an hour.
_CPU_LAYERS, _CPU_TOKENS, _TOKENS = 2, 64, 128


def main(argv: Sequence[str] | None = None) -> int:
    """Climb; 0 if every rung could be measured and computes the same, else 1."""
    args = _parser().parse_args(argv)
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=_WIDTH)
    try:
        device, asked = torch.device(resolve_device(args.device)), pick_rungs(args.rungs)
        sizes, plan = _sizes(args, device), _plan(args, device)
    except (ModelError, ValueError) as error:
        console.print(f"[red]no measurement:[/] {error}")
        return 1
    rungs = [rung for rung in asked if device.type == "cuda" or not rung.needs_gpu]
    conditions = _conditions(device, sizes, plan, [rung.number for rung in asked if rung not in rungs])
    console.print(rungs_table(RUNGS), conditions_table({"machine": machine()} | conditions))
    if device.type == "cpu":
        console.print(f"[yellow]no GPU:[/] {_without_gpu(sizes)}")
    else:
        torch.cuda.set_device(device)
    failed: dict[str, str] = {}
    with torch.no_grad():
        bench = _bench(device, sizes, plan)
        rows = list(_climb(console, bench, rungs, failed))
        trials = list(run_trials(bench, args.experiments))
    _print(console, rows, trials)
    failed |= {f"experiment {trial.letter}": trial.note for trial in trials if trial.tokens_s is None}
    record = new_record("decoder", device_name(str(device)), conditions, _results(bench, rows, trials, failed))
    finish(console, record, keep=not args.no_record, picture="bench.decoder.picture")
    return 1 if failed or not rows or not all(row.agreement.is_good for row in rows) else 0


def _climb(console: Console, bench: Bench, rungs: Sequence[Rung], failed: dict[str, str]) -> Iterator[Row]:
    for rung in rungs:
        console.print(f"  {rung.number} {rung.name} ...", end=" ")
        try:
            row = bench.row(rung)
        except Exception as error:  # compilers and captures fail in ways of their own; the other rungs need not
            failed[f"rung {rung.number}"] = str(error)
            console.print("[red]failed:[/]")
            console.print(str(error), markup=False)
            continue
        finally:
            torch.compiler.reset()
        console.print(f"{row.tokens_s:,.1f} tokens/s, after {row.settle_s:.1f} s")
        yield row


def _print(console: Console, rows: Sequence[Row], trials: Sequence[Trial]) -> None:
    if rows:
        report.print_rows(console, rows)
    if trials:
        console.print(report.trials_table(trials))


def _bench(device: torch.device, sizes: Sizes, plan: Plan) -> Bench:
    model = build(sizes, device, torch.float32)
    models = {torch.float32: model, torch.float16: copy.deepcopy(model).half()}
    return Bench(models, measure_ceilings(device), plan)


def _sizes(args: argparse.Namespace, device: torch.device) -> Sizes:
    layers = args.layers or (_CPU_LAYERS if device.type == "cpu" else Sizes().layers)
    return replace(Sizes(), layers=layers, vocabulary=args.vocabulary)


def _plan(args: argparse.Namespace, device: torch.device) -> Plan:
    """What was asked for.

    Raises:
        ValueError: the texts do not fit into the model's context.
    """
    tokens = args.tokens or (_CPU_TOKENS if device.type == "cpu" else _TOKENS)
    longest = args.prompt + max(tokens, args.check_tokens, STEPS_UNDER_PROFILE)
    if longest > Sizes().context:
        raise ValueError(f"prompt and tokens need {longest} positions, the context has {Sizes().context}")
    return Plan(args.prompt, tokens, args.check_tokens, args.seconds)


def _conditions(device: torch.device, sizes: Sizes, plan: Plan, skipped: Sequence[int]) -> dict[str, Any]:
    return {
        "device": device_name(str(device)),
        "model": asdict(sizes),
        "parameters": parameters(sizes),
        "weights": "random",
        "plan": asdict(plan),
        "profiled_steps": PROFILED_STEPS,
        "tolerances": {str(dtype): tolerance for dtype, tolerance in TOLERANCE.items()},
        "published": "by the case's author, of a similar model of 150 M parameters on another GPU",
        "rungs_left_out_without_a_gpu": list(skipped),
    }


def _without_gpu(sizes: Sizes) -> str:
    return (
        f"rungs that compile and capture are left out, kernels are not seen, the model has {sizes.layers} layers of "
        f"{Sizes().layers}. This shows that the rungs compute the same; paces mean nothing here"
    )


def _results(bench: Bench, rows: Sequence[Row], trials: Sequence[Trial], failed: dict[str, str]) -> dict[str, Any]:
    return {
        "rungs": [asdict(row) for row in rows],
        "experiments": [asdict(trial) for trial in trials],
        "copy_bytes_s": bench.ceilings.copy_bytes_s,
        "tokens_s_batch_4_over_first": report.gain(rows),
        "failed": failed,
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.decoder", description="A decoder's loop, rung by rung.")
    add = parser.add_argument
    add("--rungs", type=_numbers, default=tuple(rung.number for rung in RUNGS), help="default: all")
    add("--device", default="auto", help="auto (a GPU if there is one), cpu or cuda:N")
    add("--layers", type=int, default=0, help=f"of the model (default {Sizes().layers}; {_CPU_LAYERS} on a CPU)")
    add("--vocabulary", type=int, default=Sizes().vocabulary, help=f"of the model (default {Sizes().vocabulary})")
    add("--prompt", type=int, default=32, help="tokens read first (default 32)")
    add("--tokens", type=int, default=0, help=f"written for a measurement (default {_TOKENS}; {_CPU_TOKENS} on a CPU)")
    add("--check-tokens", type=int, default=48, help="compared with eager fp32, of each text (default 48)")
    add("--seconds", type=float, default=1.0, help="at least so long is measured, two texts at least, s (default 1)")
    add("--experiments", type=_letters, default=LETTERS, help=f"single changes to measure (default {LETTERS})")
    add("--no-record", action="store_true", help="write nothing into bench/results")
    return parser


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in text.split(",") if word.strip())


def _letters(text: str) -> str:
    letters = text.upper().replace(",", "")
    if unknown := set(letters) - set(LETTERS):
        raise argparse.ArgumentTypeError(f"no experiment {min(unknown)}: they are {LETTERS}")
    return letters


if __name__ == "__main__":
    sys.exit(main())
