"""What the tests of the handlers share."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from support.tree import Tree


@pytest.fixture
async def tree(tmp_path: Path) -> AsyncIterator[Tree]:
    tree = await Tree.open(tmp_path / "coordination.db")
    assert isinstance(tree, Tree)
    yield tree
    await tree.close()
