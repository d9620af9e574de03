"""The generators of reference pages are in a folder of the checkout, not in the package."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
