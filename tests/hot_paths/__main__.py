"""``python -m tests.hot_paths`` prints the work of each hot path; ``--write`` makes it the budget.

The work of compiled modules cannot be counted, so all modules run from their sources (``PARLEY_PURE``), in a new
process.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.hot_paths.budgets import BUDGETS, PYTHON

ROOT = Path(__file__).parent.parent.parent
COUNTING = "import json, sys; from tests.hot_paths.paths import measured; json.dump(measured(), open(sys.argv[1], 'w'))"
WAIT_S = 240


def counted() -> dict[str, int]:
    """Count the work of each path in a new process. Raises ``CalledProcessError`` if a path fails."""
    environment = {**os.environ, "PARLEY_PURE": "1", "PYTHONHASHSEED": "0"}
    with tempfile.TemporaryDirectory(prefix="parley-hot-paths-") as folder:
        result = Path(folder) / "counted.json"
        words = [sys.executable, "-c", COUNTING, str(result)]
        subprocess.run(words, cwd=ROOT, env=environment, check=True, timeout=WAIT_S)
        found: dict[str, int] = json.loads(result.read_text())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.hot_paths", description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the file of budgets")
    given = parser.parse_args()
    if sys.version_info[:2] != PYTHON:
        parser.error(f"the budgets are for Python {'.'.join(map(str, PYTHON))}")
    found = json.dumps(counted(), indent=1)
    print(found)
    if given.write:
        BUDGETS.write_text(found + "\n")


if __name__ == "__main__":
    main()
