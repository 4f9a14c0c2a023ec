"""Pictures of pages in a headless browser, where there is one."""

import shutil
import subprocess
import tempfile
from pathlib import Path

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
QUIET = ("disable-gpu", "disable-quic", "no-first-run", "disable-background-networking")
QUIET += ("disable-component-update", "disable-sync", "hide-scrollbars")


def take(url: str, path: Path, *, size: tuple[int, int] = (1500, 1100)) -> None:
    """Write a picture of a page, once its scripts have had 20 seconds of virtual time."""
    browser = next(filter(None, map(shutil.which, BROWSERS)))
    with tempfile.TemporaryDirectory() as profile:
        options = (f"user-data-dir={profile}", f"window-size={size[0]},{size[1]}", "no-sandbox")
        options += ("headless", "virtual-time-budget=20000", f"screenshot={path}", *QUIET)
        command = [browser, *(f"--{option}" for option in options), url]
        subprocess.run(command, check=True, capture_output=True, timeout=120)
