"""The glossary is the dictionary of the code: its terms and places are there, and retired words are not."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "penstock"
PAGE = (ROOT / "docs" / "glossary.md").read_text()
ROW = re.compile(r"^\| ([a-z][a-z ,-]+) \| [^|]+ \| `([\w/.]+)` \|$", re.MULTILINE)
RETIRED_ROW = re.compile(r"^\| `(\w+)` \| `([\w/.]+)` \|$", re.MULTILINE)


@cache
def words_of_the_code() -> str:
    """Identifiers, comments and docstrings as words: `HighWatermark` and `high_watermark` are both `high watermark`."""
    text = " ".join(path.read_text() for path in sorted(SOURCE.rglob("*.py")))
    return re.sub(r"[\W_]+", " ", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", text)).lower()


def names_of_modules_and_classes() -> set[str]:
    names = set()
    for path in SOURCE.rglob("*.py"):
        names |= {path.stem, path.parent.name}
        names |= {node.name.lower() for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)}
    return names


def test_every_term_occurs_in_the_code() -> None:
    terms = [term.strip() for row in ROW.findall(PAGE) for term in row[0].split(",")]
    assert len(terms) > 50
    spoken = [re.sub(r"\W+", " ", term) for term in terms]
    assert [term for term in spoken if not re.search(rf"\b{term}(s|es|ed|d|ing)?\b", words_of_the_code())] == []


def test_every_place_exists() -> None:
    places = [place for _, place in (*ROW.findall(PAGE), *RETIRED_ROW.findall(PAGE))]
    assert [place for place in places if not (SOURCE / place).exists()] == []


def test_every_row_is_read_by_these_tests() -> None:
    rows = re.findall(r"^\| (?!term \||retired \| now)", PAGE, re.MULTILINE)
    assert len(rows) == len(ROW.findall(PAGE)) + len(RETIRED_ROW.findall(PAGE))


def test_retired_words_do_not_come_back() -> None:
    retired = {word for word, _ in RETIRED_ROW.findall(PAGE)}
    assert retired
    assert retired & names_of_modules_and_classes() == set()
