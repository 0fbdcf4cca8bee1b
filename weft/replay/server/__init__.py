"""Replay tables in a server process, which clients use over sockets or shared memory.

>>> import numpy as np
>>> from weft import replay
>>> from weft.replay import server
>>> table = replay.Table({"reward": np.float32(0)}, capacity=100, name="experience")
>>> with server.Server([table]) as running, server.connect(running.address, running.token) as client:
...     keys = client.table("experience").insert({"reward": np.arange(5)})
...     sample = client.table("experience").sample(32)
>>> table.size, sample.data["reward"].shape
(5, (32,))
"""

from weft.replay.server.client import Client, connect
from weft.replay.server.socket_server import Server

__all__ = ["Client", "Server", "connect"]
