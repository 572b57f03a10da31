"""Exit codes of the command line, documented in its help and in docs/commands.md."""

from __future__ import annotations

OK = 0
FAULTS = 1  # an error in a spec or an attr value; a failed check; an outdated file
USAGE = 2  # a usage error, or a file that cannot be read or written
TOOLCHAIN = 3  # no compiler, or a platform that cannot run kernels
GPU = 4  # no usable GPU, or an error of its driver
INTERNAL = 70  # a bug in normgen, including generated code that does not compile
INTERRUPTED = 130  # Ctrl-C

SUMMARY = """\
Exit codes: 0 success; 1 an error in the spec or in an attr value, a failed check, or an outdated
file; 2 a usage error; 3 no compiler; 4 no usable GPU; 70 a bug in normgen: please report it.
"""
