"""The pages say of every operation what it gives, and of none that means nothing."""

from __future__ import annotations

import re
from pathlib import Path

import penstock.console
from penstock.security.acls import OPERATIONS_OF, Operation, ResourceType

_SOURCE = Path(penstock.console.__file__).parent / "static" / "pages" / "acl_meanings.js"
_KIND = re.compile(r"^  ([A-Z_]+): \{\n(.*?)^  \},$", re.MULTILINE | re.DOTALL)
_OPERATION = re.compile(r"^    ([A-Z_]+): t\(", re.MULTILINE)
_UNKNOWN_TO_CLIENTS = {ResourceType.DELEGATION_TOKEN, ResourceType.USER}


def test_every_operation_has_a_meaning_in_words() -> None:
    told = {kind: set(_OPERATION.findall(body)) for kind, body in _KIND.findall(_SOURCE.read_text())}
    assert told == {
        type_.name: {Operation.ALL.name, *(each.name for each in operations)}
        for type_, operations in OPERATIONS_OF.items()
        if type_ not in _UNKNOWN_TO_CLIENTS
    }
