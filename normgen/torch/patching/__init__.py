"""Norms of whole models: replaced by normgen's, and put back."""

from __future__ import annotations

from normgen.torch.patching.patch import patch, unpatch
from normgen.torch.patching.report import Left, Replaced, Report

__all__ = ["Left", "Replaced", "Report", "patch", "unpatch"]
