"""Columns are compressed for as long as that saves time."""

import numpy as np

from weft.replay.server.compression import MEASURE_EVERY, Compressor


def test_a_column_is_compressed_while_its_data_compress_well():
    compressor = Compressor(send_seconds=1e-6)  # slow, so that only the data decide
    noise = np.random.default_rng(0).integers(0, 256, 1 << 16).astype(np.uint8)
    flat = np.zeros(1 << 16, np.uint8)
    assert compressor.compress("noise", noise) is None
    assert len(compressor.compress("flat", flat)) < 1000
    for _ in range(MEASURE_EVERY):
        assert compressor.compress("flat", noise) is None
    assert compressor.measurements["flat"].ratio > 0.9 and compressor.compress("flat", flat) is None
    for _ in range(MEASURE_EVERY - 1):
        compressor.compress("flat", flat)
    assert len(compressor.compress("flat", flat)) < 1000


def test_nothing_is_compressed_on_a_connection_that_is_faster_than_compressing():
    compressor = Compressor(send_seconds=1e-15)
    assert compressor.compress("flat", np.zeros(1 << 16, np.uint8)) is None
    compressor.record_send(1 << 20, 10.0)
    assert compressor.send_seconds > 1e-7
