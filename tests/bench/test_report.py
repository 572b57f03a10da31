"""Results: merged by name, their tables, the pages that they go into."""

from __future__ import annotations

import csv
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.bench.programs import BENCH, program, row

HEADER = {
    "device": "Imaginary",
    "kernels": "these",
    "commit": "abc1234",
    "versions": {"torch": "2.11"},
    "absent": {"quack": "No module named 'quack'"},
}


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> Any:
    return program("report", monkeypatch)


@pytest.fixture
def tables(report: Any) -> Any:
    return sys.modules["tables"]


@pytest.fixture
def results(report: Any) -> Any:
    return report.results


def test_later_rows_win_name_by_name(results: Any, tmp_path: Path) -> None:
    assert results.read(tmp_path) == ({}, [])
    results.start(tmp_path, HEADER)
    results.add(tmp_path, HEADER, [row("normgen", 20.0), row("torch", 40.0), row("torch", 7.0, dtype="f32")])
    results.add(tmp_path, HEADER, [row("normgen", 12.5), row("compile", 25.0), row("liger", fault="broken")])
    header, rows = results.read(tmp_path)
    assert header == {"schema": 2, **HEADER}
    assert [(r["dtype"], r["provider"], r.get("us")) for r in rows] == [
        ("bf16", "compile", 25.0), ("bf16", "liger", None), ("bf16", "normgen", 12.5),
        ("bf16", "torch", 40.0),
        ("f32", "torch", 7.0),
    ]  # fmt: skip
    assert [path.name for path in tmp_path.iterdir()] == ["results.json"]


def test_a_file_holds_one_run(results: Any, tmp_path: Path) -> None:
    for changed, told in (
        ({"device": "Another"}, "its device is Imaginary, not Another"),
        ({"versions": {"torch": "2.12"}}, "versions"),
        ({"kernels": "other"}, "kernels"),
        ({"absent": {}}, "absent"),
    ):
        results.start(tmp_path, HEADER)
        results.add(tmp_path, HEADER, [row("normgen", 20.0)])
        with pytest.raises(results.OtherRun, match=told):
            results.add(tmp_path, HEADER | changed, [row("normgen", 1.0)])
        assert results.read(tmp_path)[1] == [row("normgen", 20.0)]
        results.start(tmp_path, HEADER | changed)
        assert results.read(tmp_path) == ({"schema": 2, **HEADER, **changed}, [])


def test_a_line_has_every_provider(tables: Any) -> None:
    rows = [row("normgen", 12.5), row("torch", 40.0), row("compile", 25.0)]
    head, _, line = tables.lines_table(rows).strip().splitlines()
    assert "| normgen | torch | torch.compile | host us | against the best peer |" in head
    assert line.endswith("| 12.5 (0.800) | 40.0 (0.250) | 25.0 (0.400) | 5.0 | 2.00x |")


def test_a_peer_counts_at_its_own_accuracy_and_is_marked(tables: Any) -> None:
    coarse = row("torch", 20.0, wrong="relative error 0.2", error=0.2)
    rows = [row("normgen", 12.5), coarse, row("liger", 5.0, wrong="relative error 0.9", error=0.9)]
    text = tables.lines_table(rows)
    assert "20.0* (0.500)" in text and "1.60x*" in text
    assert "- liger: relative error 0.9 (1: groupnorm" in text
    assert "| 0.500* | 0.800 | 0.500* |" in tables.summary_table(rows), "the best peer is torch"


def test_ahead_even_and_behind_are_counted_apart(tables: Any) -> None:
    for times, wanted in (((101.0, 98.5, 110.0), (1, 2, 0)), ((97.0, 50.0, 99.0), (0, 1, 2))):
        lines = [{"normgen": row("normgen", 100.0), "torch": row("torch", us)} for us in times]
        assert tables.verdicts([*lines, {"normgen": row("normgen", 1.0)}]) == wanted


def test_faults_are_told_once(tables: Any) -> None:
    fault = {"fault": "no kernel yet"}
    text = tables.lines_table([row("normgen", **fault), row("normgen", **fault, direction="backward")])
    assert text.count("no kernel yet") == 1 and "(2: groupnorm forward" in text
    assert "| - |" in text


def test_geometric_means_and_where_normgen_is_ahead(tables: Any) -> None:
    rows = [
        row("normgen", 10.0), row("torch", 40.0), row("quack", 20.0),
        row("normgen", 40.0, shape=[8, 640]), row("torch", 10.0, shape=[8, 640]),
    ]  # fmt: skip
    head, _, line = tables.summary_table(rows).strip().splitlines()
    assert head.endswith("| lines | best peer | normgen | torch | quack | ahead | even | behind |")
    # shares 1 and 1/4; best peers 1/2 and 1; torch 1/4 and 1; quack of one line of two
    assert line.endswith("| 2 | 0.707 | 0.500 | 0.500 | 0.500 (1) | 1 | 0 | 1 |")


def test_widths(tables: Any) -> None:
    """The better share is bold, even ones are not, and an arrow marks where normgen is behind."""
    shapes = ([32, 256], [32, 512], [32, 1024], [32, 2048])
    rows = [row("normgen", 10.0, shape=s, layout="rows", op="rmsnorm") for s in shapes]
    rows += [
        row("torch", us, shape=s, layout="rows", op="rmsnorm")
        for us, s in zip((20.0, 10.1, 8.0), shapes, strict=False)
    ]
    rows += [row("normgen", 20.0, shape=shapes[0], layout="rows", op="rare")]
    assert tables.width_table(rows, "forward").splitlines() == [
        "| D | rmsnorm |", "| --- | --- |",
        "| 256 | **1.00** / 0.50 |", "| 512 | 1.00 / 0.99 |", "| 1024 | 1.00 / **1.25** ▼ |",
        "| 2048 | 1.00 / - |",
    ]  # fmt: skip
    assert tables.losses(rows) == "`rmsnorm` forward at 1024"
    measured = tables.means_table(rows[:3] + rows[4:7], "forward")
    assert "| rmsnorm | rows | **1.00** / 0.85 | 1 / 1 / 1 |" in measured


def test_a_section_is_replaced_and_the_rest_stays(report: Any) -> None:
    page = "# Title\n\ntext\n"
    once = report.merge_section(page, "checks", "one\n")
    assert once.startswith(page) and "one" in once
    both = report.merge_section(once, "performance", "other") + "\nby hand\n"
    again = report.merge_section(both, "checks", "two")
    assert again == both.replace("one", "two")
    with pytest.raises(ValueError, match="not closed"):
        report.merge_section(once.replace("<!-- end", "<!-- fin"), "checks", "two")


def test_the_page_of_a_folder(report: Any) -> None:
    rows = [row("normgen", 12.5), row("normgen", 2.0, layout="decode", shape=[1, 4096])]
    text = report.performance(HEADER, rows, ["rows-bf16.svg"])
    assert "on one Imaginary" in text and "torch 2.11" in text and "quack was not there: No module" in text
    assert "### Images" in text and "### Decoding" in text and "### Rows" not in text
    assert "![rho](rows-bf16.svg)" in text


def test_pages_show_the_results_that_there_are(report: Any) -> None:
    """What is committed belongs together: results.json, the folder's page, and the page that shows it.

    Results of an earlier schema keep the page that was written with them.
    """
    shown_on, shown = (BENCH.parent / "docs" / "performance.md").read_text(), []
    for folder in sorted((BENCH / "results").iterdir()):
        header, rows = report.results.read(folder)
        if not rows or header["schema"] != report.results.SCHEMA:
            continue
        plots = sorted(path.name for path in folder.glob("*.svg"))
        page = (folder / "README.md").read_text()
        for plot in plots:
            assert f"]({plot})" in page
        assert report.summary_table(rows).strip() in page, (
            f"python bench/report.py bench/results/{folder.name}"
        )
        if f"bench/results/{folder.name}/README.md)" in shown_on:
            assert report.page_section(header, rows, folder.name).strip() in shown_on
            shown.append(folder.name)
    assert shown == ["h200"], "the page shows one run"


def test_the_readme_shows_the_results_of_the_page(report: Any) -> None:
    header, rows = report.results.read(BENCH / "results" / "h200")
    mine = [row for row in rows if row["dtype"] == "bf16"]
    ahead, even, behind = report.verdicts(report.lines(mine).values())
    text = words_of("README.md")
    assert f"On an {header['device'].removeprefix('NVIDIA ')} in bf16" in text
    assert f"in {ahead} of {ahead + even + behind} comparisons, within 2 % in {even} and" in text
    assert f"slower in {behind}." in text
    assert f"{len({row['op'] for row in mine})} of the [40 bundled norms]" in words_of("docs/performance.md")


def test_steps_of_models_are_those_of_the_evidence() -> None:
    """In milliseconds, the last that were measured on an H200."""
    with (BENCH / "evidence" / "torch_models.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["device"] == "NVIDIA H200"]
    variants = ("eager", "normgen", "compile", "normgen compile")
    for model, name in (("llama", "Llama"), ("resnet", "ResNet-50"), ("unet", "U-net")):
        steps = {row["variant"]: float(row["ms"]) for row in rows if row["model"] == model}
        cells = re.search(rf"\| {name}[^|]*\|(.*?)\| [A-Z]", words_of("docs/performance.md") + "| A")
        assert cells
        shown = re.findall(r"\d+\.\d", cells[1])[:4]
        wanted = [steps[variant] for variant in variants]
        assert [float(each) for each in shown] == pytest.approx(wanted, abs=0.051), name
        if model == "llama":
            said = "takes {} ms, and {} ms patched; compiled, {} and {} ms".format(*shown)
            assert said in words_of("README.md")


def words_of(page: str) -> str:
    return " ".join((BENCH.parent / page).read_text(encoding="utf-8").split())
