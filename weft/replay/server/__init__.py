"""The replay server: tables in a process of their own, reached over sockets or shared memory."""

from weft.replay.server.client import Client, connect
from weft.replay.server.server import Server

__all__ = ["Client", "Server", "connect"]
