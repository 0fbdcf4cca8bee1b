"""Replay: tables of steps and of sequences of steps, sampled and updated in batches; usable without the rest of weft.

>>> import numpy as np
>>> from weft import replay
>>> table = replay.Table({"obs": np.zeros(2), "reward": 0.0}, capacity=1000, sampler=replay.Prioritised(exponent=0.6))
>>> keys = table.insert({"obs": np.ones((8, 2)), "reward": np.arange(8.0)})
>>> data, info = table.sample(32)
>>> table.update(info.key, abs(data["reward"]))
32
"""

from weft.replay.checkpoint import restore, save
from weft.replay.items import Info, Items, Sample
from weft.replay.limiter import Limiter, MinimumSize, Queue, SamplesPerInsert, Stack
from weft.replay.patterns import All, First, FrameStack, Last, Pattern, Pick, Steps, Whole
from weft.replay.pipeline import Pipeline
from weft.replay.selector import Selector
from weft.replay.selectors import Fifo, Lifo, MaxHeap, MinHeap, Prioritised, Uniform, importance_weights
from weft.replay.store import Store
from weft.replay.table import Table
from weft.replay.writer import Writer

__all__ = [
    "All",
    "Fifo",
    "First",
    "FrameStack",
    "Info",
    "Items",
    "Last",
    "Lifo",
    "Limiter",
    "MaxHeap",
    "MinHeap",
    "MinimumSize",
    "Pattern",
    "Pick",
    "Pipeline",
    "Prioritised",
    "Queue",
    "Sample",
    "SamplesPerInsert",
    "Selector",
    "Stack",
    "Steps",
    "Store",
    "Table",
    "Uniform",
    "Whole",
    "Writer",
    "importance_weights",
    "restore",
    "save",
]
