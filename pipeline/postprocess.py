"""From logits to the top-k: the last step inside the graph."""

from torch import Tensor

from pipeline.options import MAX_TOP_K, Activation


def top_scores(logits: Tensor, activation: Activation) -> tuple[Tensor, Tensor]:
    """Probabilities and classes of the best predictions.

    Args:
        logits: [B, classes].

    Returns:
        float32 [B, K], falling, and int32 [B, K], with K the smaller of `MAX_TOP_K` and the number of classes.
    """
    logits = logits.float()
    scores = logits.softmax(dim=1) if activation == "softmax" else logits.sigmoid()
    values, indices = scores.topk(min(MAX_TOP_K, logits.shape[1]), dim=1)
    return values, indices.int()
