"""An S3-compatible server on loopback for tests, and a way to it that can be cut."""

import re
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

BUCKET = "rrcm"
KEYS = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_DEFAULT_REGION": "us-east-1"}
SIGNED = {"Authorization": "AWS4-HMAC-SHA256 Credential=a/20260101/us-east-1/s3/aws4_request"}
IMPATIENT = {**KEYS, "AWS_MAX_ATTEMPTS": "1"}  # for a server that is known to be gone


@dataclass(frozen=True)
class Store:
    """A server with one bucket."""

    port: int

    def objects(self, prefix: str = "") -> set[str]:
        """The names in the bucket that begin with ``prefix``, without it."""
        query = f"{BUCKET}?list-type=2&max-keys=1000&prefix={prefix}"
        names = re.findall(r"<Key>(.*?)</Key>", _asked(self.port, query).decode())
        return {name.removeprefix(prefix) for name in names}

    def read(self, name: str) -> bytes:
        """The contents of an object."""
        return _asked(self.port, f"{BUCKET}/{name}")


def _asked(port: int, path: str, method: str = "GET") -> bytes:
    url = f"http://127.0.0.1:{port}/{path}"
    request = urllib.request.Request(url, method=method, headers=SIGNED)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return answer.read()


@contextmanager
def serving() -> Iterator[Store]:
    """A server that is up, with an empty bucket; gone afterwards."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = Path(sys.executable).with_name("moto_server")
    with subprocess.Popen(
        [command, "-H", "127.0.0.1", "-p", str(port)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            deadline = time.monotonic() + 300
            while True:
                try:
                    _asked(port, BUCKET, "PUT")
                    break
                except urllib.error.URLError:
                    assert process.poll() is None and time.monotonic() < deadline
                    time.sleep(0.1)
            yield Store(port)
        finally:
            process.kill()


class Gate:
    """A port that leads to the server until so many objects were put; then nobody listens."""

    def __init__(self, store: Store, *, puts: int) -> None:
        """Open it for ``puts`` objects."""
        self._target, self._left = store.port, puts
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Cut all connections, and take no other."""
        with self._lock:
            self._left = -1
        try:
            self._listener.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                ours, _ = self._listener.accept()
            except OSError:
                return
            theirs = socket.create_connection(("127.0.0.1", self._target))
            for source, sink, asks in ((ours, theirs, True), (theirs, ours, False)):
                threading.Thread(target=self._pump, args=(source, sink, asks), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, asks: bool) -> None:
        try:
            while data := source.recv(65536):
                with self._lock:
                    self._left -= asks and data.startswith(b"PUT ")
                    shut = self._left < 0
                if shut:
                    self.close()
                    break
                sink.sendall(data)
        except OSError:
            pass
        for end in (source, sink):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        source.close()
