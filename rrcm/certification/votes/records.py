"""Reads and writes votes files: the class votes of every image, from which radii are computed.

The first line is a header that defines the votes, every other line is an image. Equal headers mean
equal votes for an image, up to the rounding of the processor. Each line ends in its own checksum,
so that damage is detected. Votes of rules that look hundreds of times are packed: the header then
names another format and has the numbers of draws of all looks, and lines have the rest (`packing`).
"""

import dataclasses
import hashlib
import json
import math
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import index  # int(), but for whole numbers only
from pathlib import Path
from typing import Any

import numpy as np

from rrcm.certification.votes import packing
from rrcm.certification.votes.counts import Claim, ImageVotes, Rule
from rrcm.core import formats, registry
from rrcm.core.errors import CertificateError, ConfigError, VotesError
from rrcm.core.files import atomic, read_bytes, require_file
from rrcm.core.labels import UNKNOWN
from rrcm.core.schema import parse

FORMAT, PACKED = "rrcm-votes-6", "rrcm-votes-7"  # of a file; in memory both are FORMAT
START = '{"format":"rrcm-votes-'  # of the first line
LOOKS = 1000  # the most looks in such a file
END, BUDGET = "n", "budget"  # reasons to stop besides those of rules
MOST = 10**12  # largest number of draws or images of a file
NAMES = ("run", "stop", "split", "subset")  # header fields that become parts of file names
KEY_OF = "; key of the split "  # in a stream: what follows names a split with noise of its own
# Parts of both formats that earlier versions set otherwise: of a header, after alpha; of a row.
CONSTANT: dict[str, Any] = {"label_aware": False, "soft": 0.0, "paired": 0}
CONSTANT_OF_ROW = {"soft": [0, 0], "paired": [0, 0]}


@dataclass(frozen=True, kw_only=True, slots=True)
class Header:
    """Everything that defines the votes, in the order of the file.

    ``noise`` is a file of rrcm/certification/distributions/, ``stream`` its random numbers
    (`stream`), and ``slack`` its total-variation distance from Gaussian noise per draw. ``weights``
    is the SHA-256 of the classifier, ``provider`` the kernels that ran it; ``batch_size`` is
    included because kernels may round differently in another batch shape. ``stopping`` are the
    constants of the rule ``stop``, which serves ``certificate`` at failure probability ``alpha``.
    ``budget``: seconds after which sampling stopped, or 0. ``subset`` selects ``images`` of
    ``split``, or of loose picture files if that is empty; ``pixels`` is the SHA-256 of images and
    labels. ``shard``: i/k.
    """

    format: str
    noise: str
    stream: str
    slack: float
    run: str
    weights: str
    sigma: float
    n0: int
    n: int
    seed: int
    stop: str
    stopping: dict[str, Any]
    certificate: str
    alpha: float
    budget: float
    backend: str
    provider: str
    precision: str
    batch_size: int
    split: str
    subset: str
    images: int
    pixels: str
    shard: str
    classes: list[str]

    @property
    def noise_key(self) -> int:
        """The key of all random numbers of these votes: ``seed``, or one derived for the split."""
        _, own, split = self.stream.partition(KEY_OF)
        if not own:
            return self.seed
        text = f"rrcm noise of a split, 1\0{self.seed}\0{split}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")

    @property
    def foreign(self) -> bool:
        """Whether the votes are of a classifier trained elsewhere."""
        return self.backend.startswith("foreign/")

    @property
    def batch(self) -> int:
        """Rows of a batch: ``batch_size``, but never more than all draws of all images."""
        return max(1, min(self.batch_size, self.images * (self.n0 + self.n)))

    @property
    def aside(self) -> set[str]:
        """The fields on which the votes of an image do not depend."""
        fields = {"subset", "images", "pixels", "shard"}
        return fields | {"alpha"} if self.stop == "none" else fields

    def differing(self, other: "Header") -> list[str]:
        """The fields in which two definitions differ, in the order of the file."""
        return [name for name in Header.__slots__ if getattr(self, name) != getattr(other, name)]

    def expected(self) -> int:
        """The number of images of share i/k: those at i, i + k, i + 2k, …"""
        i, k = map(int, self.shard.split("/"))
        return len(range(i - 1, self.images, k))

    def rule(self) -> Rule:
        """The stopping rule of the votes, for ``certificate`` at ``alpha``."""
        module = registry.load("stopping", self.stop)
        constants = parse(self.stopping, module.Config, where=f"stopping.{self.stop}")
        claim = Claim(
            certificate=registry.load("certificates", self.certificate),
            sigma=self.sigma,
            alpha=self.alpha_left(self.alpha),
        )
        return module.Rule(constants, n=self.n, claim=claim)

    def alpha_left(self, alpha: float) -> float:
        """``alpha`` minus the total-variation error of the noise sampler (theory.md, eq. 33).

        ``slack`` bounds the total-variation distance of a draw from Gaussian noise; that of all
        draws of an image is at most their number times it.

        Raises:
            CertificateError: Nothing is left.
        """
        left = alpha - self.slack * (self.n0 + self.n)
        if left <= 0:
            raise CertificateError(
                f"alpha = {alpha:g} is spent on the difference between {self.noise} and Gaussian "
                "noise; draw less, or certify at a larger alpha"
            )
        return left


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """Votes of one image; ``label`` is its class, or UNKNOWN.

    ``n0`` are the votes of the selection, class -> count, and ``looks`` the cumulative (draws,
    votes) at each look. ``stop`` is the reason to stop, empty while sampling goes on.
    """

    idx: int
    label: int
    n0: dict[int, int]
    looks: list[tuple[int, dict[int, int]]]
    stop: str

    def votes(self, classes: int) -> ImageVotes:
        """The votes as arrays, for ``classes`` classes."""
        counts = np.zeros((1 + len(self.looks), classes), dtype=np.int64)
        for dense, votes in zip(counts, (self.n0, *(v for _, v in self.looks)), strict=True):
            dense[list(votes)] = list(votes.values())
        return ImageVotes(
            idx=self.idx,
            selection=counts[0],
            draws=tuple(draws for draws, _ in self.looks),
            counts=counts[1:],
        )


def stream(generator: str, split: str) -> str:
    """Name of the random numbers of ``split``: those of the choice split have a key of their own.

    Indices of images may begin at 0 in each split. What is chosen on one split must not depend on
    the draws by which another is certified (theory.md, eq. 2).
    """
    return generator if split in ("", "test") else f"{generator}{KEY_OF}{split}"


def sparse(counts: np.ndarray) -> dict[int, int]:
    """Counts [K] as class -> count, without zeros."""
    return {int(c): int(counts[c]) for c in np.flatnonzero(counts)}


def read(path: Path) -> tuple[Header, list[Row]]:
    """Read a finished votes file.

    Raises:
        VotesError: The file is missing, unfinished or damaged; names the line.
    """
    header, rows, torn = scan(path)
    if torn:
        raise VotesError(f"{path}: the last line is torn; sampling has not finished")
    seen = set()
    for number, row in enumerate(rows, start=2):
        if row.idx in seen:
            raise VotesError(f"{path}:{number}: image {row.idx} comes twice")
        if not row.stop:
            raise VotesError(f"{path}:{number}: image {row.idx} is unfinished")
        seen.add(row.idx)
    if len(rows) != header.expected():
        raise VotesError(f"{path}: {len(rows)} images, expected {header.expected()}; was it cut?")
    return header, rows


def write(path: Path, header: Header, rows: Iterable[Row]) -> None:
    """Write a votes file, atomically; the same votes give the same bytes."""
    with atomic(path) as part, part.open("w", encoding="utf-8", newline="\n") as file:
        if registry.load("stopping", header.stop).Rule.packed:
            file.writelines(_packed(header, [*rows]))
        else:
            file.write(encode(header))
            file.writelines(map(encode, rows))


def _packed(header: Header, rows: list[Row]) -> Iterator[str]:
    longest = max((row.looks for row in rows), key=len, default=[])
    draws = [draws for draws, _ in longest[:LOOKS]]
    yield _line(fields(header) | {"format": PACKED, "looks": draws})
    for row in rows:
        value = fields(row)
        with suppress(ValueError):  # votes of other looks are written as they are
            if row.looks and packing.unpack(text := packing.pack(row.looks), draws) == row.looks:
                value = dataclasses.asdict(row) | {"looks": text}
        yield _line(value)


def same(path: Path, existing: Header, wanted: Header) -> None:
    """Refuse votes in ``path`` whose header differs from ``wanted``.

    Raises:
        VotesError: Names the first field that differs.
    """
    for name in existing.differing(wanted):
        raise VotesError(
            f"{path}: holds votes of another classifier or setting: {name} was "
            f"{getattr(existing, name)!r:.199}, is {getattr(wanted, name)!r:.199}; move the file "
            "away to sample again"
        )


def encode(value: Header | Row) -> str:
    """The line of a header or an image, not packed."""
    return _line(fields(value))


def digest(header: Header) -> str:
    """The name of votes that ``header`` defines: a digest of all its fields."""
    return hashlib.sha256(json.dumps(fields(header)).encode()).hexdigest()[:16]


def fields(value: Header | Row) -> dict[str, Any]:
    """The fields of the line of a header or an image, in the order of the file."""
    items = [*dataclasses.asdict(value).items()]
    if isinstance(value, Row):
        return dict([*items, *CONSTANT_OF_ROW.items()])
    place = Header.__slots__.index("budget")
    return dict([*items[:place], *CONSTANT.items(), *items[place:]])


def from_fields(value: dict[str, Any]) -> Header:
    """The header that has these `fields`.

    Raises:
        ConfigError: None has.
        ValueError: They are of another version.
    """
    value = dict(value)
    _drop_constants(value, CONSTANT)
    return parse(value, Header, where="header")


def _line(value: dict[str, Any]) -> str:
    return f"{sealed(json.dumps(value, separators=(',', ':'), allow_nan=False))}\n"


def sealed(text: str) -> str:
    """The ``text`` of a JSON object with its CRC-32 as the last key."""
    return f'{text[:-1]},"crc32":"{zlib.crc32(text.encode()):08x}"}}'


def scan(path: Path) -> tuple[Header, list[Row], bool]:
    """Header and rows of a file, and whether its last line is torn, which is left out."""
    text = read_bytes(path, VotesError).decode(errors="replace")
    lines, torn = text.splitlines(), not text.endswith("\n")
    header, schedule = _header(lines[0] if lines else "", path)
    rows = [
        _row(line, header, schedule, where=f"{path}:{number}")
        for number, line in enumerate(lines[1 : len(lines) - torn], start=2)
    ]
    return header, rows, torn


def definition(path: Path) -> Header:
    """The header of a votes file, finished or not.

    Raises:
        VotesError: The header is missing or damaged, or the file is not regular and may never end.
    """
    require_file(path, VotesError)
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return _header(file.readline(), path)[0]
    except OSError as error:
        raise VotesError(f"{path}: cannot be read ({error.strerror})") from None


def _header(line: str, path: Path) -> tuple[Header, list[int]]:
    """The header, and the numbers of draws of looks that packed lines refer to."""
    draws: list[int] = []
    try:
        first = _decode(line)
        if isinstance(first, dict) and first.get("format", FORMAT) != FORMAT:
            if first["format"] != PACKED:
                raise VotesError(
                    f"{path}:1: format {str(first['format'])[:60]!r}, this version reads "
                    f"{FORMAT!r} and {PACKED!r}; sample again"
                )
            first["format"], draws = FORMAT, [index(look) for look in first.pop("looks")[:LOOKS]]
        header = from_fields(first)
    except (KeyError, TypeError, ValueError, RecursionError, ConfigError) as error:
        why = formats.told(path, f"not the header of a votes file ({str(error)[:300]})")
        raise VotesError(f"{path}:1: {why}") from None
    _require(header, where=f"{path}:1")
    _require_checksum(line, where=f"{path}:1")
    return header, draws


def _drop_constants(fields: dict[str, Any], constants: dict[str, Any]) -> None:
    """Remove what an earlier version might have set otherwise.

    Raises:
        ValueError: It did: these votes are of another kind.
    """
    for name, value in constants.items():
        if (written := fields.pop(name, value)) != value:
            raise ValueError(f"{name} is {written!r:.60}, which this version no longer draws")


def _decode(line: str) -> Any:
    """JSON with finite floats and 64-bit integers; ValueError or RecursionError otherwise."""
    value = json.loads(line, parse_float=_finite, parse_constant=_finite, parse_int=_whole)
    if isinstance(value, dict):
        value.pop("crc32", None)
    return value


def _require_checksum(line: str, *, where: str) -> None:
    """Refuse a line with a wrong checksum; called last, as other checks give a better reason."""
    line = line.rstrip("\n")
    if line != sealed(line[: -len(sealed("}"))] + "}"):
        raise VotesError(f"{where}: damaged, or edited: its checksum is another; sample again")


def _finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(f"{text[:30]} is not finite")
    return value


def _whole(text: str) -> int:
    if abs(value := int(text)) >= 2**64:
        raise ValueError(f"{text[:30]} is beyond any count, seed or image")
    return value


def _require(header: Header, *, where: str) -> None:
    """Refuse a header with values that no sampling has."""
    part = re.fullmatch(r"([1-9][0-9]{0,8})/([1-9][0-9]{0,8})", header.shard)
    valid = {
        **{name: getattr(header, name) >= 0 for name in ("slack", "budget")},
        **{name: 0 <= getattr(header, name) <= MOST for name in ("n0", "images")},
        "sigma": header.sigma > 0,
        "n": 0 < header.n <= MOST,
        "seed": 0 <= header.seed < 2**64,
        "alpha": 0 < header.alpha < 1,
        "shard": part is not None and int(part[1]) <= int(part[2]),
        "classes": len(header.classes) > 0,
        **{name: getattr(header, name).isprintable() for name in ("backend", "provider", "noise")},
        **{name: _nameable(getattr(header, name)) for name in NAMES},
    }
    for name in (name for name, good in valid.items() if not good):
        value = str(getattr(header, name))[:60]
        raise VotesError(f"{where}: {name} is {value!r}, with which nothing can be drawn")


def _nameable(text: str) -> bool:
    """Whether ``text`` can be part of a file name without leaving its folder."""
    return text.isprintable() and "/" not in text and not text.startswith(".")


def _row(line: str, header: Header, schedule: Sequence[int], *, where: str) -> Row:
    try:
        value = _decode(line)
        if isinstance(value["looks"], str):
            value["looks"] = packing.unpack(value["looks"], schedule)
        _drop_constants(value, CONSTANT_OF_ROW)
        row = Row(
            idx=index(value["idx"]),
            label=index(value["label"]),
            n0=_votes(value["n0"]),
            looks=[(index(draws), _votes(votes)) for draws, votes in value["looks"]],
            stop=str(value["stop"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        raise VotesError(f"{where}: not a line of votes: {line[:60]!r}") from None
    last = len(header.classes) - 1
    if row.label != UNKNOWN and not 0 <= row.label <= last:
        raise VotesError(f"{where}: label {row.label} is outside 0..{last}")
    before, so_far = 0, dict[int, int]()
    untouched = row.stop in (BUDGET, "") and not row.n0 and not row.looks
    selected = 0 if untouched else header.n0
    for key, draws, votes in (("n0", selected, row.n0), *(("looks", *look) for look in row.looks)):
        if sum(votes.values()) != draws:
            raise VotesError(f"{where}: {key} has {sum(votes.values())} votes, expected {draws}")
        if (fewest := min(votes.values(), default=0)) < 0:
            raise VotesError(f"{where}: {key} has {fewest} votes for a class")
        if not all(0 <= c <= last for c in votes):
            raise VotesError(f"{where}: {key} votes for a class outside 0..{last}")
        if key == "looks":
            if not before < draws <= header.n or any(votes.get(c, 0) < so_far[c] for c in so_far):
                raise VotesError(f"{where}: looks do not add up: {draws} draws after {before}")
            before, so_far = draws, so_far | votes
    _require_checksum(line, where=where)
    return row


def _votes(value: dict[str, int]) -> dict[int, int]:
    return {int(c): index(v) for c, v in value.items()}
