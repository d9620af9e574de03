"""Spark as a user that logs in through TLS, and may do what it does and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AclOperation, AdminClient, NewTopic, ResourcePatternType, ResourceType
from pyspark.errors import PySparkException

from conftest import SHARED, running_broker
from support.broker_process import BrokerProcess
from support.certificates import Authority, tls_settings
from support.sasl import librdkafka, sasl_settings
from support.secured import add_acls, bindings, set_password
from support.spark import run_stream, save, stream, table, values
from support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SOURCE, TARGET, COPIES, SECRET = "orders", "bills", "copies", "salaries"
USER, HER_PASSWORD = "ann", "wonder land 4711"
VALUES = [b"one", b"two", b"three"]
# `docs/pipeline.md` says that these are needed.
ALLOWED = [(ResourceType.TOPIC, name, AclOperation.READ) for name in (SOURCE, TARGET, COPIES)]
ALLOWED += [(ResourceType.TOPIC, name, AclOperation.WRITE) for name in (TARGET, COPIES)]
ALLOWED_BY_PREFIX = [
    (ResourceType.TRANSACTIONAL_ID, "penstock-spark.", AclOperation.WRITE),
    (ResourceType.GROUP, "penstock-spark.", AclOperation.READ),
]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[BrokerProcess]:
    folder = tmp_path_factory.mktemp("broker")
    settings = sasl_settings(folder, "SASL_SSL", authorizer="acls")
    with running_broker(folder, {**SHARED, **settings, **tls_settings(authority)}) as process:
        as_admin = librdkafka(process.kafka, ca_file=authority.file)
        admin = AdminClient(as_admin)
        for made in admin.create_topics([NewTopic(name, 2) for name in (SOURCE, TARGET, COPIES, SECRET)]).values():
            made.result(PATIENCE_S)
        set_password(admin, USER, HER_PASSWORD)
        add_acls(admin, bindings(USER, ALLOWED))
        add_acls(admin, bindings(USER, ALLOWED_BY_PREFIX, ResourcePatternType.PREFIXED))
        producer = Producer(as_admin)
        for topic in (SOURCE, SECRET):
            for value in VALUES:
                producer.produce(topic, value, partition=0)
        assert producer.flush(PATIENCE_S) == 0
        yield process


@pytest.fixture
def login(broker: BrokerProcess, authority: Authority) -> dict[str, object]:
    settings = librdkafka(broker.kafka, user=USER, password=HER_PASSWORD, ca_file=authority.file)
    return {f"kafka.{name}": value for name, value in settings.items() if name != "bootstrap.servers"}


def test_tables_and_streams_are_read_and_written(
    spark: SparkSession, broker: BrokerProcess, login: dict[str, object], tmp_path: Path
) -> None:
    frame = table(spark, broker, SOURCE, **login)
    assert values(frame) == VALUES
    save(frame.select("value"), broker, topic=TARGET, **login)
    assert sorted(values(table(spark, broker, TARGET, **login))) == sorted(VALUES)
    orders = stream(spark, broker, SOURCE, startingOffsets="earliest", **login)
    run_stream(orders.select("value"), broker, COPIES, tmp_path, **login)
    assert sorted(values(table(spark, broker, COPIES, **login))) == sorted(VALUES)


def test_what_the_user_may_not_is_an_error_without_the_password(
    spark: SparkSession, broker: BrokerProcess, login: dict[str, object]
) -> None:
    with pytest.raises(PySparkException, match=r"(?i)authorization|does not exist") as read:
        table(spark, broker, SECRET, **login).collect()
    frame = table(spark, broker, SOURCE, **login)
    with pytest.raises(PySparkException, match=r"(?i)authorization|does not exist") as written:
        save(frame.select("value"), broker, topic=SECRET, **login)
    plan = frame._jdf.queryExecution().toString()
    for said in (str(read.value), str(written.value), plan):
        assert HER_PASSWORD not in said
