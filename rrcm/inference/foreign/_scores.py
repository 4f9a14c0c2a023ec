"""Scores of classes from what networks of others return."""

import torch
from torch import Tensor

from rrcm.core.errors import BackendError

WIDE = (torch.float64, torch.int64, torch.int32)  # of which float32 makes two scores one
RANKED = 5  # scores of a row; fewer may fall from the first on by chance


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
        scores = output.float()
        if output.dtype in WIDE:
            highest = output.amax(1, keepdim=True)
            met = scores.argmax(1, keepdim=True) != output.argmax(1, keepdim=True)
            scores = torch.where(met, (output - highest).float(), scores)
        return scores
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


def refuse_ranked(scores: Tensor) -> None:
    """Refuse ``scores`` [B, K] of several pictures that are the highest of more, or their classes.

    Raises:
        BackendError: All rows fall, or all are whole numbers of which none comes twice.
    """
    apart = scores.sort(dim=1).values.diff(dim=1).amin(dim=1) > 0
    whole = bool((scores == scores.round()).all() and apart.all())
    if scores.shape[1] >= RANKED and (whole or bool((scores.diff(dim=1) <= 0).all() & apart.all())):
        raise BackendError(
            f"the network gives {scores.shape[1]} "
            + ("whole numbers, all different," if whole else "scores that fall from the first on")
            + " whatever the picture, as a list of the likeliest classes; have it return the "
            "score of each class"
        )


def refuse_no_logit(scores: Tensor) -> None:
    """Refuse ``scores`` [B, 2] of several pictures that a single number made which is no logit.

    Raises:
        BackendError: All of them are as `of_classes` makes them of probabilities parted at 0, or
            of class numbers that are no integers.
    """
    zero, single = scores.unbind(dim=1)
    if not (zero == 0).all():
        return
    if bool((single == single.round()).all()):
        raise BackendError(
            "the network gives one whole number, as the number of a class, but not as an integer; "
            "have it return int64, and name the classes (--classes), or return the scores"
        )
    if bool((single >= 0).all() and (single <= 1).all()):
        raise BackendError(
            "the network gives one number from 0 to 1, as a probability, and all pictures would be "
            "of class 1, as a logit parts two classes at 0; have it return the logit"
        )
