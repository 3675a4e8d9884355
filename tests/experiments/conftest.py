"""`experiments/` is not installed: the scripts run from the root of the repository, and so do their tests."""

import sys
from pathlib import Path

ROOT = str(Path(__file__).parents[2])
if ROOT not in sys.path:
    sys.path.append(ROOT)
