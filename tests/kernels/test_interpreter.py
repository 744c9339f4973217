"""Triton kernels in Triton's interpreter, which runs them in Python on a CPU.

Triton reads the mode when a kernel is defined, so the tests of `interpreted_*.py` have processes of
their own.
"""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        find_spec("triton") is None,
        reason="triton is not installed: pip install 'rag-middle[kernels]'",
    ),
]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("subject", ["checks", "pine", "rotate_heads", "rotor", "spans"])
def test_kernels_compute_what_pytorchs_operators_compute(subject: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--timeout", "300",
         str(Path(__file__).with_name(f"interpreted_{subject}.py"))],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=590,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[-2000:]
