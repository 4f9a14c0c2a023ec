"""Pages in a headless browser, where there is one: used by a person's means, and pictured."""

import base64
import itertools
import json
import shutil
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
QUIET = ("disable-gpu", "disable-quic", "no-first-run", "disable-background-networking")
QUIET += ("disable-component-update", "disable-sync", "hide-scrollbars")
PATIENCE = 120.0  # seconds that a page may take to show what is waited for


def browser() -> str | None:
    """The program, where there is one."""
    return next(filter(None, map(shutil.which, BROWSERS)), None)


class Page:
    """A page that is open."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket, self._ids = socket, itertools.count(1)

    def _do(self, method: str, **parameters: Any) -> Any:
        number = next(self._ids)
        told = {"id": number, "method": method, "params": parameters}
        self._socket.send(json.dumps(told))
        while True:
            answer = json.loads(self._socket.recv(timeout=PATIENCE))
            if answer.get("id") == number:
                assert "error" not in answer, answer
                return answer["result"]

    def ask(self, script: str) -> Any:
        """The value of an expression of JavaScript."""
        return self._do("Runtime.evaluate", expression=script, returnByValue=True)["result"].get(
            "value"
        )

    def wait(self, script: str) -> Any:
        """The same, once it is true."""
        deadline = time.monotonic() + PATIENCE
        while not (value := self.ask(script)):
            assert time.monotonic() < deadline, f"{script}: {self.text()}"
            time.sleep(0.2)
        return value

    def go(self, url: str) -> None:
        """Open another address."""
        self._do("Page.navigate", url=url)

    def log_in(self, password: str) -> None:
        """Type it where the page asks for one."""
        self.wait(
            "document.querySelector('input[type=password]')?.focus() === undefined && "
            "document.activeElement?.type === 'password'"
        )
        self._do("Input.insertText", text=password)
        for kind in ("keyDown", "keyUp"):
            self._do(
                "Input.dispatchKeyEvent",
                type=kind,
                key="Enter",
                code="Enter",
                text="\r",
                windowsVirtualKeyCode=13,
            )
        self.wait("!document.querySelector('input[type=password]')")

    def text(self) -> str:
        """What a reader sees."""
        return self.ask("document.body?.innerText ?? ''")

    def picture(self, path: Path) -> None:
        """Write what a reader sees, once it has settled."""
        time.sleep(3)
        path.write_bytes(base64.b64decode(self._do("Page.captureScreenshot")["data"]))


@contextmanager
def opened(url: str, *, size: tuple[int, int] = (1500, 1100)) -> Iterator[Page]:
    """A page of a browser with nothing remembered."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options = (f"user-data-dir={profile}", f"window-size={size[0]},{size[1]}", "no-sandbox")
        options += ("headless", "remote-debugging-port=0", *QUIET)
        command = [browser() or "no browser", *(f"--{option}" for option in options), url]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as it:
            try:
                with connect(_address(Path(profile)), max_size=None) as socket:
                    yield Page(socket)
            finally:
                it.terminate()


def _address(profile: Path) -> str:
    """Of the page, as the browser tells those who steer it."""
    port, deadline = profile / "DevToolsActivePort", time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if port.exists() and (number := port.read_text().split("\n")[0]):
            with urllib.request.urlopen(f"http://127.0.0.1:{number}/json", timeout=60) as answer:
                for one in json.load(answer):
                    if one["type"] == "page":
                        return one["webSocketDebuggerUrl"]
        time.sleep(0.1)
    raise AssertionError("the browser does not begin")
