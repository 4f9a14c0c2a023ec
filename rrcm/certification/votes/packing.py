"""Packs the looks of an image into a short text, for rules that look hundreds of times.

``5 3 0:CFE 7:C`` is: 5 looks; class 3 has the draws of each look that no other class has; then each
other class, with its new votes at each look. These are numbers in Base64 VLQ, as in source maps:
k > 0 is k votes at a look, -k is k looks without a vote, and looks behind the last are without. How
many draws were made at each look is kept once for all images of a file. No compression library is
used, as the bytes that it writes depend on its version.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from string import ascii_letters, ascii_uppercase, digits

Looks = list[tuple[int, dict[int, int]]]  # cumulative (draws, votes) at each look

DIGITS = "".join([ascii_uppercase, ascii_letters[:26], digits, "+/"])  # of Base64
BITS, MORE = 5, 32  # of a digit; the bit that says that another digit follows
MOST_BITS = 64  # of a number


def pack(looks: Looks) -> str:
    """The text of ``looks``, of which there is at least one."""
    last = looks[-1][1]
    rest = max(last, key=last.__getitem__, default=0)
    others = [label for label in sorted(last) if last[label] and label != rest]
    parts = [f"{label}:{_coded(label, looks)}" for label in others]
    return " ".join([str(len(looks)), str(rest), *parts])


def unpack(text: str, draws: Sequence[int]) -> Looks:
    """The looks that `pack` wrote, at the first of ``draws``; votes of 0 are left out.

    Raises:
        ValueError: ``text`` is no such text, or has more looks than there are ``draws``.
    """
    count, rest, *parts = text.split(" ")
    draws = draws[: int(count)]
    if len(draws) != int(count):
        raise ValueError(f"{count[:30]} looks")
    columns = {}
    for part in parts:
        label, _, coded = part.partition(":")
        columns[int(label)] = [*accumulate(_steps(coded, len(draws)))]
    if int(rest) in columns or len(columns) != len(parts):
        raise ValueError("a class comes twice")
    looks = []
    for place, drawn in enumerate(draws):
        votes = {label: column[place] for label, column in columns.items()}
        votes[int(rest)] = drawn - sum(votes.values())
        looks.append((drawn, {label: votes[label] for label in sorted(votes) if votes[label]}))
    return looks


def _coded(label: int, looks: Looks) -> str:
    counts = [0, *(votes.get(label, 0) for _, votes in looks)]
    steps = [after - before for before, after in pairwise(counts)]
    while not steps[-1]:
        steps.pop()
    numbers: list[int] = []
    for step in steps:
        if step or not numbers or numbers[-1] > 0:
            numbers.append(step or -1)
        else:
            numbers[-1] -= 1
    return "".join(map(_digits, numbers))


def _steps(coded: str, count: int) -> list[int]:
    steps: list[int] = []
    for number in _numbers(coded):
        if len(steps) + max(1, -number) > count:
            raise ValueError(f"more than {count} looks")
        steps += [number] if number > 0 else [0] * -number
    return steps + [0] * (count - len(steps))


def _digits(number: int) -> str:
    """``number`` in Base64 VLQ: five bits a digit from the lowest, the first of them the sign."""
    rest, text = abs(number) << 1 | (number < 0), ""
    while rest >= MORE:
        text += DIGITS[rest % MORE | MORE]
        rest >>= BITS
    return text + DIGITS[rest]


def _numbers(coded: str) -> Iterator[int]:
    rest = shift = 0
    for character in coded:
        digit = DIGITS.index(character)
        rest |= digit % MORE << shift
        shift += BITS
        if digit < MORE:
            yield -(rest >> 1) if rest & 1 else rest >> 1
            rest = shift = 0
        elif shift > MOST_BITS:
            raise ValueError("a number beyond any count")
    if shift:
        raise ValueError("the last number has no end")
