"""The paths of the checkout and of its command."""

import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
CLUSTER = str(Path(sys.executable).parent / "cluster")
