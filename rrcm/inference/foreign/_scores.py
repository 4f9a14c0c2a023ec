"""Scores of classes from what networks of others return."""

import torch
from torch import Tensor

from rrcm.core.errors import BackendError


def of_classes(output: Tensor, *, rows: int, classes: int | None, boundary: float = 0.0) -> Tensor:
    """Float32 scores [B, K], whose highest is the class, of the ``output`` for ``rows`` pictures.

    It may be scores [B, K], or one score [B] of two classes that ``boundary`` parts, or numbers [B]
    of so many ``classes``, whose score becomes 1 and that of others 0; each with further axes of
    length 1, such as [B, K, 1, 1], and [K] for a single picture. Any other is returned as it is.

    Raises:
        ValueError: It is class numbers, and ``classes`` is None.
        BackendError: A class number is none of ``classes``.
    """
    sides = [side for side in output.shape[int(rows > 1) :] if side != 1]
    if len(sides) > 1 or (rows > 1 and output.shape[:1] != (rows,)):
        return output.float()
    output = output.reshape(rows, -1)
    if output.shape[1] > 1:
        return output.float()
    if output.is_floating_point():
        return torch.cat([torch.full_like(output, boundary), output], dim=1).float()
    if classes is None:
        raise ValueError("it gives class numbers; of how many? name the classes (--classes)")
    known = torch.arange(classes, device=output.device)
    scores = (output == known).float()
    if not bool(scores.any(dim=1).all()):
        largest = int(output.max())
        raise BackendError(f"the network gives the class number {largest} of {classes} classes")
    return scores


def with_no_class(scores: Tensor) -> Tensor:
    """Scores [B, K + 1] whose last class has the rows of ``scores`` [B, K] that have none else.

    These are rows with NaN, or whose highest score is infinite. For all others it is masked out.
    """
    undefined = ~scores.amax(1, keepdim=True).isfinite()
    last = torch.full_like(scores[:, :1], -torch.inf).masked_fill(undefined, 0.0)
    return torch.cat([scores.masked_fill(undefined, -torch.inf), last], dim=1)


def refuse_probability(scores: Tensor) -> None:
    """Refuse ``scores`` [B, 2] of several pictures that a single score made, and that has no sign.

    Raises:
        BackendError: All of them are as `of_classes` makes them of probabilities parted at 0.
    """
    zero, single = scores.unbind(dim=1)
    if bool((zero == 0).all() and (single >= 0).all() and (single <= 1).all()):
        raise BackendError(
            "the network gives one number from 0 to 1, as a probability, and all pictures would be "
            "of class 1, as a logit parts two classes at 0; have it return the logit"
        )
