"""UpdateFeatures: the levels of features are fixed, and whoever tries to change them is told so."""

from __future__ import annotations

from typing import Any

import pytest
from kafka.admin import KafkaAdminClient
from kafka.errors import KafkaError

from penstock.errors import Code
from penstock.protocol import apis
from penstock.protocol.messages.update_features import (
    SAFE_DOWNGRADE,
    UNSAFE_DOWNGRADE,
    UPGRADE,
    FeatureUpdateKey,
    UpdateFeaturesRequest,
)
from support.broker_process import BrokerProcess
from support.wire import Wire

IN_FORCE = {"group.version": 1, "transaction.version": 2}


def update(wire: Wire, version: int, *updates: FeatureUpdateKey, validate_only: bool = False) -> dict[str, Any]:
    request = UpdateFeaturesRequest(feature_updates=updates, validate_only=validate_only)
    return wire.ask(apis.UPDATE_FEATURES, version, request)


def wanted(feature: str, level: int, kind: int = UPGRADE) -> FeatureUpdateKey:
    return FeatureUpdateKey(
        feature=feature, max_version_level=level, allow_downgrade=kind != UPGRADE, upgrade_type=kind
    )


REFUSED = [
    pytest.param(wanted("metadata.version", 25), Code.INVALID_UPDATE_VERSION, id="unknown"),
    pytest.param(wanted("", 1), Code.INVALID_UPDATE_VERSION, id="no name"),
    pytest.param(wanted("group.version", 2), Code.INVALID_UPDATE_VERSION, id="too high"),
    pytest.param(wanted("group.version", -1, UNSAFE_DOWNGRADE), Code.INVALID_UPDATE_VERSION, id="negative"),
    pytest.param(wanted("group.version", 0), Code.INVALID_UPDATE_VERSION, id="downgrade as upgrade"),
    pytest.param(wanted("group.version", 0, SAFE_DOWNGRADE), Code.FEATURE_UPDATE_FAILED, id="downgrade"),
    pytest.param(wanted("transaction.version", 1, UNSAFE_DOWNGRADE), Code.FEATURE_UPDATE_FAILED, id="unsafe"),
]


@pytest.mark.parametrize("validate_only", [False, True])
@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize(("refused", "code"), REFUSED)
def test_a_change_is_refused_and_the_connection_lives_on(
    broker: BrokerProcess, version: int, validate_only: bool, refused: FeatureUpdateKey, code: Code
) -> None:
    same = wanted("transaction.version" if refused.feature != "transaction.version" else "group.version", 0)
    same = wanted(same.feature, IN_FORCE[same.feature])
    with Wire(broker.address) as wire:
        answer = update(wire, version, same, refused, validate_only=validate_only)
        if version < 2:
            assert answer["error_code"] == 0
            found = {result["feature"]: result["error_code"] for result in answer["results"]}
            assert found == {same.feature: 0, refused.feature: code}
        else:
            assert answer["error_code"] == code and answer["error_message"]
        described = wire.ask(apis.API_VERSIONS, 4, {"client_software_name": "t", "client_software_version": "1"})
        levels = {feature["name"]: feature["max_version_level"] for feature in described["finalized_features"]}
        assert levels == IN_FORCE


@pytest.mark.parametrize("version", [0, 1, 2])
def test_the_level_in_force_can_be_asked_for(broker: BrokerProcess, version: int) -> None:
    with Wire(broker.address) as wire:
        answer = update(wire, version, *(wanted(name, level) for name, level in IN_FORCE.items()))
        assert answer["error_code"] == 0 and answer["error_message"] is None
        assert all(result["error_code"] == 0 for result in answer.get("results", ()))
        assert update(wire, version)["error_code"] == 0


def test_an_upgrade_type_that_does_not_exist_is_refused(broker: BrokerProcess) -> None:
    with Wire(broker.address) as wire:
        assert update(wire, 2, wanted("group.version", 1, 9))["error_code"] == Code.INVALID_UPDATE_VERSION


def test_kafka_python_is_told_that_nothing_was_updated(broker: BrokerProcess) -> None:
    admin = KafkaAdminClient(bootstrap_servers=broker.kafka)
    try:
        assert admin.update_features(dict(IN_FORCE)) == dict.fromkeys(IN_FORCE, "OK")
        with pytest.raises(KafkaError):
            admin.update_features({"group.version": ("SAFE_DOWNGRADE", 0)})
        with pytest.raises(KafkaError):
            admin.update_features({"metadata.version": 25}, validate_only=True)
    finally:
        admin.close()
