"""Listeners: how they are written, which a broker opens, and what is refused."""

from __future__ import annotations

import pytest

from penstock.config.address import Address
from penstock.config.listeners import ListenerSettings, parse_advertised, parse_listen
from penstock.config.loader import load
from penstock.errors import ConfigError

IN_CLUSTER = {"cluster.coordinator": "zk://127.0.0.1:2181/penstock"}


def opened(listen: str, advertised: str = "", **more: str) -> list[tuple[str, str, str, bool]]:
    """Name, address, advertised address and whether it is the inter-broker listener, of each listener."""
    flags = {"broker.listen": listen, "broker.advertised": advertised, **more}
    return [
        (each.name, str(each.address), str(each.advertised or ""), each.is_inter_broker)
        for each in load(None, {}, flags).config.listeners()
    ]


def refusal(listen: str, advertised: str = "", **more: str) -> str:
    with pytest.raises(ConfigError) as refused:
        opened(listen, advertised, **more)
    return str(refused.value)


def test_an_address_without_a_name_is_one_listener_named_plaintext() -> None:
    assert opened("127.0.0.1:9092") == [("PLAINTEXT", "127.0.0.1:9092", "", False)]
    assert str(parse_listen("127.0.0.1:9092")) == "127.0.0.1:9092"


def test_several_listeners_have_names_whose_case_does_not_matter() -> None:
    listen = "client://[::1]:9092, INTER_BROKER://127.0.0.1:0"
    assert opened(listen, "CLIENT://broker.example:9092") == [
        ("CLIENT", "[::1]:9092", "broker.example:9092", False),
        ("INTER_BROKER", "127.0.0.1:0", "", True),
    ]
    assert str(parse_listen(listen)) == "CLIENT://[::1]:9092,INTER_BROKER://127.0.0.1:0"


def test_listeners_for_clients_come_first() -> None:
    assert [name for name, *_ in opened("INTER_BROKER://127.0.0.1:1,A://127.0.0.1:2,B://127.0.0.1:3")] == [
        "A",
        "B",
        "INTER_BROKER",
    ]


def test_a_broker_of_a_cluster_opens_an_inter_broker_listener_on_the_host_of_its_first_one() -> None:
    assert opened("10.0.0.1:9092", **IN_CLUSTER) == [
        ("PLAINTEXT", "10.0.0.1:9092", "", False),
        ("INTER_BROKER", "10.0.0.1:0", "", True),
    ]
    (_, beside) = load(None, {}, {"broker.listen": "10.0.0.1:9092", **IN_CLUSTER}).config.listeners()
    assert beside.endpoint(Address("10.0.0.1", 40123)) == Address("10.0.0.1", 40123)


def test_one_that_listens_everywhere_tells_the_others_its_advertised_host() -> None:
    flags = {"broker.listen": "0.0.0.0:9092", "broker.advertised": "broker1.example:9092", **IN_CLUSTER}
    (_, beside) = load(None, {}, flags).config.listeners()
    assert (beside.address, beside.is_inter_broker) == (Address("0.0.0.0", 0), True)
    assert beside.endpoint(Address("0.0.0.0", 40123)) == Address("broker1.example", 40123)


def test_a_broker_that_is_alone_opens_none_by_itself() -> None:
    assert not any(is_inter_broker for *_, is_inter_broker in opened("127.0.0.1:9092"))


def test_another_listener_may_be_the_one_between_brokers() -> None:
    listen = "CLIENT://127.0.0.1:9092,REPLICATION://127.0.0.1:9093"
    found = opened(listen, **{"broker.inter_broker_listener": "replication", **IN_CLUSTER})
    assert [(name, is_inter_broker) for name, _, _, is_inter_broker in found] == [
        ("CLIENT", False),
        ("REPLICATION", True),
    ]


def test_a_listener_advertises_what_it_has_bound_unless_it_is_told_something_else() -> None:
    bound = Address("127.0.0.1", 50000)
    settings = ListenerSettings(name="A", address=Address("127.0.0.1", 0), advertised=None, is_inter_broker=False)
    assert settings.endpoint(bound) == bound
    (named,) = parse_advertised("A://broker.example:9092")
    settings = ListenerSettings(name="A", address=bound, advertised=named.address, is_inter_broker=False)
    assert settings.endpoint(bound) == Address("broker.example", 9092)


@pytest.mark.parametrize(
    ("listen", "advertised", "complaint"),
    [
        ("A://127.0.0.1:1,a://127.0.0.1:2", "", "the listener A is given twice"),
        ("A://127.0.0.1:1,B://127.0.0.1:1", "", "A and B use the same port"),
        ("A://127.0.0.1:1,B://0.0.0.0:1", "B://host:1", "A and B use the same port"),
        ("A://127.0.0.1:1,127.0.0.1:2", "", "allowed is one HOST:PORT, or several as NAME://HOST:PORT"),
        ("A B://127.0.0.1:1", "", "a name of letters, digits"),
        ("://127.0.0.1:1", "", "a name of letters, digits"),
        ("A://127.0.0.1", "", "HOST:PORT"),
        ("A://0.0.0.0:1,B://127.0.0.1:2", "", "broker.listen = 'A://0.0.0.0:1' takes connections on every interface"),
        ("A://127.0.0.1:1", "B://host:1", "broker.listen has no listener B, only A"),
        ("A://127.0.0.1:1,B://127.0.0.1:2", "host:1", "broker.listen has no listener PLAINTEXT, only A, B"),
        ("A://127.0.0.1:1,B://127.0.0.1:2", "A://host:1,B://host:1", "A and B have the same address"),
        ("A://127.0.0.1:1", "A://host:1,A://host:2", "the listener A is given twice"),
        ("A://127.0.0.1:1", "A://host:0", "not port 0"),
        ("A://127.0.0.1:1", "A://0.0.0.0:1", "not a wildcard address"),
        ("INTER_BROKER://127.0.0.1:1", "", "has the inter-broker listener alone: add a listener for clients"),
    ],
)
def test_what_cannot_be_is_refused(listen: str, advertised: str, complaint: str) -> None:
    assert complaint in refusal(listen, advertised)


def test_two_listeners_may_both_take_a_free_port() -> None:
    assert len(opened("A://127.0.0.1:0,B://127.0.0.1:0")) == 2


def test_an_inter_broker_listener_that_is_not_there_is_refused() -> None:
    complaint = refusal("A://127.0.0.1:1", **{"broker.inter_broker_listener": "B"})
    assert complaint == "broker.inter_broker_listener = 'B': broker.listen has no listener of that name, only A"
