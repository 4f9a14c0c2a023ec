"""Labels of images."""

from collections.abc import Collection, Iterable

UNKNOWN = -1  # the label of an image whose class is not known
NO_CLASS = "(no class)"  # the last class of votes that count what has no score; never certified


def named(classes: Iterable[str]) -> list[str]:
    """The classes that a picture may be of: all but `NO_CLASS`."""
    return [name for name in classes if name != NO_CLASS]


def shifted(labels: Collection[int], outputs: int) -> str:
    """Words on labels beyond ``outputs``: the one number that all are too high by; else empty.

    They count from 1 if the highest is the number of outputs, which count from 0.
    """
    known = [label for label in labels if label != UNKNOWN]
    if not known or min(known) < (excess := max(known) - outputs + 1) or excess < 1:
        return ""
    if excess > 1 and max(known) - min(known) < outputs - 1:
        return ""  # other numbers would do as well
    count = "count from 1, and outputs from 0" if excess == 1 else f"are {excess} too high"
    return f"all labels {count}: subtract {excess} from each"
