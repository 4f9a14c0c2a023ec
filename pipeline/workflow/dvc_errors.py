"""What DVC says of a pull that failed, as an error of one line with the way out."""

import os
import re
from collections.abc import Mapping

from rrcm.core.errors import ConfigError, DataError, RrcmError, one_line

PUSH = "`dvc push` from the checkout that made it"
OBJECTS = "/files/md5"  # the folder of a remote where DVC keeps files by their hash


class Missing(DataError):
    """``place``, a remote, lacks ``files``, or a part of them; all others arrived."""

    def __init__(self, files: list[str], place: str, way: str) -> None:
        """Name the files, the remote, and the way out."""
        super().__init__(f"{', '.join(files)}: missing or incomplete in {place}; {way}")
        self.files, self.place = files, place


def pull_failed(said: str, made: Mapping[str, str], *, remote: str | None) -> RrcmError:
    """Turn the messages of a failed ``dvc pull`` of ``made`` into an error with the way out."""
    if found := re.search(r"remote '([^']+)' doesn't exist", said):
        return ConfigError(f"--remote {found[1]}: no such remote; `dvc remote list` shows them")
    if found := re.search(r"failed to connect to (\w+) \((.*?)\) - (.*)", said):
        url = f"{found[1]}://{found[2].removesuffix(OBJECTS)}"
        return DataError(f"the remote {url} cannot be reached: {_line(found[3])}")
    if found := re.findall(r"failed to transfer '(\w+)(?:\.dir)?' - ([^\n]*)", said):
        names = {md5.removesuffix(".dir"): path for path, md5 in made.items()}
        files = ", ".join(sorted({names.get(md5, md5) for md5, _ in found}))
        why = _line(found[0][1].partition(": '")[0])  # without DVC's names of files
        return DataError(
            f"{files}: {why}; files that arrived are kept, and the same command resumes"
        )
    if found := re.search(r"unsaved files without confirmation.*\n((?:.*\S.*\n?)+)", said):
        files = ", ".join(sorted(os.path.relpath(line) for line in found[1].splitlines()))
        return DataError(f"{files}: edited here; `dvc pull --force` replaces it, or remove it")
    missing = re.search(r"failed for following targets:\n(.*?)\nIs your cache", said, re.DOTALL)
    if not missing:
        told = "; ".join(re.findall(r"ERROR: (.*)", said)) or said
        return DataError(f"dvc pull: {_line(told)}; the same command resumes")
    files = ", ".join(missing[1].splitlines())
    if "No remote provided" in said:
        return DataError(
            f"{files}: not in the cache, and this checkout has no default remote; add one with "
            "`dvc remote add --default NAME URL`, or name one with --remote"
        )
    place = f"the remote {remote}" if remote else "the default remote"
    return Missing(missing[1].splitlines(), place, PUSH)


def _line(text: str) -> str:
    return one_line(Exception(text))
