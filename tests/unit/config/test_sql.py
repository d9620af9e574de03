"""The settings of a database: their passwords are shown nowhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.config.database_address import DatabaseAddress
from penstock.config.loader import load
from penstock.errors import ConfigError

PASSWORD = "s3cr3t"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "db",
        f"oracle://me:{PASSWORD}@db/x",
        f"mysql:me:{PASSWORD}@db/x",
        f"mysql://me:{PASSWORD}@db",
        f"mysql://me:{PASSWORD}@db/",
        f"mysql://me:{PASSWORD}@/x",
        f"mysql://me:{PASSWORD}@db:port/x",
        f"mysql://me:{PASSWORD}@db:70000/x",
        f"mysql://me:{PASSWORD}@db/x/y",
        f"mysql://me:{PASSWORD}@db/x#y",
        f"mysql://me:{PASSWORD}@db/x?y",
        f"mysql://me:{PASSWORD}/1@db/x",
        "sqlite://queue.db",
        "sqlite:///",
        "sqlite:///folder/",
    ],
)
def test_what_is_no_address_is_refused_without_being_shown(text: str) -> None:
    with pytest.raises(ConfigError, match="address") as refused:
        load(None, {"PENSTOCK_SQL_URL": text or "x"}, {})
    assert PASSWORD not in str(refused.value)


def test_a_value_of_the_wrong_type_in_a_file_is_not_shown(tmp_path: Path) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text(f'[sql]\nurl = ["{PASSWORD}"]\n')
    with pytest.raises(ConfigError, match=r"\(hidden\)") as refused:
        load(file, {}, {})
    assert PASSWORD not in str(refused.value)


def test_the_address_can_be_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "url"
    file.write_text(f"mysql://me:{PASSWORD}@db/orders\n")
    settings = load(None, {}, {"sql.url_file": str(file)}).config.sql
    assert settings.address() == DatabaseAddress.parse(f"mysql://me:{PASSWORD}@db/orders")
    file.write_text(PASSWORD)
    with pytest.raises(ConfigError, match="a database address begins with") as refused:
        settings.address()
    assert PASSWORD not in str(refused.value)
    file.unlink()
    with pytest.raises(ConfigError, match="cannot be read"):
        settings.address()


def test_the_address_is_given_in_one_way() -> None:
    with pytest.raises(ConfigError, match="one of them"):
        load(None, {}, {"sql.url": "sqlite:///x", "sql.url_file": "y"})


def test_a_broker_that_has_only_a_database_stores_topics_in_it() -> None:
    loaded = load(None, {"PENSTOCK_SQL_URL": "sqlite:///x"}, {})
    assert loaded.config.topic["penstock.storage"] == "sql"
    assert loaded.origins["topic.penstock.storage"] == "sql.url (environment PENSTOCK_SQL_URL)"
    assert loaded.config.in_cluster


@pytest.mark.parametrize(
    "more", [{"cluster.coordinator": "zk://127.0.0.1:2181/penstock"}, {"topic.penstock.storage": "segmented"}]
)
def test_one_that_has_zookeeper_or_says_otherwise_does_not(more: dict[str, str]) -> None:
    topic = load(None, {}, {"sql.url": "sqlite:///x", **more}).config.topic
    assert topic.get("penstock.storage", "segmented") == "segmented"


def test_topics_cannot_be_stored_in_a_database_that_is_not_named() -> None:
    with pytest.raises(ConfigError, match=r"set sql\.url"):
        load(None, {}, {"topic.penstock.storage": "sql"})
