"""Renews release/, the DVC remote inside the repository: ``make release``.

`dvc pull` in a fresh clone fetches it. release/contents.yaml lists outputs by data set; dvc.lock
and data.dvc have the hashes of one data set, presets/locks/ those of the others.
"""

import json
import os
import shutil
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

from pipeline.workflow import lockfile
from rrcm.core.ending import reported
from rrcm.core.errors import ConfigError, DataError
from rrcm.core.schema import read_yaml

FOLDER = Path("release")
STORE = FOLDER / "files/md5"  # the layout of every DVC remote and cache
CACHE = Path(".dvc/cache/files/md5")
TRACKED = Path("data.dvc")  # the raw data
LIMIT = 50e6  # bytes; every clone of the repository has them


def renew() -> str:
    """Copy the listed outputs from DVC's cache, remove all others; return a summary.

    What is not in the cache, such as the results of another machine, stays if release/ has it.

    Raises:
        ConfigError: contents.yaml names outputs that no lock has.
        DataError: An output is neither in the cache nor in release/, or all of them are too large.
            Nothing is removed then.
    """
    wanted: dict[str, str] = {}  # path of an object below STORE or CACHE -> what it is a part of
    for data, patterns in read_yaml(FOLDER / "contents.yaml").items():
        outputs = _outputs(data)
        for pattern in patterns:
            matching = {path: md5 for path, md5 in outputs.items() if fnmatchcase(path, pattern)}
            if not matching:
                raise ConfigError(
                    f"{FOLDER}/contents.yaml: {data}: no output of its stages is {pattern}"
                )
            for path, md5 in matching.items():
                wanted |= dict.fromkeys(_objects(md5, path), f"{data}: {path}")
    places = {name: _place(name, part) for name, part in wanted.items()}
    size = sum(place.stat().st_size for place in places.values())
    if size > LIMIT:
        raise DataError(
            f"{FOLDER}: {size / 1e6:.1f} MB, more than {LIMIT / 1e6:.0f}; shorten contents.yaml"
        )
    for name, place in places.items():
        if place.is_relative_to(CACHE):
            (STORE / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(place, STORE / name)
    for file in [file for file in STORE.rglob("*") if file.is_file()]:
        if file.relative_to(STORE).as_posix() not in wanted:
            file.unlink()
    for folder in [folder for folder in STORE.glob("*") if not any(folder.iterdir())]:
        folder.rmdir()
    return f"{FOLDER}: {len(wanted)} objects, {size / 1e6:.1f} MB"


def _outputs(data: str) -> dict[str, str]:
    """Path and hash of every output of the data set's stages, and of its raw data."""
    made = lockfile.read()
    tracked = [read_yaml(TRACKED)] if TRACKED.exists() else []
    if lockfile.data_set(made) != data:
        made, tracked = read_yaml(lockfile.ASIDE / f"{data}.lock")["stages"], []
    entries = [*made.values(), *tracked]
    return {path: md5 for entry in entries for path, md5 in lockfile.hashes(entry).items()}


def _objects(md5: str, part: str) -> Iterator[str]:
    """The object of an output and, if that is a folder, those of its files."""
    name = f"{md5[:2]}/{md5[2:]}"
    yield name
    if md5.endswith(".dir"):
        for file in json.loads(_place(name, part).read_bytes()):
            yield f"{file['md5'][:2]}/{file['md5'][2:]}"


def _place(name: str, part: str) -> Path:
    for folder in (CACHE, STORE):
        if os.path.isfile(folder / name):
            return folder / name
    raise DataError(f"{part}: neither in DVC's cache nor in {FOLDER}; `rrcm repro` makes it")


if __name__ == "__main__":
    with reported():
        print(renew())
