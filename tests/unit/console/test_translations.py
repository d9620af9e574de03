"""Every text of the console's pages has a Chinese one, with the same {names} in it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import penstock.console

_STATIC = Path(penstock.console.__file__).parent / "static"
_TEXT = re.compile(r'\bt\(\s*"((?:[^"\\]|\\.)+)"')
_PLURAL = re.compile(r'\bplural\(\s*[^"]*?"((?:[^"\\]|\\.)+)",\s*"((?:[^"\\]|\\.)+)"')
_SECTION = re.compile(r'\[\s*"\w+",\s*"([^"]+)",\s*"/')
_STATE = re.compile(r'\["(?:ok|warn|error|idle)", "([^"]+)"\]')
_ENTRY = re.compile(r'^  (?:"((?:[^"\\]|\\.)+)"|(\w+)):\s*"((?:[^"\\]|\\.)+)",$', re.MULTILINE)
_NAME = re.compile(r"\{\w+\}")


def _texts() -> set[str]:
    found: set[str] = set()
    for path in [*_STATIC.glob("*.js"), *(_STATIC / "pages").glob("*.js")]:
        source = path.read_text()
        found.update(match[1] for match in _TEXT.finditer(source))
        found.update(text for match in _PLURAL.finditer(source) for text in (match[1], match[2]))
        found.update(match[1] for match in _SECTION.finditer(source))
        found.update(match[1] for match in _STATE.finditer(source))
    return {json.loads(f'"{text}"') for text in found}


def _chinese() -> dict[str, str]:
    source = (_STATIC / "zh.js").read_text()
    pairs = ((match[1] or match[2], match[3]) for match in _ENTRY.finditer(source))
    return {json.loads(f'"{english}"'): json.loads(f'"{chinese}"') for english, chinese in pairs}


def test_every_text_has_a_translation() -> None:
    texts = _texts()
    assert len(texts) > 500, "the texts of the pages are not found any more"
    assert sorted(texts - _chinese().keys()) == []


def test_translations_have_the_same_names_in_them() -> None:
    wrong = [text for text, chinese in _chinese().items() if set(_NAME.findall(text)) != set(_NAME.findall(chinese))]
    assert wrong == []
