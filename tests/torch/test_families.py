"""What `patch` reports of the norms of eleven families of models."""

from __future__ import annotations

from tests.torch.families import FAMILIES
from tests.torch.norms import nt


def test_reports_of_families_of_models(golden):
    reports = [f"== {family}\n{nt.patch(make())}\n" for family, make in FAMILIES.items()]
    golden("patch_reports.txt", "\n".join(reports))
