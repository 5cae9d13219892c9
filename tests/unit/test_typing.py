"""
Pyright sees the types that mypy sees: `make check` runs mypy on the same files.
"""

import json
import subprocess
import sys

from tests.docs.pages import ROOT


def test_pyright_agrees_with_every_type_that_is_asserted(tmp_path):
    config = tmp_path / "pyrightconfig.json"
    config.write_text(
        json.dumps(
            {
                "include": [str(ROOT / "tests" / "typing")],
                "extraPaths": [str(ROOT / "src")],
                "pythonVersion": "3.11",
                "typeCheckingMode": "standard",  # as pyright has it
                "reportUnnecessaryTypeIgnoreComment": "error",  # what mypy refuses, it must refuse, too
            }
        )
    )
    command = ["-m", "basedpyright", "--project", str(config), "--pythonpath", sys.executable]
    checked = subprocess.run([sys.executable, *command], check=False, capture_output=True, text=True)
    assert (0, "0 errors, 0 warnings, 0 notes") == (checked.returncode, checked.stdout.strip()), (
        checked.stderr
    )
