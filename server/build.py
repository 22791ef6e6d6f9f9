"""From settings to a model and a pipeline."""

import logging

from pipeline.embedded import Pipeline
from pipeline.lanes import device_name, open_device, resolve_device, resolve_dtype
from pipeline.model import Model, load_model
from pipeline.options import Options
from server.settings import Settings
from server.shares import batch_size, decode_threads, image_limits, lanes_and_threads

log = logging.getLogger(__name__)


def model_and_options(settings: Settings, device: str = "") -> tuple[Model, Options]:
    """`served_model` and `pipeline_options`. A GPU is being opened while the model is loaded.

    Raises:
        ModelError: the model or the device cannot be had.
    """
    options = pipeline_options(settings, device)
    open_device(options)
    model = served_model(settings)
    where = device_name(options.device)
    log.info("the model runs on %s in %s, %d lanes of %d threads", where, options.dtype, options.lanes, options.threads)
    return model, options


def build_pipeline(settings: Settings) -> Pipeline:
    """The embedded form, not started yet.

    Raises:
        ModelError: the model or the device cannot be had.
    """
    model, options = model_and_options(settings)
    return Pipeline(model, options, image_limits(settings))


def served_model(settings: Settings) -> Model:
    """The model that the settings name.

    Raises:
        ModelError: it cannot be had.
    """
    return load_model(
        settings.model,
        weights=settings.weights,
        labels=settings.labels,
        activation=settings.activation,  # type: ignore[arg-type]
        overrides=settings.preprocess_overrides(),
    )


def pipeline_options(settings: Settings, device: str = "") -> Options:
    """How the settings run their model, with every "auto" resolved.

    Args:
        device: which of the settings' devices; empty for the only one.

    Raises:
        ModelError: the device cannot be had.
    """
    device = resolve_device(device or settings.devices[0])
    on_gpu = device != "cpu"
    lanes, threads = lanes_and_threads(settings, on_gpu)
    return Options(
        device=device,
        dtype=resolve_dtype(settings.dtype, device),
        lanes=lanes,
        graph_sizes=settings.graph_sizes,
        batch_size=batch_size(settings, on_gpu),
        canvas=settings.canvas,
        slots=settings.slots,
        threads=threads,
        decode_threads=decode_threads(settings),
        max_wait_ms=settings.max_wait_ms,
        compile=settings.compile,
        compile_cache=settings.compile_cache.expanduser(),
        null_engine=settings.null_engine,
        decode=settings.decode,
        skip_decode=settings.skip_decode,
    )
