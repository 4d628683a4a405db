"""A test that was expected to fail and passes is a failure, even if its mark is not strict."""

from __future__ import annotations

from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Final

import pytest
from expected_failures import NoUnexpectedPass

SUITE: Final = """
import pytest

@pytest.mark.xfail(reason="known", strict=False)
def test_by_a_mark():
    pass

def test_by_a_mark_at_run_time(request):
    request.applymarker(pytest.mark.xfail(reason="known", strict=False))

@pytest.mark.xfail(reason="known", strict=False)
def test_that_fails():
    raise ValueError

def test_that_fails_today():
    pytest.xfail("known")

def test_that_passes():
    pass
"""


def test_an_unexpected_pass_is_a_failure_and_no_other_outcome_changes(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib\n")
    (tmp_path / "test_expected.py").write_text(SUITE)
    argv = ["-q", "-rf", "-p", "no:cacheprovider", f"--rootdir={tmp_path}", f"-c{tmp_path}/pytest.ini"]

    with redirect_stdout(StringIO()) as out:
        code = pytest.main([*argv, str(tmp_path)], plugins=[NoUnexpectedPass()])

    assert code == pytest.ExitCode.TESTS_FAILED
    assert out.getvalue().splitlines()[-1].startswith("2 failed, 1 passed, 2 xfailed in ")
    failures = [line for line in out.getvalue().splitlines() if line.startswith("FAILED ")]
    # With CI set, a reason follows the name.
    names = [line.rpartition("::")[2].partition(" - ")[0] for line in failures]
    assert names == ["test_by_a_mark", "test_by_a_mark_at_run_time"]
