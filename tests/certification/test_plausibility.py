"""What says little is named, with what to check; what is plausible is left alone."""

import numpy as np
import pytest
from builders import row

from rrcm.certification.plausibility import TrialAnswers, fact, smoothed, warnings

CLASSES = ["ant", "bee", "cat"]
LABELS = [i % 3 for i in range(99)]
UNKNOWN = [-1] * 99
CATS = [2] * 99
RANDOM = np.random.default_rng(0).integers(0, 3, 99).tolist()


def warned(labels=LABELS, *, plain=LABELS, noisy=LABELS, classes=CLASSES) -> list[str]:
    """Warnings of answers that are right where nothing else is said."""
    tried = TrialAnswers(labels=labels, plain=plain, noisy=noisy)
    return warnings(tried, classes=classes, sigma=0.5)


def test_right_answers_are_plausible():
    some_wrong = [(label + (i % 4 == 0)) % 3 for i, label in enumerate(LABELS)]

    assert warned() == warned(plain=some_wrong, noisy=some_wrong) == warned(UNKNOWN) == []
    assert warned(CATS, plain=CATS, noisy=CATS) == []  # a folder of one class
    assert warned([-1] * 9, plain=[2] * 9, noisy=[1] * 9) == warned([], plain=[], noisy=[]) == []


def test_nearly_all_answers_in_one_class():
    cats = [*CATS[:-2], 0, 1]

    (known,) = warned(plain=cats, noisy=cats)
    (unknown,) = warned(UNKNOWN, plain=cats, noisy=CATS)
    changed, noisy = warned(noisy=cats)

    asked = "97 of 99 pictures are answered 'cat'"
    assert known.startswith(f"{asked} without noise, though 66 are labelled otherwise: check mean")
    assert unknown.startswith(f"{asked} without noise: check mean")
    assert "99 of 99 pictures are right without noise, and 32 under noise" in changed
    assert noisy.startswith(f"{asked} under noise of sigma = 0.5")


def test_answers_that_look_random():
    right = sum(a == b for a, b in zip(LABELS, RANDOM, strict=True))
    (found,) = warned(plain=RANDOM, noisy=RANDOM)
    *_, under = warned(noisy=RANDOM)

    named = f"{right} of 99 pictures are right"
    assert found.startswith(f"{named} without noise, no better than chance: check mean, std")
    assert under.startswith(f"{named} under noise of sigma = 0.5, no better than chance")


@pytest.mark.parametrize("shift", [1, -1])
def test_labels_that_count_from_another_number_are_named(shift: int):
    """As where the first of K + 1 outputs is a background class, which no label is."""
    labels = [2 + i % 3 for i in range(99)]
    plain = [label + (shift if i % 5 else 2 * shift) for i, label in enumerate(labels)]

    (found, *_) = warned(labels, plain=plain, noisy=plain, classes=[*"0123456"])

    assert f"no better than chance: 79 would be right with {shift:+d} added to each label" in found
    assert "would be right" not in "".join(warned(plain=RANDOM, noisy=RANDOM))


@pytest.mark.parametrize("classes", [2, 10])
def test_chance_is_named_only_where_the_answers_say_so(classes: int):
    """2 of 3 right of 10 classes may be luck, by 2.8 %, but are better than chance all the same."""
    for total in (3, 10, 60):
        for right in range(total + 1):
            labels = [i % (classes - 1) + 1 for i in range(total)]
            answers = [*labels[:right], *([0] * (total - right))]
            if right < 0.05 * total:
                continue  # nearly all are one class, which is said instead
            names = [str(i) for i in range(classes)]
            said = " ".join(warned(labels, plain=[], noisy=answers, classes=names))

            if "no better than chance" in said:
                assert right * classes <= total
            if "hardly better than chance" in said:
                assert 1 / classes < right / total < (1 + 1 / classes) / 2


def test_most_answers_lost_in_noise():
    half = [(label + (i < 51)) % 3 for i, label in enumerate(LABELS)]  # 48 are right
    most = [(label + (i < 48)) % 3 for i, label in enumerate(LABELS)]  # 51 are

    (known,) = warned(noisy=half)
    (unknown,) = warned(UNKNOWN, noisy=half)

    assert known.startswith(
        "99 of 99 pictures are right without noise, and 48 under noise of sigma"
    )
    assert unknown.startswith("51 of 99 pictures change their answer under noise of sigma = 0.5")
    assert "a certificate is about the answer under noise" in known
    assert warned(noisy=most) == warned(UNKNOWN, noisy=most) == []


def test_chance_is_exceeded_by_luck_one_time_in_a_hundred():
    """Simulated: of 1000 networks that guess, all but about 1 % are named."""
    rng = np.random.default_rng(0)
    named = 0
    for guesses in rng.integers(0, 3, (1000, 99)):
        named += bool(warned(plain=[], noisy=guesses.tolist()))

    assert 970 <= named <= 1000


def test_facts_count_what_is_right_or_kept():
    rows = [row(0, 1, [2, 5, 3]), row(1, 2, [4, 4, 2]), row(2, 0, [0, 0, 0])]
    assert smoothed(rows) == ([1, 2], [1, 0])  # the lowest class of equals; none was drawn
    known = TrialAnswers(labels=[0, 1, -1, 2], plain=[0, 1, 1, 0], noisy=[0, 2, 1, 0])
    unknown = TrialAnswers(labels=[-1] * 3, plain=[0, 1, 1], noisy=[0, 2, 1])

    under = "under noise of sigma = 0.25"
    assert fact(known, sigma=0.25) == f"2 of 3 right without noise, 1 of 3 {under}"
    assert fact(unknown, sigma=0.25) == f"2 of 3 pictures keep their answer {under}"
