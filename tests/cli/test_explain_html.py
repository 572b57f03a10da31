"""The page of `normgen explain --html`: one file, with every part of a norm and links between them."""

from __future__ import annotations

import re
from functools import cache
from html import unescape
from pathlib import Path
from xml.etree import ElementTree

import pytest

from normgen.api import read_definition
from normgen.cli import exits
from normgen.cli.html.explained import Explained, code_of, explained
from normgen.cli.html.listing import Line, Listing
from normgen.cli.sizes import BOTH, Setting, usual_sizes
from normgen.codegen.compilation import Compilation
from normgen.counting import bytes_text
from normgen.diagnostics import Source
from normgen.dsl import load_definition
from normgen.launching.machine import usual_machine
from tests.cli.commands import run

SIZES = ("--size", "D=4096", "--size", "...=1024")


def plain(line: Line) -> str:
    return unescape(re.sub("<[^>]*>", "", line.html))


def page(*arguments: str) -> str:
    done = run("explain", *arguments, "--html")
    assert (done.exit_code, done.stderr) == (exits.OK, ""), done.output
    return done.stdout


@cache
def compiled(name: str) -> Compilation:
    return Compilation(read_definition(name, {}))


def setting(name: str, direction: str = BOTH) -> Setting:
    lengths = usual_sizes(compiled(name).package, {"...": 1024})
    return Setting(lengths, "bf16", usual_machine("sm_90"), direction)


@cache
def parts(name: str) -> list[Explained]:
    return explained(compiled(name), setting(name))


@cache
def code(name: str, direction: int) -> Listing:
    return code_of(parts(name)[direction], compiled(name).definition, setting(name))


def test_the_page_asks_for_nothing_and_runs_nothing_foreign() -> None:
    text = page("softmax", *SIZES)
    assert not re.findall(r"""(?:src|href)=["'](?!#)|@import|url\((?!#)""", text)
    assert "... = 1024, D = 4096 in bf16, on NVIDIA H200" in text
    for svg in re.findall(r"<svg.*?</svg>", text, re.DOTALL):
        ElementTree.fromstring(svg)
    assert text.count("<svg") == 2 and text.count("<math>") >= 6


def test_sizes_types_and_architectures_are_those_asked_for() -> None:
    text = page("rmsnorm", *SIZES, "--dtype", "f32", "--arch", "sm_80", "--direction", "forward")
    assert "in f32, on NVIDIA A100" in text and text.count("<svg") == 1
    assert "1024 × 4096 f32" in text and "rmsnorm_backward" not in text


def test_bytes_of_the_picture_are_those_that_are_moved() -> None:
    for each in parts("layernorm"):
        accesses = [one for step in each.flow.steps for one in (*step.reads, *step.writes)]
        assert each.moved.startswith(bytes_text(sum(one.bytes for one in accesses)))
        assert all(one.bytes > 0 for one in accesses)
    backward = parts("layernorm")[1]
    kinds = {array.name.rpartition(".")[2]: array.kind for array in backward.flow.arrays.values()}
    assert (kinds["dw_sum"], kinds["mu"], kinds["dx"]) == ("scratch", "saved", "gradient")
    first, second = backward.flow.steps
    scratch = {name for name, array in backward.flow.arrays.items() if array.kind == "scratch"}
    assert scratch == {one.array for one in second.reads} <= {one.array for one in first.writes}


def test_statements_are_linked_to_lines_of_the_spec_and_formulas_too() -> None:
    forward, backward = parts("rmsnorm")
    listing = code("rmsnorm", 0)
    text = [(plain(line), line.lines) for line in listing.kernels]
    assert [lines for said, lines in text if "// rmsnorm.norm:8" in said] == [(8,)]
    assert [lines for said, lines in text if "// rmsnorm.norm:9" in said] == [(9,)]
    assert all(lines == (5,) for said, lines in text if said.strip() == "const x_t* x_ptr,")
    assert not any(line.lines for line in listing.functions) and len(listing.functions) > 100
    assert [row.line for row in forward.formulas] == [8, 9]
    assert [row.line for row in backward.formulas] == [5, 6]  # dx is of x, dw of w
    assert {n for line in code("rmsnorm", 1).kernels for n in line.lines} >= {5, 6, 8}


def test_links_are_the_same_wherever_the_spec_is() -> None:
    place = Source("some where/my rmsnorm.norm", compiled("rmsnorm").definition.source.text)
    named = {line.lines for line in code("rmsnorm", 0).kernels if "// rmsnorm.norm:" in plain(line)}
    moved = Compilation(load_definition(place, {}))
    found = code_of(explained(moved, setting("rmsnorm"))[0], moved.definition, setting("rmsnorm")).kernels
    assert {line.lines for line in found if "// my_rmsnorm.norm:" in plain(line)} == named == {(8,), (9,)}


def test_no_line_of_the_text_is_lost() -> None:
    text = run("explain", "rmsnorm", *SIZES, "--emit", "cuda").stdout
    shown = [*code("rmsnorm", 0).functions, *code("rmsnorm", 0).kernels]
    without_places = re.compile(r": line \d+$", re.MULTILINE)  # the command prints a head before the text
    assert without_places.sub("", "\n".join(map(plain, shown)).strip()) in without_places.sub("", text)
    assert [line.number for line in shown] == list(range(1, len(shown) + 1))


def test_what_a_user_writes_means_nothing_to_the_browser() -> None:
    Path("bad.norm").write_text(
        'norm bad "<script>alert(1)</script>"\ninput x[..., D] "<b>"  # </ol>\noutput y[..., D] = x * 2\n'
    )
    text = page("bad.norm")
    assert "<script>alert" not in text and "<b>" not in text and "&lt;b&gt;" in text


def test_the_file_is_named_by_the_user_and_kept_from_harm(tmp_path: Path) -> None:
    Path("scale.norm").write_text("norm scale\ninput x[..., D]\noutput y[..., D] = x * 2\ngrad y wrt x\n")
    target = tmp_path / "deep" / "page.html"
    assert run("explain", "scale.norm", "--html", "-o", str(target)).exit_code == exits.OK
    assert target.read_text().startswith("<!DOCTYPE html>")
    assert "is up to date" in run("explain", "scale.norm", "--html", "-o", str(target)).stderr
    target.write_text("mine")
    refused = run("explain", "scale.norm", "--html", "-o", str(target))
    assert refused.exit_code == exits.USAGE and "--force" in refused.stderr and target.read_text() == "mine"
    folder = run("explain", "scale.norm", "--html", "-o", str(tmp_path))
    assert folder.exit_code == exits.USAGE and "name the file to write" in folder.stderr


def test_html_is_no_stage() -> None:
    done = run("explain", "softmax", "--html", "--emit", "ir")
    assert done.exit_code == exits.USAGE and "omit --emit" in done.stderr


def test_a_norm_without_kernels_has_a_page_with_its_formulas_and_the_reason() -> None:
    text = page("extreme.norm")
    assert "no kernel yet" in text and "<math>" in text and "<svg" not in text


@pytest.mark.parametrize("name", ["batchnorm", "rmsnorm_quantized_tensor"])
def test_other_norms_have_pictures(name: str) -> None:
    for each in parts(name):
        assert each.schedule
        ElementTree.fromstring(str(each.picture))
