"""Photographs pages in light and dark, at 390 and 1,280 pixels.

``python -m benchmarks.screenshots --out FOLDER --page FILE.html`` of a page of pictures, with the
first one opened; ``--server http://127.0.0.1:8000 --picture FILE`` of the page of a server without
a token, while it draws for the picture, and once it has answered.
"""

import argparse
import re
import sys
from functools import partial
from itertools import product
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests/support"))

import browsers
from playwright.sync_api import Page

LATE = 10 * 60 * 1000  # milliseconds until an answer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--page", type=Path, help="written by `rrcm certify --page`")
    parser.add_argument("--server", help="its address")
    parser.add_argument("--picture", type=Path, help="a PNG, JPEG or WebP file")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    with browsers.started() as browser:
        for scheme, width in product(("light", "dark"), (browsers.PHONE, browsers.WIDE)):
            size = {"width": width, "height": 844}
            page = browser.new_page(viewport=size, color_scheme=scheme)
            take = partial(photograph, page, asked.out, f"{scheme}-{width}")
            if asked.page:
                page.goto(asked.page.resolve().as_uri())
                take("pictures", full=False)
                page.locator("#grid button").first.click()
                take("picture", full=False)
            if asked.server:
                page.goto(asked.server)
                page.set_input_files("#file", asked.picture)
                page.locator("#curve circle:nth-of-type(12)").wait_for(timeout=LATE)
                take("drawing")
                page.locator("#drawn", has_text=re.compile("^Stopped")).wait_for(timeout=LATE)
                take("answer")
            page.close()


def photograph(page: Page, folder: Path, how: str, what: str, *, full: bool = True) -> None:
    """Write a picture of the whole page, or of what of it is on the screen."""
    path = folder / f"{what}-{how}.png"
    page.screenshot(path=path, full_page=full)
    print(path)


if __name__ == "__main__":
    main()
