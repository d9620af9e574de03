"""The client library's errors under Kafka's names, and results that are values or errors."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException

from penstock.admin.errors import AdminError, UnreachableError, admin_error
from penstock.admin.results import Results


@pytest.mark.parametrize(
    ("number", "code", "kind"),
    [
        (KafkaError.UNKNOWN_TOPIC_OR_PART, "UNKNOWN_TOPIC_OR_PARTITION", AdminError),
        (KafkaError.NON_EMPTY_GROUP, "NON_EMPTY_GROUP", AdminError),
        (KafkaError.REQUEST_TIMED_OUT, "REQUEST_TIMED_OUT", UnreachableError),
        (KafkaError._TIMED_OUT, "REQUEST_TIMED_OUT", UnreachableError),
        (KafkaError._TRANSPORT, "NETWORK_EXCEPTION", UnreachableError),
        (KafkaError._ALL_BROKERS_DOWN, "NETWORK_EXCEPTION", UnreachableError),
        (KafkaError._UNKNOWN_PARTITION, "UNKNOWN_TOPIC_OR_PARTITION", AdminError),
        (KafkaError._INVALID_ARG, "INVALID_REQUEST", AdminError),
        # Codes that no Penstock broker answers with keep the library's name.
        (KafkaError.SECURITY_DISABLED, "SECURITY_DISABLED", AdminError),
    ],
)
def test_an_error_has_kafkas_name_whoever_noticed_it(number: int, code: str, kind: type[AdminError]) -> None:
    for error in (KafkaError(number, "two\n words"), KafkaException(KafkaError(number, "two\n words"))):
        found = admin_error(error)
        assert (type(found), found.code, found.message) == (kind, code, "two words")


def test_results_give_values_and_raise_errors() -> None:
    refused = AdminError("INVALID_REQUEST", "no")
    results = Results({"a": 1}, {"b": refused})
    assert results["a"] == 1
    assert results.map(str).values == {"a": "1"} and results.map(str).errors == {"b": refused}
    for ask in (lambda: results["b"], results.all):
        with pytest.raises(AdminError) as caught:
            ask()
        assert caught.value is refused
    assert Results({"a": 1}).all() == {"a": 1}
