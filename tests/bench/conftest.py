"""The benchmark is a program beside the package, not part of it; its folder's parent is put on the path."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent.parent))
