"""Votes files that small samplings write."""

import json
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from builders import SIGMA, images, linear

from rrcm.certification.sampling.journal import Journal
from rrcm.certification.sampling.sampler import VoteSampler
from rrcm.certification.sampling.store import header
from rrcm.certification.votes import records
from rrcm.config.certification import Sampling

N = 400
CFG = Sampling(
    backend="linear", precision="fp32", batch_size=16, noise="gaussian", n0=20, n=N, seed=0,
    split="test", subset="all", stop="none", certificate="cohen",
    alpha=0.05, stopping={},
)  # fmt: skip
CONSTANTS = {
    "none": {},
    "grid": {"radii": [0.0, 0.25, 0.5], "beta": 0.01},
    "anytime": {"tolerance": 0.05, "beta": 0.01},
}
SIX = images(6)


def defined(cfg=CFG, split=SIX, *, backend=None, sigma=SIGMA, **how):
    backend = backend or linear(sigma=sigma)
    return header(backend, split, "a-run", replace(cfg, stopping=CONSTANTS[cfg.stop]), **how)


def drawn(folder, cfg=CFG, split=SIX, *, backend=None, head=(), **how):
    """Sampling, with its journal and its votes.jsonl in a folder; ``head`` is told the header."""
    backend, how = backend or linear(), {"workers": 1, "every": 5.0} | how
    definition = defined(cfg, split, backend=backend, **dict(head))
    with Journal(Path(folder, "journal"), definition) as kept:
        kept.complete(how.pop("known", ()))
        sampler = VoteSampler(split, definition, kept, **how)
        yield from sampler.draw_votes([backend])
    records.write(Path(folder, "votes.jsonl"), definition, sampler.rows())
    Path(folder, "journal").unlink()


def sampled(cfg=CFG, split=SIX, *, make=linear, workers=1, every=5.0, before=b"", known=(), **head):
    """The votes file that sampling makes, from a journal that was there before."""
    how = {"workers": workers, "every": every, "known": known}
    with TemporaryDirectory() as folder:
        journal, path = Path(folder, "journal"), Path(folder, "votes.jsonl")
        if before:
            journal.write_bytes(before)
        *_, last = drawn(folder, cfg, split, backend=make(), head=head, **how)
        _, found = records.read(path)  # nothing in it is damaged
        assert last.images == sum(row.stop != "budget" for row in found)
        assert not journal.exists()
        return path.read_bytes()


def header_and_rows(file):
    """What a votes file is read as."""
    with TemporaryDirectory() as folder:
        path = Path(folder, "votes.jsonl")
        path.write_bytes(file)
        return records.read(path)


def rows(file):
    """What a votes file says of each image."""
    said = [json.loads(line) for line in file.splitlines()[1:]]
    return {row["idx"]: {key: row[key] for key in row if key != "crc32"} for row in said}
