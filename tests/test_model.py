"""Where models come from, and what is said when one cannot be had. Nothing here touches the network."""

import dataclasses
import pickle
import re
import subprocess
import sys
import urllib.error
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torchvision import models

from pipeline.model import Model, ModelError, imagenet_labels, load_model
from pipeline.options import DEFAULT_MODEL
from pipeline.preprocess import Preprocess

# The smallest of torchvision's.
SMALL = "squeezenet1_1"
CLASSES = 5


class Pool(nn.Module):
    """Colour means to classes: quick, and of any input size."""

    def __init__(self, classes: int = CLASSES) -> None:
        super().__init__()
        self.linear = nn.Linear(3, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.linear(images.mean(dim=(2, 3)))
        return logits


def tiny() -> nn.Module:
    torch.manual_seed(3)
    return Pool()


def not_a_module() -> str:
    return "a string"


def half_precision() -> nn.Module:
    return Pool().half()


def wrong_output() -> nn.Module:
    return nn.Identity()


def broken_factory() -> nn.Module:
    raise AttributeError("no such layer")


TINY = f"{__name__}:tiny"


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: Any, **__: Any) -> None:
        raise urllib.error.URLError("Network is unreachable")

    monkeypatch.setattr(torch.hub, "load_state_dict_from_url", unreachable)
    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", unreachable)


@pytest.fixture
def labels(tmp_path: Path) -> Path:
    path = tmp_path / "labels.txt"
    path.write_text("".join(f"thing {index}\n" for index in range(CLASSES)), encoding="utf-8")
    return path


def one_line(refused: pytest.ExceptionInfo[ModelError]) -> str:
    message = str(refused.value)
    assert "\n" not in message
    return message


def test_the_default_knows_imagenet(default_model: Model) -> None:
    assert default_model.name == DEFAULT_MODEL == "efficientnet-lite0"
    assert len(default_model.labels) == 1000
    assert default_model.labels[281:286] == ("tabby", "tiger cat", "Persian cat", "Siamese cat", "Egyptian cat")
    assert default_model.labels[967] == "espresso"
    assert default_model.activation == "softmax"
    assert re.fullmatch(r"sha256:[0-9a-f]{12}", default_model.version)


def test_imagenets_classes_are_torchvisions() -> None:
    assert imagenet_labels() == tuple(models.ResNet50_Weights.DEFAULT.meta["categories"])


def test_the_default_is_loaded_without_torchvision() -> None:
    """Which would take a second and 110 MiB."""
    script = "import sys; from pipeline.model import load_model; load_model(); sys.exit('torchvision' in sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True, cwd=Path(__file__).parent.parent)


def test_the_default_is_preprocessed_as_it_was_trained(default_model: Model) -> None:
    preprocess = default_model.preprocess
    assert (preprocess.resize, preprocess.crop, preprocess.interpolation) == (256, (224, 224), "bicubic")
    # (x - 127) / 128 of 0..255.
    for mean, std in zip(preprocess.mean, preprocess.std, strict=True):
        assert mean * 255 == pytest.approx(127)
        assert std * 255 == pytest.approx(128)


def test_a_model_is_ready_to_be_served(default_model: Model) -> None:
    assert not default_model.module.training
    assert not any(parameter.requires_grad for parameter in default_model.module.parameters())


def test_the_version_is_the_weights(default_model: Model) -> None:
    again, other = load_model(TINY), Pool()
    assert load_model(TINY).version == again.version
    with torch.no_grad():
        again.module.state_dict()["linear.bias"][0] += 1e-6
    assert load_model(TINY).version != default_model.version
    versions = {load_model(TINY).version, _version_of(again.module), _version_of(other)}
    assert len(versions) == 3


def _version_of(module: nn.Module) -> str:
    from pipeline.model import _digest

    return _digest(module)


def test_torchvision_by_name_without_weights() -> None:
    model = load_model(SMALL, weights="none")
    assert model.name == SMALL
    assert model.labels == tuple(models.SqueezeNet1_1_Weights.DEFAULT.meta["categories"])
    assert model.preprocess == Preprocess(resize=256, crop=(224, 224), interpolation="bilinear")
    with torch.inference_mode():
        assert model.module(torch.zeros(1, 3, 224, 224)).shape == (1, 1000)


def test_published_transforms_are_taken_over() -> None:
    model = load_model("mobilenet_v3_small", weights="none", overrides={})
    assert model.preprocess == Preprocess(resize=256)
    # A model whose published weights want another size and filter.
    published = models.get_model_weights("efficientnet_b1").DEFAULT.transforms()
    from pipeline.model import _published_preprocess

    ours = _published_preprocess(models.get_model_weights("efficientnet_b1").DEFAULT)
    assert (ours.resize, ours.crop[0]) == (published.resize_size[0], published.crop_size[0]) == (255, 240)
    assert ours.interpolation == published.interpolation.value == "bilinear"


def test_every_published_transform_is_this_chain() -> None:
    from pipeline.model import _published_preprocess

    for name in models.list_models(module=models):
        preprocess = _published_preprocess(models.get_model_weights(name).DEFAULT)
        assert min(preprocess.crop) >= 128, name


def test_weights_that_cannot_be_downloaded_name_the_ways_out() -> None:
    with pytest.raises(ModelError, match="could not be downloaded") as refused:
        load_model(SMALL)
    message = one_line(refused)
    for way in (SMALL, "Network is unreachable", "--weights PATH", "--weights none", f"--model {DEFAULT_MODEL}"):
        assert way in message


@pytest.mark.parametrize("suffix", [".pt", ".pth", ".safetensors"])
def test_weights_from_a_file(tmp_path: Path, suffix: str) -> None:
    torch.manual_seed(1)
    source = models.get_model(SMALL, weights=None).eval()
    path = tmp_path / f"weights{suffix}"
    save_file(source.state_dict(), path) if suffix == ".safetensors" else torch.save(source.state_dict(), path)
    model = load_model(SMALL, weights=str(path))
    image = torch.rand(1, 3, 224, 224)
    with torch.inference_mode():
        assert torch.equal(model.module(image), source(image))
    assert model.version != load_model(SMALL, weights="none").version


def test_a_training_checkpoint_is_a_state_dict_in_a_box(tmp_path: Path) -> None:
    torch.manual_seed(2)
    source = Pool()
    torch.save({"state_dict": source.state_dict(), "epoch": 90}, tmp_path / "checkpoint.pt")
    assert load_model(TINY, weights=str(tmp_path / "checkpoint.pt")).version == _version_of(source)


class Rogue:
    """Runs code when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.mark,))


@pytest.mark.parametrize("save", [torch.save, lambda rogue, path: path.write_bytes(pickle.dumps(rogue))])
def test_a_pickle_with_code_is_refused(tmp_path: Path, save: Any) -> None:
    mark, path = tmp_path / "was here", tmp_path / "weights.pt"
    save({"linear.weight": torch.zeros(5, 3), "linear.bias": Rogue(mark)}, path)
    with pytest.raises(ModelError, match=re.escape(str(path))) as refused:
        load_model(TINY, weights=str(path))
    one_line(refused)
    assert not mark.exists()


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({"linear.weight": torch.zeros(7, 3), "linear.bias": torch.zeros(7)}, "size mismatch"),
        ({"linear.weight": torch.zeros(CLASSES, 3)}, "Missing key"),
        (
            {"linear.weight": torch.zeros(CLASSES, 3), "linear.bias": torch.zeros(CLASSES), "x": torch.zeros(1)},
            "Unexpected",
        ),
        ([1, 2], "does not fit"),
    ],
)
def test_weights_of_another_model(tmp_path: Path, state: Any, words: str) -> None:
    torch.save(state, tmp_path / "weights.pt")
    with pytest.raises(ModelError, match=words) as refused:
        load_model(TINY, weights=str(tmp_path / "weights.pt"))
    one_line(refused)


@pytest.mark.parametrize("name", ["weights.pt", "weights.safetensors"])
def test_weights_that_are_no_weights(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"<html>not found</html>")
    with pytest.raises(ModelError, match="does not fit the model") as refused:
        load_model(TINY, weights=str(tmp_path / name))
    assert "weights_only" not in one_line(refused), "advises to load code"


def test_weights_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no such file"):
        load_model(TINY, weights=str(tmp_path / "nothing.pt"))


def test_a_factory_of_the_users_own(labels: Path) -> None:
    model = load_model(TINY, labels=labels, activation="sigmoid")
    assert isinstance(model.module, Pool)
    assert model.labels == tuple(f"thing {index}" for index in range(CLASSES))
    assert model.activation == "sigmoid"
    assert load_model(TINY).labels == tuple(f"class {index}" for index in range(CLASSES))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("resnet5000", "unknown model 'resnet5000'.*torchvision.*package.module:factory"),
        ("", "unknown model"),
        ("no.such.package:factory", "No module named"),
        (f"{__name__}:missing", "missing"),
        (":factory", "takes package.module:factory"),
        ("package:", "takes package.module:factory"),
        ("../relative:factory", "takes package.module:factory"),
        (f"{__name__}:broken_factory", "no such layer"),
        (f"{__name__}:not_a_module", "returned a str, not an nn.Module"),
        (f"{__name__}:half_precision", r"fails with float32 images of \(224, 224\) \(--crop\): mat1 and mat2"),
        (f"{__name__}:wrong_output", r"must map \[B, 3, H, W\] to \[B, classes\]"),
        ("fasterrcnn_resnet50_fpn", "unknown model"),
    ],
)
def test_names_that_are_no_models(name: str, words: str) -> None:
    with pytest.raises(ModelError, match=words) as refused:
        load_model(name)
    one_line(refused)


def test_labels_that_do_not_fit(labels: Path) -> None:
    labels.write_text("only\nthree\nlabels\n")
    with pytest.raises(ModelError, match="has 5 classes but there are 3 labels: --labels FILE"):
        load_model(TINY, labels=labels)


def test_labels_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="No such file"):
        load_model(TINY, labels=tmp_path / "nothing.txt")


def test_labels_that_do_not_fit_the_default(labels: Path) -> None:
    with pytest.raises(ModelError, match="has 1000 classes but there are 5 labels: --labels FILE"):
        load_model(DEFAULT_MODEL, labels=labels)


@pytest.mark.parametrize(("content", "words"), [(b"", "is empty"), (b"\xff\xd8\xff\xe0", "not a text file")])
def test_labels_that_are_none(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "labels.txt").write_bytes(content)
    with pytest.raises(ModelError, match=words):
        load_model(TINY, labels=tmp_path / "labels.txt")


def test_labels_may_begin_with_the_mark_of_windows(labels: Path) -> None:
    labels.write_bytes(b"\xef\xbb\xbf" + labels.read_bytes().replace(b"\n", b"\r\n"))
    assert load_model(TINY, labels=labels).labels == tuple(f"thing {index}" for index in range(CLASSES))


def test_labels_set_the_number_of_classes(labels: Path) -> None:
    for name in (SMALL, DEFAULT_MODEL):
        model = load_model(name, weights="none", labels=labels)
        assert len(model.labels) == CLASSES
        with torch.inference_mode():
            assert model.module(torch.zeros(1, 3, *model.preprocess.crop)).shape == (1, CLASSES)


@pytest.mark.parametrize("name", [SMALL, DEFAULT_MODEL])
def test_published_weights_have_the_classes_that_they_have(
    name: str, labels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = models.get_model(SMALL, weights=None).state_dict()
    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", lambda *_, **__: state)
    with pytest.raises(ModelError, match=r"label|size mismatch") as refused:
        load_model(name, labels=labels)
    one_line(refused)


def test_overrides(default_model: Model) -> None:
    overrides: dict[str, Any] = {
        "resize": 224,
        "crop": (192, 160),
        "interpolation": "bilinear",
        "mean": (0.5, 0.5, 0.5),
    }
    preprocess = load_model(TINY, overrides=overrides).preprocess
    assert preprocess == dataclasses.replace(Preprocess(), **overrides)
    assert preprocess.std == Preprocess().std
    with pytest.raises(ModelError, match="does not fit into resize"):
        load_model(TINY, overrides={"crop": (300, 300)})
