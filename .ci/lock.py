"""Gives torchvision's pin in requirements.lock the SHA-256 of its CPU build and of the registry's.

Both have one version. `make lock` sees the CPU build where PyTorch's index is in reach; elsewhere
what the committed lock says of it stays, as long as the version does.
"""

import re
import subprocess
from pathlib import Path

ENTRY = re.compile(r"^torchvision==([^\s+]+)\S*((?: \\\n +--hash=\S+)+)", re.MULTILINE)


def merged(plain: str, *others: str) -> str:
    """``plain`` with the hashes that ``others`` have of its version of torchvision."""
    entries = [ENTRY.search(text) for text in (plain, *others)]
    version = entries[0][1]
    hashes = {one for entry in entries if entry[1] == version for one in entry[2].split()}
    lines = (f" \\\n    {one}" for one in sorted(hashes - {"\\"}))
    return ENTRY.sub(lambda _: f"torchvision=={version}{''.join(lines)}", plain)


if __name__ == "__main__":
    before = subprocess.run(
        ["git", "show", "HEAD:requirements.lock"], check=True, capture_output=True, text=True
    )
    lock = Path("requirements.lock")
    gpu = Path("requirements-gpu.lock").read_text()
    lock.write_text(merged(lock.read_text(), gpu, before.stdout))
