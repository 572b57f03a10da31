"""Calls made again by compiled code: what reaches the driver, and what comes back. No GPU: the driver is a
function of Python's, and results are allocated on the CPU."""

from __future__ import annotations

import ctypes
import struct

import pytest
import torch

from normgen.torch import native

POINTER = ctypes.c_void_p


class Configuration(ctypes.Structure):
    """The driver's CUlaunchConfig."""

    _fields_ = [
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", POINTER),
        ("attributes", POINTER),
        ("attribute_count", ctypes.c_uint),
    ]


class Driver:
    """cuLaunchKernelEx, which notes what it is asked for and answers `code`."""

    def __init__(self) -> None:
        self.launches: list[tuple] = []
        self.code = 0
        self.refused = 1  # the number of the launch that is answered with `code`
        kind = ctypes.CFUNCTYPE(
            ctypes.c_int, ctypes.POINTER(Configuration), POINTER, POINTER, ctypes.POINTER(POINTER)
        )
        self._function = kind(self._launch)
        self.address = ctypes.cast(self._function, POINTER).value

    def _launch(self, configuration, function, arguments, extra):
        told = configuration.contents
        assert arguments is None
        assert [extra[0], extra[2], extra[4]] == [1, 2, None]  # a buffer, its size, the end
        size = ctypes.cast(extra[3], ctypes.POINTER(ctypes.c_size_t)).contents.value
        content = ctypes.string_at(extra[1], size)
        early = (
            ctypes.cast(told.attributes, ctypes.POINTER(ctypes.c_int))[0] if told.attribute_count else None
        )
        self.launches.append(
            (function, tuple(told.grid), tuple(told.block), told.shared, told.stream or 0, early, content)
        )
        return self.code if len(self.launches) == self.refused else 0


@pytest.fixture
def driver() -> Driver:
    return Driver()


@pytest.fixture
def repeat_type():
    found = native._compiled()
    if found is None:
        pytest.skip("no C compiler, or no headers of Python")
    return found


def _repeat(repeat_type, driver, made, fields, launches):
    allocate = torch._C._dynamo.guards._empty_strided_cpu
    return repeat_type(driver.address, torch._C.TensorBase.data_ptr, allocate, made, fields, launches)


FORMAT = "PqPfP"


def _launch(function=7, early=False, patches=((0, 0), (16, 2), (32, 3))):
    arguments = struct.pack(FORMAT, 0, 5, 0, 2.5, 0)
    return (function, (3, 2, 1), (64, 1, 1), 1000, early, arguments, tuple(patches))


def test_addresses_go_where_they_are_wanted(repeat_type, driver):
    made = (((2, 3), (3, 1), torch.bfloat16),)
    call = _repeat(repeat_type, driver, made, (0, -1), (_launch(), _launch(8, early=True)))
    x, w = torch.empty(4), torch.empty(5)
    y, absent = call(77, (x, None, w), (4096,))
    assert absent is None
    assert (y.shape, y.stride(), y.dtype) == ((2, 3), (3, 1), torch.bfloat16)
    content = struct.pack(FORMAT, x.data_ptr(), 5, y.data_ptr(), 2.5, 4096)
    shape = ((3, 2, 1), (64, 1, 1), 1000, 77)
    assert driver.launches == [(7, *shape, None, content), (8, *shape, 6, content)]


def test_every_call_has_results_of_its_own(repeat_type, driver):
    call = _repeat(repeat_type, driver, (((2,), (1,), torch.float32),), (0,), (_launch(patches=((0, 1),)),))
    x = torch.empty(4)
    (first,), (second,) = call(0, (x,), ()), call(0, (x,), ())
    assert first.data_ptr() != second.data_ptr()
    assert [struct.unpack(FORMAT, each[-1])[0] for each in driver.launches] == [
        first.data_ptr(),
        second.data_ptr(),
    ]


def test_a_refused_launch_is_told_by_its_code_and_ends_the_call(repeat_type, driver):
    driver.code = 201
    call = _repeat(
        repeat_type, driver, (((2,), (1,), torch.float32),), (0,), (_launch(patches=()), _launch())
    )
    assert call(0, (torch.empty(1),), ()) == 201
    assert len(driver.launches) == 1


def test_a_call_that_has_begun_is_not_made_again(repeat_type, driver):
    driver.code, driver.refused = 700, 2
    call = _repeat(repeat_type, driver, (), (), (_launch(patches=()),) * 3)
    with pytest.raises(RuntimeError, match="launch 2 of a call failed with error 700"):
        call(0, (torch.empty(1),), ())
    assert len(driver.launches) == 2


def test_an_address_that_nobody_gives_is_an_error(repeat_type, driver):
    call = _repeat(repeat_type, driver, (), (), (_launch(patches=((0, 1),)),))
    with pytest.raises(ValueError, match="too few tensors"):
        call(0, (torch.empty(1),), ())
    assert driver.launches == []


@pytest.mark.parametrize(
    "given", [(0, [], ()), (0, (), []), (0, ()), (0, (1,), ()), (-1, (), ()), (0, (None,) * 70, ())]
)
def test_a_call_that_makes_no_sense_is_an_error(repeat_type, driver, given):
    call = _repeat(repeat_type, driver, (), (), (_launch(patches=()),))
    with pytest.raises((TypeError, ValueError, OverflowError)):
        call(*given)
    assert driver.launches == []


@pytest.mark.parametrize("patch", [(40, 0), (33, 0), (0, 64)])
def test_an_address_without_a_place_is_refused(repeat_type, driver, patch):
    with pytest.raises(ValueError, match="an address has no place"):
        _repeat(repeat_type, driver, (), (), (_launch(patches=(patch,)),))
