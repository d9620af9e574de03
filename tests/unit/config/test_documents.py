"""What docs/configuration.md says of groups and transactions is all there is, with its defaults."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from penstock.config.broker import Config, spelled
from penstock.config.group import GROUP_SETTINGS

PAGE = Path(__file__).parents[3] / "docs" / "configuration.md"
ROW = re.compile(r"^\| `(?P<name>[a-z_]+)` \| `?(?P<default>[^`|]+?)`? \|", re.MULTILINE)


def chapter(title: str) -> str:
    (found,) = re.findall(rf"^## {title}\n(.*?)(?=^## )", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return str(found)


@pytest.mark.parametrize(("title", "section"), [("Groups", "groups"), ("Transactions", "transactions")])
def test_every_setting_is_written_down_with_its_default(title: str, section: str) -> None:
    values = getattr(Config(), section)
    expected = {name: spelled(getattr(values, name)) for name in type(values).__dataclass_fields__}
    assert {row["name"]: row["default"] for row in ROW.finditer(chapter(title))} == expected


def test_every_setting_of_a_group_is_written_down() -> None:
    named = re.findall(r"`([a-z]+\.[a-z.]+)`", chapter("Settings of a group"))
    assert set(named) == set(GROUP_SETTINGS)
