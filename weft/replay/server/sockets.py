"""Opens the sockets of servers and clients: TCP, and on Linux an abstract Unix socket for clients on the same host."""

import socket
from pathlib import Path

from weft.errors import WeftError

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
"""Linux's identifier of a running host, which changes when it boots."""
BACKLOG = 256


def parse_address(address: str) -> tuple[str, int]:
    """Returns host and port.

    >>> parse_address("127.0.0.1:9000"), parse_address("[::1]:0")
    (('127.0.0.1', 9000), ('::1', 0))
    """
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535 or not host:
        raise WeftError(f"the address {address!r} is not of the form host:port, e.g. 127.0.0.1:9000")
    return host.strip("[]"), int(port)


def host_id() -> str:
    """Returns an identifier of this host, or an empty string where there is none."""
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return ""


def listen_tcp(address: str) -> socket.socket:
    host, port = parse_address(address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise WeftError(f"cannot listen on {address}: {error.strerror}; choose another address, or port 0") from error


def listen_unix(name: str) -> socket.socket:
    """Listens on a Unix socket in Linux's abstract namespace, which needs no file."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind("\0" + name)
    listener.listen(BACKLOG)
    return listener


def connect_tcp(address: str, timeout: float) -> socket.socket:
    connection = socket.create_connection(parse_address(address), timeout=timeout)
    configure_tcp(connection)
    return connection


def connect_unix(name: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect("\0" + name)
    except BaseException:
        connection.close()
        raise
    return connection


def configure_tcp(connection: socket.socket) -> None:
    """Sends small frames at once, and detects peers that disappeared."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
