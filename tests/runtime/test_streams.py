"""Streams: the current one of a library, a producer's, and how a caller gives one."""

from __future__ import annotations

import types

import numpy as np
import pytest

from normgen import arrays
from tests.fakes.arrays import CupyArray, Interface
from tests.fakes.driver import FakeDriver
from tests.runtime.calling import tensor


def test_the_current_stream_is_asked_for_each_time(streams: dict[int, int]) -> None:
    for view in (arrays.view(tensor(2, device=1)), arrays.view(CupyArray((2,), np.float32, 1))):
        for streams[1], stream in ((0, 0), (0x5000, 0x5000), (1, 0)):  # 1: the default by its other name
            assert arrays.stream_of(view) == stream


def test_a_producer_s_stream_is_the_one_to_go_on_with(driver: FakeDriver) -> None:
    queued, legacy, thread, done = (
        arrays.view(Interface(driver, (2,), "<f4", stream=stream, version=3)) for stream in (0x60, 1, 2, None)
    )
    assert [arrays.stream_of(view) for view in (queued, legacy, thread, done)] == [0x60, 0, 2, 0]
    arrays.order(0x60, [queued, done])
    assert driver.waits == []
    arrays.order(0x60, [queued, legacy, legacy, thread, done])
    assert sorted(driver.waits) == [(0x60, 0), (0x60, 2)]
    assert driver.synchronized == 0


class Protocol:
    def __cuda_stream__(self) -> tuple[int, int]:
        return (0, 0x10)


def test_streams_are_given_in_many_ways() -> None:
    of = types.SimpleNamespace
    assert [arrays.stream_handle(stream) for stream in (0, 1, 2, 0x10)] == [0, 0, 2, 0x10]
    given = (Protocol(), of(__cuda_stream__=(0, 0x11)), of(cuda_stream=0x12), of(ptr=0x13), of(handle=0x14))
    assert [arrays.stream_handle(stream) for stream in given] == [0x10, 0x11, 0x12, 0x13, 0x14]
    for wrong in (None, "0", 1.5, True, object(), of(ptr=None)):
        with pytest.raises(TypeError, match="stream must be"):
            arrays.stream_handle(wrong)
    with pytest.raises(ValueError, match="not a stream handle"):
        arrays.stream_handle(-1)
