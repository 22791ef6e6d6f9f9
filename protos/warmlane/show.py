"""What the `warmlane` command prints: text for people, one-line JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from warmlane.errors import WarmlaneError
from warmlane.results import Classification, Explanation, ModelInfo, Prediction, Preprocessing, Timings

SHOWN_STAGES = ("decode", "queue", "transfer", "forward", "total")
SHOWN_LABELS = 3


def classification_text(name: str, result: Classification) -> str:
    """The file's name, its predictions as a table, what was done to it (if known), where the time went."""
    lines = [name, *_table(result.predictions)]
    if result.explanation:
        lines.append(f"  {_explanation(result.explanation)}")
    return "\n".join([*lines, f"  {_timings(result.timings)}", ""])


def info_text(info: ModelInfo) -> str:
    """The model, what it does to an image, and the server's limits, one aligned line each."""
    limits = info.limits
    rows = {
        "model": f"{info.name} ({info.version})",
        "runs on": f"{info.device}, {info.dtype}, {info.execution}",
        "batch size": str(info.batch_size),
        "classes": f"{len(info.labels)} by {info.activation}: {', '.join(info.labels[:SHOWN_LABELS])}, ...",
        "input": _preprocessing(info.preprocessing),
        "an image": f"at most {_bytes(limits.max_image_bytes)}, {limits.max_image_pixels:,} pixels, "
        f"{limits.max_image_frames:,} frames",
        "a batch": f"at most {limits.max_batch_images} images",
        "a stream": f"{limits.stream_window} images in work at a time",
        "versions": ", ".join(f"{name} {version}" for name, version in sorted(info.versions.items())),
    }
    width = max(map(len, rows))
    return "\n".join(f"{title:<{width}}  {text}" for title, text in rows.items())


def json_line(result: Classification | ModelInfo, **first: str) -> str:
    """A result as one line of JSON, `first` before its own fields."""
    return json.dumps(first | _short(asdict(result)), ensure_ascii=False)


def error_json(name: str, error: Exception) -> str:
    """A failed file as one line of JSON."""
    described = {"code": type(error).__name__, "details": str(error), "request_id": ""}
    if isinstance(error, WarmlaneError):
        described = {"code": error.code.name, "details": error.details, "request_id": error.request_id}
    return json.dumps({"file": name, "error": described}, ensure_ascii=False)


def _table(predictions: Sequence[Prediction]) -> list[str]:
    width = max((len(str(prediction.index)) for prediction in predictions), default=0)
    return [f"  {p.score:6.4f}  {p.index:>{width}}  {p.label}" for p in predictions]


def _timings(timings: Timings) -> str:
    stages = (f"{stage} {getattr(timings, stage + '_ms'):.2f}" for stage in SHOWN_STAGES)
    return f"{'  '.join(stages)} ms"


def _explanation(explanation: Explanation) -> str:
    size = f"{explanation.width}x{explanation.height}"
    notes = [f"EXIF orientation {explanation.orientation}"] if explanation.orientation > 1 else []
    done = "; ".join([*notes, *explanation.conversions]) or "nothing to convert"
    return f"{explanation.format} {size}, decoded by {explanation.decoder}: {done}"


def _preprocessing(steps: Preprocessing) -> str:
    resize = f"shorter side to {steps.resize_shorter}" if steps.resize_shorter else "to "
    if not steps.resize_shorter:
        resize += f"{steps.resize_height}x{steps.resize_width}"
    return f"resize {resize} ({steps.interpolation}), crop {steps.crop_height}x{steps.crop_width} from the centre"


def _bytes(count: int) -> str:
    return f"{count / 2**20:g} MiB" if count % 2**20 == 0 else f"{count:,} bytes"


def _short(value: Any) -> Any:
    """Floats come out of float32: more than six digits of them are noise."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: _short(item) for key, item in value.items()}
    return [_short(item) for item in value] if isinstance(value, (list, tuple)) else value
