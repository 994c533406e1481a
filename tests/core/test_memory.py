import platform
import re
import subprocess
import sys

import pytest

# glibc reports in malloc_stats how many bytes it has mapped at most.
PROGRAM = """
import ctypes
from fl_lightning.core.memory import reuse_freed_memory
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
assert reuse_freed_memory()
libc.malloc(10_000_000)
libc.malloc_stats()
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has these settings")
def test_large_blocks_are_no_longer_mapped_one_by_one():
    assert _mapped_bytes(PROGRAM) < 10_000_000 <= _mapped_bytes(PROGRAM.replace("assert reuse_freed_memory()", ""))


def _mapped_bytes(program: str) -> int:
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return int(re.search(r"max mmap bytes +=( +\d+)", finished.stderr).group(1))
