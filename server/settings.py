"""Every setting of the server, once: its default, unit and range.

The command line wins over the environment, and the environment over the default.
"""

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import click

from pipeline.options import (
    CPU_BATCH_SIZE,
    CUDA_BATCH_SIZE,
    CUDA_CANVAS,
    CUDA_LANES,
    DEFAULT_MODEL,
    DTYPE_NAMES,
    GRAPH_SIZES,
)


def _setting(default: Any, help: str, type: click.ParamType[Any] | None = None, *, alias: str = "") -> Any:
    return field(default=default, metadata={"help": help, "type": type, "alias": alias})


_LAST_PORT = 65535
# The contract and gRPC hold counts in 32 bits.
_COUNT = click.IntRange(1, 2**31 - 1)
_SIZE = click.IntRange(min=1)
_AUTO_COUNT = click.IntRange(min=0)


class _FiniteRange(click.FloatRange):
    """A range that holds neither "nan", which is within no bounds and outside none, nor "inf"."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Parse, or fail with what was expected."""
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number", param, ctx)
        return number


class _Numbers(click.ParamType[tuple[float, ...]]):
    """Comma-separated numbers, a fixed count of them."""

    name = "numbers"

    def __init__(self, number: Callable[[str], float], counts: tuple[int, ...]) -> None:
        self._number = number
        self._counts = counts

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[float, ...]:
        """Parse, or fail with what was expected."""
        if isinstance(value, tuple):
            return value
        wanted = " or ".join(str(count) for count in self._counts)
        try:
            numbers = tuple(self._number(part) for part in str(value).split(","))
        except ValueError:
            self.fail(f"{value!r} is not {wanted} numbers with commas between", param, ctx)
        if len(numbers) not in self._counts:
            self.fail(f"{value!r} has {len(numbers)} numbers, not {wanted}", param, ctx)
        return numbers


class _Counts(click.ParamType[tuple[int, ...]]):
    """Comma-separated counts, or none at all."""

    name = "counts"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """Parse, or fail with what was expected."""
        if isinstance(value, tuple):
            return value
        parts = [part.strip() for part in str(value).split(",")] if str(value).strip() else []
        return tuple(int(_SIZE(part, param, ctx)) for part in parts)


class _Names(click.ParamType[tuple[str, ...]]):
    """Comma-separated names."""

    name = "names"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        """Parse, or fail with what was expected."""
        names = value if isinstance(value, tuple) else tuple(name.strip() for name in str(value).split(","))
        if not all(names):
            self.fail(f"{value!r} has an empty name", param, ctx)
        return names


@dataclass(frozen=True, slots=True)
class Settings:
    """How the server runs. See `python -m server --help` for what each one means."""

    host: str = _setting("127.0.0.1", "Address to listen on; 0.0.0.0 takes calls from other machines.")
    port: int = _setting(50051, "TCP port; 0 takes a free one.", click.IntRange(0, _LAST_PORT))

    model: str = _setting(
        DEFAULT_MODEL, "efficientnet-lite0, a torchvision classification model, or package.module:factory."
    )
    weights: str = _setting(
        "default", "default, none (random, for benchmarks), or PATH of a state dict or safetensors file."
    )
    labels: Path | None = _setting(
        None, "Text file of class names, one a line; default: the model's own.", click.Path(path_type=Path)
    )
    activation: str = _setting("softmax", "What turns logits into scores.", click.Choice(["softmax", "sigmoid"]))
    resize: tuple[int, ...] | None = _setting(
        None,
        "Pixels of the shorter side, or HEIGHT,WIDTH to squash to; default: as the model declares.",
        _Numbers(int, (1, 2)),
    )
    crop: tuple[int, ...] | None = _setting(
        None, "Pixels cut from the centre: SIDE or HEIGHT,WIDTH; default: as the model declares.", _Numbers(int, (1, 2))
    )
    interpolation: str | None = _setting(
        None, "Resize filter, antialiased; default: as the model declares.", click.Choice(["bilinear", "bicubic"])
    )
    mean: tuple[float, ...] | None = _setting(
        None, "Mean of each channel of 0..1, R,G,B; default: as the model declares.", _Numbers(float, (3,))
    )
    std: tuple[float, ...] | None = _setting(
        None, "Standard deviation of each channel of 0..1; default: as the model declares.", _Numbers(float, (3,))
    )

    frontends: int = _setting(
        0,
        "Processes that take calls and decode, with one more for each device; 0: one process does all.",
        click.IntRange(0, 256),
    )
    frontend_port: int | None = _setting(
        None,
        "Each frontend also listens on a port of its own, from this one up; 0 takes free ones. A client that takes "
        "turns between all of them spreads its calls evenly, which the kernel does not; default: none.",
        click.IntRange(0, _LAST_PORT),
    )
    devices: tuple[str, ...] = _setting(
        ("auto",),
        "Where the model runs: auto (a GPU if there is one), cpu, or cuda:N; several with commas between.",
        _Names(),
        alias="--device",
    )

    batch_size: int = _setting(
        0,
        f"Most images in one forward. 0: {CUDA_BATCH_SIZE} on a GPU, {CPU_BATCH_SIZE} on a CPU.",
        click.IntRange(0, 512),
    )
    dtype: str = _setting(
        "auto",
        "What the forward computes in. auto: fp16 on a GPU, fp32 on a CPU.",
        click.Choice(["auto", *DTYPE_NAMES]),
    )
    lanes: int = _setting(
        0,
        f"Batches that run at the same time, on each device. 0: {CUDA_LANES} on a GPU; on a CPU as many as have "
        "--threads each.",
        click.IntRange(0, 256),
    )
    graph_sizes: tuple[int, ...] = _setting(
        GRAPH_SIZES,
        "Smaller batch sizes that a GPU has a CUDA graph for: a batch runs on the smallest that holds it. Empty: every "
        "batch is padded to --batch-size.",
        _Counts(),
    )
    max_wait_ms: float = _setting(0.0, "How long a batch may wait to fill, ms. 0 never waits.", _FiniteRange(min=0.0))
    canvas: int = _setting(
        0,
        f"Side of a slot's canvas, pixels. 0: {CUDA_CANVAS} on a GPU; on a CPU the model's input size.",
        _AUTO_COUNT,
    )
    slots: int = _setting(
        128, "Most images in flight, of each frontend; more are refused with RESOURCE_EXHAUSTED.", _COUNT
    )
    threads: int = _setting(
        0,
        "Threads of one forward on a CPU. 0: 1, or with --lanes what the CPU quota allows, shared out.",
        _AUTO_COUNT,
    )
    decode_threads: int = _setting(
        0, "Images that a frontend decodes at a time. 0: what the CPU quota allows, shared out.", _AUTO_COUNT
    )
    compile: bool = _setting(True, "Compile the model; without it the forward is several times slower.")
    strict: bool = _setting(False, "Not ready any more once something was compiled after warm-up: each time is a bug.")
    compile_cache: Path = _setting(
        Path("~/.cache/warmlane"), "Folder that keeps compiled models for the next start.", click.Path(path_type=Path)
    )

    decode: str = _setting(
        "auto",
        "Where JPEGs are decoded. auto: by a GPU's JPEG engines if it has some; what they do not take, on the CPU.",
        click.Choice(["auto", "cpu", "gpu"]),
    )
    exif: str = _setting(
        "apply", "Turn images by their EXIF orientation, or take them as stored.", click.Choice(["apply", "ignore"])
    )
    prescale: bool = _setting(
        True,
        "Decode large images at 1/2, 1/4 or 1/8 of their size where twice what the resize needs is left.",
    )
    max_image_bytes: int = _setting(16 << 20, "Largest encoded image, bytes.", _SIZE)
    max_image_pixels: int = _setting(50_000_000, "Largest image, pixels.", _SIZE)
    max_image_frames: int = _setting(1000, "Most frames or pages of one file; only the first is classified.", _COUNT)
    max_undecoded_bytes: int = _setting(
        256 << 20, "Most bytes of encoded images that wait in a frontend; more are refused.", _SIZE
    )
    max_decoded_bytes: int = _setting(
        512 << 20, "Memory that images of over 4 megapixels take together while they are decoded, bytes.", _SIZE
    )
    decode_timeout_s: float = _setting(
        20.0,
        "How long one image may take to decode, s: formats other than JPEG in processes that are killed then. 0: any "
        "time, and no such processes.",
        _FiniteRange(min=0.0),
    )
    max_calls: int = _setting(
        1024,
        "Most calls at a time in a frontend, open streams included; more are refused with RESOURCE_EXHAUSTED.",
        _COUNT,
    )
    max_batch_images: int = _setting(64, "Most images in one ClassifyBatch.", _COUNT)
    stream_window: int = _setting(32, "Images of one ClassifyStream that are worked on at a time.", _COUNT)

    max_connection_age_s: float = _setting(
        0.0,
        "After so long a connection ends with its last call and the client makes another, s. 0: 300 with --frontends.",
        _FiniteRange(min=0.0),
    )
    engine_timeout_s: float = _setting(
        20.0,
        "A device whose batch takes longer is given up; with --frontends its process is replaced, else it ends, s.",
        _FiniteRange(min=0.1),
    )
    frontend_timeout_s: float = _setting(
        30.0, "A frontend that does nothing for longer is given up and replaced, s.", _FiniteRange(min=1.0)
    )
    drain_s: float = _setting(
        30.0, "How long calls in flight may take to finish after SIGTERM, s.", _FiniteRange(min=0.0)
    )
    metrics_port: int = _setting(
        0, "Port of Prometheus metrics, on the loopback address. 0: none.", click.IntRange(0, _LAST_PORT)
    )
    admin_port: int = _setting(
        0,
        "Port of admin calls (profiles, for bench.doctor), on the loopback address. 0: none.",
        click.IntRange(0, _LAST_PORT),
    )
    log_level: str = _setting("info", "Least severe log line.", click.Choice(["debug", "info", "warning", "error"]))
    log_json: bool = _setting(False, "One JSON object a log line.")

    null_engine: bool = _setting(False, "For benchmarks: compute nothing, and answer always the same.")
    skip_decode: bool = _setting(False, "For benchmarks: look at no image.")

    def __post_init__(self) -> None:
        if self.slots < self.max_batch_images:
            raise ValueError(
                f"--slots {self.slots} is less than --max-batch-images {self.max_batch_images}: no full batch would fit"
            )
        if self.max_undecoded_bytes < self.max_image_bytes:
            raise ValueError(
                f"--max-undecoded-bytes {self.max_undecoded_bytes} is less than --max-image-bytes "
                f"{self.max_image_bytes}: the largest image would never be taken"
            )
        if len(self.devices) > 1 and not self.frontends:
            raise ValueError("several --devices need processes of their own: set --frontends to 1 or more")
        if self.frontend_port is not None:
            if not self.frontends:
                raise ValueError("--frontend-port is for the processes of --frontends, of which there are none")
            if self.frontend_port + self.frontends - 1 > _LAST_PORT:
                raise ValueError(
                    f"--frontend-port {self.frontend_port} and --frontends {self.frontends} lead past port {_LAST_PORT}"
                )

    def preprocess_overrides(self) -> dict[str, Any]:
        """The fields of `Preprocess` that were set."""
        resize: int | tuple[int, ...] | None = self.resize
        if self.resize is not None and len(self.resize) == 1:
            resize = self.resize[0]
        crop = self.crop * 2 if self.crop is not None and len(self.crop) == 1 else self.crop
        given = {
            "resize": resize,
            "crop": crop,
            "interpolation": self.interpolation,
            "mean": self.mean,
            "std": self.std,
        }
        return {name: value for name, value in given.items() if value is not None}


class _Command(click.Command):
    """A command whose errors are one line: click would print three lines of usage above it."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """See `click.Command.main`."""
        try:
            return super().main(*args, **{**kwargs, "standalone_mode": False})
        except click.ClickException as error:
            click.echo(f"server: {error.format_message()} (--help lists the settings)", err=True)
            raise SystemExit(error.exit_code) from None


def command(run: Callable[[Settings], int]) -> click.Command:
    """The command `python -m server`: parses `Settings`, then calls `run` and exits with what it returns."""

    def callback(**values: Any) -> None:
        try:
            settings = Settings(**values)
        except ValueError as error:
            raise click.UsageError(str(error)) from None
        raise SystemExit(run(settings))

    return _Command(
        "server",
        callback=callback,
        params=[_option(setting) for setting in fields(Settings)],
        help="Serve an image classifier over gRPC. Each setting can also come from its environment variable.",
        context_settings={
            "auto_envvar_prefix": "WARMLANE",
            "max_content_width": os.get_terminal_size().columns if os.isatty(1) else 120,
        },
    )


def parse(args: Sequence[str]) -> Settings:
    """The settings that the server would run with, environment included.

    Raises:
        SystemExit: what the server would refuse, or --help; said as it would say it.
    """
    found: list[Settings] = []

    def keep(settings: Settings) -> int:
        found.append(settings)
        return 0

    try:
        command(keep).main(list(args), prog_name="python -m server")
    except SystemExit:
        if not found:
            raise
    return found[0]


def _option(setting: Any) -> click.Option:
    flag = setting.name.replace("_", "-")
    is_switch = setting.type is bool
    flags = [f"--{flag}/--no-{flag}" if is_switch else f"--{flag}", setting.metadata["alias"]]
    is_list = isinstance(setting.default, tuple)
    return click.Option(
        [setting.name, *filter(None, flags)],
        default=",".join(map(str, setting.default)) if is_list else setting.default,
        type=setting.metadata["type"] or setting.type if not is_switch else None,
        help=setting.metadata["help"],
        show_default=setting.default is not None,
        show_envvar=True,
    )
