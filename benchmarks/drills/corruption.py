"""Damages files of every kind that a command reads, and counts how they are read.

``python -m benchmarks.drills.corruption`` makes a small file of each kind, damages it 100 times
(bits flipped, truncation, zeros, noise, bytes inserted and removed) and lets the product read each.
It prints a table, and fails if a file was read as something else without an error, ended in a
traceback, or took too long. Damage cannot be detected in files that other programs or people write:
those that are read as something else are counted separately.
"""

import os
import pickle
import signal
import sys
import tempfile
import time
import warnings
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.drills.kinds import Kind, foreign, kinds
from rrcm.core.errors import RrcmError

TRIES, LONGEST = 100, 60  # per kind; seconds after which a reader counts as hanging


@dataclass(kw_only=True)
class Counts:
    """The outcomes for the damaged files of a kind; ``seconds`` is the longest read."""

    refused: int = 0
    unchanged: int = 0
    other: int = 0
    tracebacks: list[str] = field(default_factory=list)
    hangs: int = 0
    seconds: float = 0.0


class Hang(BaseException):
    """A reader took too long."""


def damaged(content: bytes, rng: np.random.Generator) -> bytes:
    """``content`` with random damage, as by disks, networks or people; never unchanged."""
    found = content
    while found == content:
        size, at = len(content), int(rng.integers(len(content)))
        length = min(int(rng.integers(1, 513)), size - at)
        noise = rng.bytes(length)
        match int(rng.integers(7)):
            case 0 | 1:
                flipped = bytearray(content)
                for place in rng.integers(size, size=int(rng.choice([1, 1, 8]))):
                    flipped[place] ^= 1 << int(rng.integers(8))
                found = bytes(flipped)
            case 2:
                found = content[:at]
            case 3:
                found = content[:at] + bytes(length) + content[at + length :]
            case 4:
                found = content[:at] + noise + content[at + length :]
            case 5:
                found = content[:at] + noise[:8] + content[at:]
            case 6:
                found = content[:at] + content[at + length :]
    return found


@contextmanager
def limited(seconds: int = LONGEST) -> Iterator[None]:
    """Raise `Hang` in the block once so many seconds have passed."""

    def stop(*_: object) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def attempt(counts: Counts, read: Callable[[], Any], judge: Callable[[Any], bool]) -> None:
    """Read a file, and count the outcome; ``judge`` decides whether the result is the original."""
    began = time.monotonic()
    try:
        with limited():
            same = judge(read())
        counts.unchanged += same
        counts.other += not same
    except RrcmError as error:
        if "\n" in str(error):
            counts.tracebacks.append(f"more than a line: {error!r}")
        else:
            counts.refused += 1
    except Hang:
        counts.hangs += 1
    except BaseException as error:  # any other exception is a failure of the product
        counts.tracebacks.append(repr(error)[:200])
    counts.seconds = max(counts.seconds, time.monotonic() - began)


def tried(kind: Kind, *, tries: int, seed: int = 0) -> Counts:
    """Damage a file of a kind ``tries`` times, in place, and count; it is restored afterwards."""
    content, counts, rng = kind.file.read_bytes(), Counts(), np.random.default_rng(seed)
    whole = kind.read(kind.file)
    assert kind.part(kind.read(kind.file), whole), f"{kind.name}: two readings differ"
    for _ in range(tries):
        kind.file.write_bytes(damaged(content, rng))
        attempt(counts, lambda: kind.read(kind.file), lambda found: kind.part(found, whole))
    kind.file.write_bytes(content)
    return counts


def hostile(folder: Path) -> list[Path]:
    """Malicious state dicts; none may be loaded, execute anything, or take long."""

    class Reduced:
        def __init__(self, *reduced: Any) -> None:
            self.reduced = reduced

        def __reduce__(self) -> tuple[Any, ...]:
            return self.reduced

    nested: Any = []
    for _ in range(300):
        nested = [nested]
    other = {"items": "no method", "get": "no method", "keys": "no method"}
    shadowed = Reduced(OrderedDict, (), other, None, iter([("a", torch.ones(1))]))
    values: dict[str, Any] = {
        "runs": {"a": Reduced(os.mkdir, (str(folder / "ran"),))},
        "runs-within": {"a": [Reduced(exec, (f"open({str(folder / 'ran')!r}, 'w')",))]},
        "nested": {"a": nested},
        "sparse": {"a": torch.ones(3).to_sparse()},
        "wide": {"a": torch.ones(1).expand(2**40)},
        "nowhere": {"a": torch.empty(2**40, device="meta")},
        "complex": {"a": torch.ones(2, dtype=torch.complex64)},
        "numbers": {"a": 2**100_000},
        "keys": {3: torch.ones(1)},
        "list": [torch.ones(1)],
        "empty": {},
    }
    made = []
    for name, value in values.items():
        for way in (True, False):
            made.append(folder / f"{name}-{'zip' if way else 'legacy'}.pth")
            torch.save(value, made[-1], _use_new_zipfile_serialization=way)
    raw = {
        "deep": b"\x80\x02" + b"(" * 10**6 + b".",
        "lists": b"\x80\x02" + b"]" * 10**5 + b"a" * (10**5 - 1) + b".",
        "long": b"\x80\x02\x8b\xff\xff\xff\x7f.",
        "string": b"\x80\x04\x8d" + b"\xff" * 7 + b"\x7f.",
        "bytes": b"\x80\x02cbuiltins\nbytearray\n\x8a\x05\x00\x00\x00\x00\x7f\x85R.",
        "memo": b"\x80\x02r\xff\xff\xff\xff.",
    }
    for name, content in raw.items():
        made.append(folder / f"{name}.pth")
        made[-1].write_bytes(content)
    made += [*_archives(folder), folder / "fifo.pth", folder / "fifo.safetensors"]
    os.mkfifo(made[-1])
    os.mkfifo(made[-2])
    made += [Path("/dev/zero"), folder]
    torch.save(shadowed, folder / "shadowed.pth")  # a state dict apart from that
    return made


def _archives(folder: Path) -> list[Path]:
    """Zip files that declare more than they contain, or decompress to very much."""
    torch.save({"a": torch.zeros(1000)}, folder / "good.pth")
    bomb, short, twice = (folder / f"{name}.pth" for name in ("bomb", "short", "twice"))
    with zipfile.ZipFile(folder / "good.pth") as good:
        parts = {part.filename: good.read(part) for part in good.infolist()}
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in parts.items():
            file.writestr(name, bytes(10**8) if name.endswith("/data/0") else content)
    with zipfile.ZipFile(short, "w") as file:
        for name, content in parts.items():
            file.writestr(name, content[:100] if name.endswith("/data/0") else content)
    with warnings.catch_warnings(), zipfile.ZipFile(twice, "w") as file:
        warnings.simplefilter("ignore")  # about duplicate names
        for name, content in [*parts.items(), *parts.items()]:
            file.writestr(name, pickle.dumps(0) if name.endswith("data.pkl") else content)
    return [bomb, short, twice]


def harmed(folder: Path) -> Counts:
    """Outcomes for `hostile` files; a file that was loaded or executed counts as other content."""
    counts = Counts()
    for path in hostile(folder):
        attempt(counts, lambda path=path: foreign(path), lambda _: False)
    counts.other += (folder / "ran").exists()
    attempt(counts, lambda: foreign(folder / "shadowed.pth"), lambda _: True)
    return counts


def table(tries: int) -> tuple[str, list[str]]:
    """A Markdown table with a line for each kind, and a line for each failure."""
    head = (
        "kind",
        "tries",
        "refused",
        "unchanged",
        "other, unknowable",
        "taken for what it is not",
    )
    head += ("tracebacks", "hangs", "longest, s")
    lines, wrong = [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}"], []
    with tempfile.TemporaryDirectory() as scratch, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings of libraries about damaged files
        root = Path(scratch)
        found = [(kind.name, kind.knows, tried(kind, tries=tries)) for kind in kinds(root)]
        (root / "hostile").mkdir()
        found.append(("state dicts that mean harm", True, harmed(root / "hostile")))
    for name, knows, counts in found:
        count = counts.refused + counts.unchanged + counts.other + counts.hangs
        taken = counts.other if knows else 0
        cells = (name, count + len(counts.tracebacks), counts.refused, counts.unchanged)
        cells += (counts.other - taken, taken, len(counts.tracebacks), counts.hangs)
        lines.append(f"| {' | '.join(map(str, cells))} | {counts.seconds:.1f} |")
        wrong += [f"{name}: {each}" for each in counts.tracebacks]
        wrong += [f"{name}: {counts.hangs} hang"] * (counts.hangs > 0)
        wrong += [f"{name}: {taken} were taken for what they are not"] * (taken > 0)
    return "\n".join(lines), wrong


def main() -> None:
    text, wrong = table(int(sys.argv[1]) if len(sys.argv) > 1 else TRIES)
    print(text)
    if wrong:
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main()
