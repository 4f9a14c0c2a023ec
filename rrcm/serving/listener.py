"""The socket at which a server listens."""

import socket

from rrcm.core.errors import ConfigError


def listen(host: str, port: int) -> socket.socket:
    """A listening socket at ``host`` and ``port``; port 0 takes a free one.

    Raises:
        ConfigError: The address is not available.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family)
    except (OSError, OverflowError) as error:
        raise ConfigError(f"--host {host} --port {port}: cannot listen there ({error})") from None
    # Accepted connections inherit this, and neither uvicorn nor asyncio sets it on them. Without it
    # an answer's body waits until the client acknowledges its header.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener
