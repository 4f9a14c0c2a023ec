"""The Chromium of this machine, tabs that must stay quiet, and a server in this process."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Any

import numpy as np
import uvicorn
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, sync_playwright

from rrcm.certification.smoothed import Smoothed
from rrcm.serving import application
from rrcm.serving.endpoints import Terms
from rrcm.serving.listener import listen

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
NONE = f"no browser: none of {', '.join(NAMES)} is on the PATH"
PHONE, WIDE = 390, 1280  # pixels


def path() -> str | None:
    """Where it is."""
    return next(filter(None, map(shutil.which, NAMES)), None)


@contextmanager
def started() -> Iterator[Browser]:
    """It without a window; the sandbox of Chromium refuses root, as whom CI runs."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path(), args=["--no-sandbox"])
        yield browser
        browser.close()


@contextmanager
def tab(browser: Browser, url: str, *, loud: bool = False) -> Iterator[Page]:
    """A page, which says nothing to the console, opens no dialog, and asks its own server alone.

    ``loud``: the console may have lines, as Chromium writes one for each refusal.
    """
    said: list[str] = []
    page = browser.new_page(viewport={"width": PHONE, "height": 844})
    if not loud:
        page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("dialog", lambda dialog: said.append(dialog.message))
    own = "/".join(url.split("/")[:3])
    page.on("request", lambda r: r.url.startswith((own, "data:")) or said.append(r.url))
    page.goto(url)
    yield page
    page.close()
    assert said == []


def flaws(page: Page) -> list[str]:
    """What axe-core finds serious or critical on a page as it is, and whether it is too wide.

    Light on a phone and dark on a desk: colours do not depend on the width.
    """
    found = []
    for scheme, width in (("light", PHONE), ("dark", WIDE)):
        page.emulate_media(color_scheme=scheme)
        page.set_viewport_size({"width": width, "height": 844})
        for one in Axe().run(page).response["violations"]:
            if one["impact"] in ("serious", "critical"):
                where = [node["target"] for node in one["nodes"]]
                found.append(f"{scheme}, {width}: {one['id']} {where}")
        if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
            found.append(f"{width}: wider than the screen")
    return found


@contextmanager
def served(smoothed: Smoothed, **terms: Any) -> Iterator[str]:
    """The address of a server of a classifier, which is warm as that of `rrcm serve` is."""
    smoothed.answer(np.zeros(smoothed.shape, np.uint8))
    app = application.app(smoothed, name="<i>net</i>", terms=Terms(workers=1, **terms))
    with listen("127.0.0.1", 0) as listener:
        server = uvicorn.Server(uvicorn.Config(app, http="h11", log_level="critical"))
        thread = Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()
