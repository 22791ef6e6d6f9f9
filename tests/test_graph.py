"""The graph against the same steps taken one by one."""

import dataclasses

import numpy as np
import pytest
import torch

from pipeline.canvas import place
from pipeline.graph import Graph, example_inputs
from pipeline.options import MAX_TOP_K
from pipeline.postprocess import top_scores
from pipeline.reference import normalize, reference_levels
from tests.tiny_model import CANVAS, CLASSES, CROP_CANVAS, PREPROCESS, BranchesOnPixels, layers, model


@pytest.mark.parametrize("side", [CANVAS, CROP_CANVAS])
def test_the_graph_is_its_steps(side: int) -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (40, 44, 3), dtype=np.uint8)
    slot = np.zeros((side, side, 3), np.uint8)
    geometry = torch.tensor([place(pixels, 1, PREPROCESS, slot).row()])
    with torch.inference_mode():
        expected = layers()(normalize(reference_levels(pixels, PREPROCESS), PREPROCESS)[None]).softmax(dim=1)[0]
        scores, indices = Graph(model(), side)(torch.from_numpy(slot).permute(2, 0, 1)[None], geometry)
    apart = (scores[0] - expected[indices[0].long()]).abs().max().item()
    assert apart < 5e-3, f"scores are {apart} apart"
    assert sorted(indices[0].tolist()) == list(range(CLASSES))


def test_the_graph_leaves_the_models_layers_alone() -> None:
    for module in (layers(), BranchesOnPixels()):
        before = {key: tensor.clone() for key, tensor in module.state_dict().items()}
        Graph(model(module), CANVAS, torch.float16)
        after = module.state_dict()
        assert before.keys() == after.keys()
        for key, tensor in before.items():
            assert tensor.dtype == after[key].dtype
            assert torch.equal(tensor, after[key])


def test_sigmoid_scores_each_class_by_itself() -> None:
    logits = torch.tensor([[0.0, 2.0, -1.0]])
    scores, indices = top_scores(logits, "sigmoid")
    assert indices.tolist() == [[1, 0, 2]]
    torch.testing.assert_close(scores, torch.tensor([[2.0, 0.0, -1.0]]).sigmoid())
    graph = Graph(dataclasses.replace(model(), activation="sigmoid"), CROP_CANVAS)
    with torch.inference_mode():
        assert graph(*example_inputs(1, CROP_CANVAS, torch.device("cpu")))[0].sum() != pytest.approx(1.0)


@pytest.mark.parametrize(("classes", "kept"), [(3, 3), (MAX_TOP_K, MAX_TOP_K), (1000, MAX_TOP_K)])
def test_top_scores_fall_and_are_of_their_classes(classes: int, kept: int) -> None:
    logits = torch.randn(4, classes, generator=torch.Generator().manual_seed(classes)).half()
    scores, indices = top_scores(logits, "softmax")
    assert scores.shape == indices.shape == (4, kept)
    assert (scores.dtype, indices.dtype) == (torch.float32, torch.int32)
    assert (scores.diff(dim=1) <= 0).all()
    probabilities = logits.float().softmax(dim=1)
    assert torch.equal(scores, probabilities.gather(1, indices.long()))
    assert torch.equal(scores[:, 0], probabilities.amax(dim=1))
