"""Every operation is declared: its role, its scope, and that it is audited."""

from __future__ import annotations

import inspect
from pathlib import Path

from penstock.console.console import Console
from penstock.console.operations.operation import operations_of
from penstock.console.security.roles import Role

from .conftest import console_settings


def test_every_public_method_of_a_service_is_a_declared_operation(tmp_path: Path) -> None:
    services = Console(console_settings("127.0.0.1:1", tmp_path)).services
    names: list[str] = []
    for service in services:
        declared = dict(operations_of(type(service)))
        public = {
            name
            for name, member in inspect.getmembers(type(service), inspect.isfunction)
            if not name.startswith("_") and (inspect.iscoroutinefunction(member) or inspect.isasyncgenfunction(member))
        }
        assert public == set(declared), f"{type(service).__name__}: {public ^ set(declared)}"
        names += [operation.name for operation in declared.values()]
    assert len(set(names)) == len(names), "two operations have the same name"


def test_every_change_needs_more_than_a_viewer(tmp_path: Path) -> None:
    for service in Console(console_settings("127.0.0.1:1", tmp_path)).services:
        for _, operation in operations_of(type(service)):
            if operation.is_change and not operation.name.startswith("account."):
                assert operation.role.covers(Role.OPERATOR), operation.name


def test_all_services_of_the_console_are_enumerated(tmp_path: Path) -> None:
    from penstock.console.operations.operation import Service

    console = Console(console_settings("127.0.0.1:1", tmp_path))
    held = {value for value in vars(console).values() if isinstance(value, Service)}
    assert held == set(console.services)
