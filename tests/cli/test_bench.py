"""`normgen bench`: what it prints, on the imaginary driver, and what it refuses."""

from __future__ import annotations

import json

import pytest

from normgen.cli import exits
from normgen.devices.cuda import executor as cuda
from tests.cli.commands import UNMEASURED, arguments_text, check_refusal, run
from tests.fakes.driver import FakeDriver
from tests.runtime.conftest import driver

__all__ = ["driver"]

SMALL = ("--size", "D=256", "--size", "...=8")


def test_figures_of_both_directions(driver: FakeDriver) -> None:
    driver.launch_us = lambda launched: 1.5 if launched.entry[:4] in ("copy", "tria") else 2.0
    done = run("bench", "rmsnorm", *SMALL, "--json")
    assert done.exit_code == 0, done.output
    printed = json.loads(done.stdout)
    assert printed["schema"] == 1 and printed["device"] == {"name": "Imaginary", "arch": "sm_90"}
    forward, backward = printed["rows"]
    assert (forward["direction"], forward["us"], forward["ceiling"]) == ("forward", 2.0, "copy")
    assert (forward["ceiling_us"], forward["rho"], forward["method"]) == (1.5, 0.75, "events")
    assert forward["bytes"] == 2 * (2 * 8 * 256 + 256) and forward["sizes"] == {"D": 256, "...": 8}
    assert (backward["direction"], backward["us"], backward["ceiling"]) == ("backward", 2.0, "triad")
    assert forward["host_us"] > 0 and forward["notes"]


def test_the_table_has_a_line_for_each_way_that_fits(driver: FakeDriver) -> None:
    shape = ("--size", "B=64", "--size", "C=1", "--size", "...=65536")
    done = run("bench", "batchnorm", *shape, "--direction", "backward", "--strategies", "--dtype", "f32")
    assert done.exit_code == 0, done.output
    head, _, headings, *rows = done.stdout.splitlines()
    assert head.endswith("in f32, on Imaginary")
    assert headings.split()[:4] == ["DIRECTION", "STRATEGY", "US", "RHO"]
    ways = [line.split()[1] for line in rows if line.startswith("backward")]
    assert ways[1:] == ["fewest", "columns"], "the one that is chosen, and each by name"


def test_without_a_gpu_it_says_so_in_one_line(driver: FakeDriver) -> None:
    cuda.use_driver(FakeDriver(devices=0))
    done = run("bench", "rmsnorm", *SMALL)
    assert (done.exit_code, done.stdout) == (exits.GPU, "")
    assert done.stderr == "no CUDA device 0: there are 0\n"


@pytest.mark.parametrize(("arguments", "code", "said"), UNMEASURED, ids=arguments_text)
def test_what_is_refused(arguments: list[str], code: int, said: str, driver: FakeDriver) -> None:
    check_refusal("bench", arguments, code, said)
    assert not driver.launches
