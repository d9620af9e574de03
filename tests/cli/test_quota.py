"""`penstock quota` as it is run, against a real broker."""

from __future__ import annotations

from collections.abc import Sequence
from subprocess import CompletedProcess

import pytest

from support.broker_process import BrokerProcess
from support.commands import complaint, said, told
from support.programs import PENSTOCK, run


def quota(broker: BrokerProcess, *arguments: str) -> CompletedProcess[bytes]:
    return run([PENSTOCK, "quota", *arguments, "-b", broker.kafka])


def test_a_quota_is_set_listed_and_removed(broker: BrokerProcess, topic: str) -> None:
    user = f"User of {topic}"
    done = quota(broker, "set", "--user", user, "producer_byte_rate=1024", "request_percentage=12.5")
    assert said(done) == f"user '{user}': producer_byte_rate=1024, request_percentage=12.5\n"
    quota(broker, "set", "--user", user, "--default-client-id", "consumer_byte_rate=2048")
    assert told(quota(broker, "list", "--user", user, "--json")) == [
        {"entity": {"user": user}, "limits": {"producer_byte_rate": 1024.0, "request_percentage": 12.5}},
        {"entity": {"user": user, "client-id": None}, "limits": {"consumer_byte_rate": 2048.0}},
    ]
    listed = said(quota(broker, "list", "--user", user, "--default-client-id"))
    assert [line.split()[-2:] for line in listed.splitlines()[1:]] == [["consumer_byte_rate", "2048"]]
    assert said(quota(broker, "remove", "--user", user, "producer_byte_rate")).endswith("removed producer_byte_rate\n")
    assert said(quota(broker, "remove", "--user", user)).endswith("removed request_percentage\n")
    assert "has no quota" in complaint(quota(broker, "remove", "--user", user))
    quota(broker, "remove", "--user", user, "--default-client-id")
    nothing = quota(broker, "list", "--user", user)
    assert (nothing.stdout, nothing.stderr) == (b"", b"no quota\n")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["producer_byte_rate=1"], "say whom the quota is for"),
        (["--user", "a", "producer_byte_rate"], "expected KEY=NUMBER"),
        (["--user", "a", "bytes=1"], "expected KEY=NUMBER"),
        (["--user", "a", "--default-user", "producer_byte_rate=1"], "exclude each other"),
        (["--user", "", "producer_byte_rate=1"], "--user is empty"),
        (["--user", "a", "--ip", "10.0.0.1", "producer_byte_rate=1"], "an ip does not go with a user"),
    ],
)
def test_what_is_no_quota_is_refused(arguments: Sequence[str], reason: str) -> None:
    assert reason in complaint(run([PENSTOCK, "quota", "set", *arguments, "-b", "127.0.0.1:1"]), 2)


def test_what_the_broker_refuses_is_said(broker: BrokerProcess) -> None:
    refused = quota(broker, "set", "--ip", "10.0.0.1", "producer_byte_rate=1")
    assert "Invalid configuration key producer_byte_rate" in complaint(refused)
