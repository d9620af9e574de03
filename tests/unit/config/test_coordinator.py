"""Where a cluster keeps its state, as it is spelled."""

from __future__ import annotations

import pytest

from penstock.config.coordinator import CoordinatorAddress, parse_coordinator
from penstock.config.loader import load
from penstock.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "servers", "chroot"),
    [
        ("zk://127.0.0.1:2181/penstock", "127.0.0.1:2181", "/penstock"),
        ("zk://a:1,b:2,[::1]:3/apps/one", "a:1,b:2,[::1]:3", "/apps/one"),
    ],
)
def test_servers_and_a_path_are_understood(text: str, servers: str, chroot: str) -> None:
    found = parse_coordinator(text)
    assert found == CoordinatorAddress(servers, chroot)
    assert str(found) == text


@pytest.mark.parametrize(
    "text",
    [
        "127.0.0.1:2181/penstock",
        "zk://127.0.0.1:2181",
        "zk://127.0.0.1:2181/",
        "zk://127.0.0.1:2181//a",
        "zk://127.0.0.1:2181/a/",
        "zk://127.0.0.1:2181/a/../b",
        "zk://127.0.0.1:2181/a b",
        "zk://127.0.0.1:0/a",
        "zk://127.0.0.1/a",
        "zk://a:1,/a",
        "zk:///a",
        "zk://a:1/" + "x" * 90,
    ],
)
def test_anything_else_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigError, match=r"cluster\.coordinator.*such as zk://127\.0\.0\.1:2181/penstock"):
        load(None, {}, {"cluster.coordinator": text})


def test_a_broker_is_alone_unless_it_is_told_otherwise() -> None:
    assert load(None, {}, {}).config.cluster.coordinator is None
    assert load(None, {}, {"cluster.coordinator": ""}).config.cluster.coordinator is None
