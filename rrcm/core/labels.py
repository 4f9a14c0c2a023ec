"""Labels of images."""

from collections.abc import Collection, Iterable

UNKNOWN = -1  # the label of an image whose class is not known
NO_CLASS = "(no class)"  # the last class of votes that count what has no score; never certified


def named(classes: Iterable[str]) -> list[str]:
    """The classes that a picture may be of: all but `NO_CLASS`."""
    return [name for name in classes if name != NO_CLASS]


def shifted(labels: Collection[int], outputs: int) -> str:
    """Words on labels beyond ``outputs``: the one number that all are too high by; else empty.

    By one, if no label is 0 and the highest is the number of outputs; by more, only if each of the
    outputs has labels.
    """
    known = {label for label in labels if label != UNKNOWN}
    if not known or min(known) < (excess := max(known) - outputs + 1) or excess < 1:
        return ""
    if excess == 1:
        return "no label is 0: if they count from 1, subtract 1 from each"
    every = len(known) == outputs
    return f"all labels are {excess} too high: subtract {excess} from each" if every else ""
