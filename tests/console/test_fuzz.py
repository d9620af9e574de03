"""The API against its own description: whatever comes, no call fails in a way that nobody thought of."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.core.result import Ok
from starlette.testclient import TestClient

from penstock.console.console import Console
from penstock.console.security.guard import COOKIE

from .conftest import BASE, CLUSTER, RunningConsole, app_of, console_settings, csrf_of, sign_in_once
from .needed_roles import NEEDED

_EXAMPLES = 5
_OWN_RIGHTS = ("/account/sessions", "/account/password", "/api/users", "/api/tokens", "/account/tokens")
"""What could take the caller's own rights away: tried in a console of its own, with a new session each time."""

# The description needs no console that runs.
_described = app_of(Console(console_settings("127.0.0.1:1", Path("unused")))).openapi()
schema = schemathesis.openapi.from_dict(_described)
# Hundreds of examples a call, which take minutes; switch it on when routes change much.
schema.config.phases.coverage.enabled = False
_about_clusters = schema.exclude(path_regex="|".join(_OWN_RIGHTS))
_about_rights = schema.include(path_regex="|".join(_OWN_RIGHTS))
_few = settings(
    max_examples=_EXAMPLES,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


def test_every_call_is_in_one_of_the_two() -> None:
    tried = []
    for part in (_about_clusters, _about_rights):
        for each in part.get_all_operations():
            assert isinstance(each, Ok), each
            tried.append((each.ok().method.lower(), each.ok().path))
    assert sorted(tried) == sorted(NEEDED)


@_about_clusters.parametrize()
@_few
def test_no_call_fails_unexpectedly_whoever_makes_it(case: schemathesis.Case[Any], running: RunningConsole) -> None:
    if "cluster" in case.path_parameters:
        case.path_parameters["cluster"] = CLUSTER
    for role in ("admin", "none", None):
        running.client.cookies.clear()
        kwargs = case.as_transport_kwargs(base_url=BASE)
        token = {} if role is None else {"authorization": f"Bearer {running.tokens[role]}"}
        kwargs["headers"] = {**kwargs.get("headers", {}), **token}
        answer = running.client.request(**kwargs)
        _check(answer)
        if role is None:
            assert answer.status_code == 401, answer.text


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Console, TestClient]]:
    """A console that nothing else is tried in; its cluster does not answer."""
    console = Console(console_settings("127.0.0.1:1", tmp_path_factory.mktemp("apart")))
    with TestClient(app_of(console), base_url=BASE) as client:
        yield console, client


@_about_rights.parametrize()
@_few
def test_no_call_about_rights_fails_unexpectedly(
    case: schemathesis.Case[Any], apart: tuple[Console, TestClient]
) -> None:
    console, client = apart
    sign_in_once(console, client)
    csrf = csrf_of(client)
    kwargs = case.as_transport_kwargs(base_url=BASE)
    kwargs["headers"] = {**kwargs.get("headers", {}), "x-csrf-token": csrf}
    kwargs["cookies"] = {COOKIE: client.cookies[COOKIE]}
    client.cookies.clear()
    _check(client.request(**kwargs))
    client.cookies.clear()
    kwargs = case.as_transport_kwargs(base_url=BASE)
    assert client.request(**kwargs).status_code == 401


def _check(answer: Any) -> None:
    assert answer.status_code not in (500, 501, 505), f"{answer.status_code} {answer.text}"
    if answer.status_code >= 400:
        told = answer.json()
        assert told["status"] == answer.status_code and told["detail"] and told["code"]
