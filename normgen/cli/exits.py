"""Exit codes of the command line, documented in its help and in docs/commands.md."""

from __future__ import annotations

OK = 0
FAULTS = 1  # diagnostics of a spec or of its attr values; a failed check; a file that is not up to date
USAGE = 2  # a wrong command line, or a file that it names cannot be read or written
TOOLCHAIN = 3  # no compiler, or a platform on which kernels cannot run
GPU = 4  # no usable GPU, or its driver refused
INTERNAL = 70  # a fault of normgen itself, generated code that does not compile included
INTERRUPTED = 130  # Ctrl-C

SUMMARY = """\
Exit codes: 0 fine; 1 a fault in the spec or its attr values, a failed check, or a file that is
not up to date; 2 a wrong command line; 3 a compiler is missing; 4 no usable GPU; 70 a fault of
normgen itself, to be reported.
"""
