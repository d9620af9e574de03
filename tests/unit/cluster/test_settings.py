"""Decisions about settings of topics and brokers."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

import pytest

from penstock.cluster.decisions.settings import (
    Increment,
    OperationKind,
    Replacement,
    SettingOperation,
    SettingsChange,
    alter_broker_settings,
    alter_topic_settings,
    topic_defaults,
)
from penstock.cluster.metadata import BrokerInfo, MetadataImage, PartitionImage, TopicImage
from penstock.cluster.metadata_draft import MetadataDraft
from penstock.errors import ApiError, Code
from penstock.ids import BrokerId

BROKER = BrokerId(1)
SET, DELETE, APPEND, SUBTRACT = OperationKind


def cluster(overrides: Mapping[str, str] | None = None) -> MetadataDraft:
    partition = PartitionImage(0, BROKER, 0, (BROKER,), (BROKER,))
    topic = TopicImage("a", UUID(int=7), (partition,), overrides or {})
    brokers = {BROKER: BrokerInfo(BROKER, "host", 9092)}
    return MetadataDraft(MetadataImage(1, "cluster", brokers, BROKER, {"a": topic}, {topic.id: "a"}))


def steps(*operations: tuple[OperationKind, str, str | None]) -> Increment:
    return Increment(tuple(SettingOperation(name, kind, value) for kind, name, value in operations))


def topic_after(
    before: Mapping[str, str], change: SettingsChange, defaults: Mapping[str, str] | None = None
) -> Mapping[str, str]:
    return alter_topic_settings(cluster(before), "a", change, defaults or {}).overrides


def refused(change: SettingsChange, code: Code, *, topic: str = "a") -> str:
    with pytest.raises(ApiError) as caught:
        alter_topic_settings(cluster({"retention.ms": "5"}), topic, change, {})
    assert caught.value.code is code
    return str(caught.value)


class TestTopics:
    def test_a_replacement_forgets_what_it_does_not_name(self) -> None:
        assert topic_after({"retention.ms": "5"}, Replacement({"segment.ms": "9"})) == {"segment.ms": "9"}

    def test_an_increment_leaves_the_others_alone(self) -> None:
        assert topic_after({"retention.ms": "5"}, steps((SET, "segment.ms", "9"))) == {
            "retention.ms": "5",
            "segment.ms": "9",
        }

    def test_a_deleted_setting_follows_the_default_again(self) -> None:
        change = steps((DELETE, "retention.ms", None), (DELETE, "segment.ms", None))
        assert topic_after({"retention.ms": "5"}, change) == {}

    @pytest.mark.parametrize(
        ("before", "kind", "value", "after"),
        [
            ({}, APPEND, "compact", "delete,compact"),
            ({"cleanup.policy": "compact"}, APPEND, "compact", "compact"),
            ({"cleanup.policy": "compact"}, APPEND, "delete,compact", "compact,delete"),
            ({"cleanup.policy": "compact,delete"}, SUBTRACT, "delete", "compact"),
            ({"cleanup.policy": "compact, delete"}, SUBTRACT, "compact", "delete"),
            ({"cleanup.policy": "compact"}, SUBTRACT, "delete", "compact"),
        ],
    )
    def test_lists_can_be_appended_to_and_subtracted_from(
        self, before: Mapping[str, str], kind: OperationKind, value: str, after: str
    ) -> None:
        assert topic_after(before, steps((kind, "cleanup.policy", value))) == {"cleanup.policy": after}

    def test_an_append_starts_from_the_brokers_default(self) -> None:
        after = topic_after({}, steps((APPEND, "cleanup.policy", "delete")), {"cleanup.policy": "compact"})
        assert after == {"cleanup.policy": "compact,delete"}

    @pytest.mark.parametrize("kind", [APPEND, SUBTRACT])
    @pytest.mark.parametrize("name", ["retention.ms", "no.such"])
    def test_only_lists_can_be_appended_to(self, kind: OperationKind, name: str) -> None:
        assert name in refused(steps((kind, name, "1")), Code.INVALID_CONFIG)

    @pytest.mark.parametrize(
        "change",
        [
            Replacement({"retention.ms": "soon"}),
            Replacement({"no.such": "1"}),
            steps((SET, "cleanup.policy", "burn")),
            steps((SUBTRACT, "cleanup.policy", "delete")),
            steps((SET, "min.compaction.lag.ms", "9"), (SET, "max.compaction.lag.ms", "8")),
        ],
    )
    def test_what_cannot_be_used_is_refused(self, change: SettingsChange) -> None:
        refused(change, Code.INVALID_CONFIG)

    @pytest.mark.parametrize("kind", [SET, APPEND, SUBTRACT])
    def test_only_a_delete_goes_without_a_value(self, kind: OperationKind) -> None:
        refused(steps((kind, "cleanup.policy", None)), Code.INVALID_REQUEST)

    def test_a_topic_cannot_want_more_replicas_in_sync_than_it_has(self) -> None:
        assert "at most 1" in refused(steps((SET, "min.insync.replicas", "99")), Code.INVALID_CONFIG)

    def test_a_topic_that_has_lost_replicas_can_still_be_changed(self) -> None:
        after = topic_after({"min.insync.replicas": "2"}, steps((SET, "segment.ms", "9")))
        assert after == {"min.insync.replicas": "2", "segment.ms": "9"}

    def test_an_index_does_not_get_an_entry_for_every_batch(self) -> None:
        assert "at least 1024" in refused(Replacement({"index.interval.bytes": "0"}), Code.INVALID_CONFIG)
        with pytest.raises(ApiError, match="at least 1024"):
            alter_broker_settings(cluster(), BROKER, Replacement({"log.index.interval.bytes": "1"}), {})

    def test_an_unknown_topic_is_refused(self) -> None:
        refused(Replacement({}), Code.UNKNOWN_TOPIC_OR_PARTITION, topic="b")

    def test_there_are_no_default_topic_settings(self) -> None:
        refused(Replacement({}), Code.INVALID_REQUEST, topic="")


class TestBrokers:
    def refused(self, change: SettingsChange, code: Code, draft: MetadataDraft | None = None) -> str:
        with pytest.raises(ApiError) as caught:
            alter_broker_settings(draft or cluster(), None, change, {})
        assert caught.value.code is code
        return str(caught.value)

    @pytest.mark.parametrize("broker", [None, BROKER])
    def test_defaults_of_topics_can_be_set_under_their_broker_names(self, broker: BrokerId | None) -> None:
        draft = cluster()
        draft.put_settings(broker, {"log.segment.bytes": "4096"})
        after = alter_broker_settings(draft, broker, steps((SET, "log.retention.ms", "5")), {})
        assert after == {"log.segment.bytes": "4096", "log.retention.ms": "5"}
        replaced = alter_broker_settings(draft, broker, Replacement({"message.max.bytes": "9"}), {})
        assert replaced == {"message.max.bytes": "9"}

    @pytest.mark.parametrize("name", ["broker.listen", "limits.frame_bytes", "num.partitions"])
    def test_what_is_read_at_start_is_refused(self, name: str) -> None:
        assert name in self.refused(Replacement({name: "1"}), Code.INVALID_REQUEST)

    @pytest.mark.parametrize("name", ["retention.ms", "no.such"])
    def test_an_unknown_name_is_refused_with_the_nearest(self, name: str) -> None:
        assert "nearest" in self.refused(steps((SET, name, "1")), Code.INVALID_CONFIG)

    def test_a_bad_value_is_refused_with_kafkas_code(self) -> None:
        self.refused(steps((SET, "log.retention.ms", "soon")), Code.INVALID_REQUEST)

    def test_a_default_that_an_existing_topic_contradicts_is_refused(self) -> None:
        draft = cluster({"min.compaction.lag.ms": "100"})
        change = steps((SET, "log.cleaner.max.compaction.lag.ms", "50"))
        assert "'a'" in self.refused(change, Code.INVALID_REQUEST, draft)

    def test_one_brokers_settings_are_checked_together_with_those_of_all(self) -> None:
        draft = cluster()
        draft.put_settings(None, {"log.cleaner.max.compaction.lag.ms": "50"})
        with pytest.raises(ApiError):
            alter_broker_settings(draft, BROKER, steps((SET, "log.cleaner.min.compaction.lag.ms", "60")), {})

    def test_an_append_starts_from_the_default_of_the_start(self) -> None:
        after = alter_broker_settings(
            cluster(), None, steps((APPEND, "log.cleanup.policy", "delete")), {"cleanup.policy": "compact"}
        )
        assert after == {"log.cleanup.policy": "compact,delete"}

    def test_one_broker_is_drained_and_never_all_of_them(self) -> None:
        drain = steps((SET, "penstock.draining", "true"))
        draft = cluster()
        assert not draft.is_draining(BROKER)
        draft.put_settings(BROKER, alter_broker_settings(draft, BROKER, drain, {}))
        assert draft.is_draining(BROKER)
        assert draft.takers == []
        assert topic_defaults({}, draft.settings(BROKER)) == {}
        for broker, change in ((None, drain), (BROKER, steps((SET, "penstock.draining", "perhaps")))):
            with pytest.raises(ApiError) as caught:
                alter_broker_settings(draft, broker, change, {})
            assert caught.value.code is Code.INVALID_REQUEST

    def test_how_fast_replicas_are_copied_is_set_for_one_broker_or_for_all(self) -> None:
        for name in ("follower.replication.throttled.rate", "leader.replication.throttled.rate"):
            for broker in (BROKER, None):
                after = alter_broker_settings(cluster(), broker, steps((SET, name, "1000")), {})
                assert after == {name: "1000"}
                assert topic_defaults({}, after) == {}
                with pytest.raises(ApiError) as caught:
                    alter_broker_settings(cluster(), broker, steps((SET, name, "-1")), {})
                assert caught.value.code is Code.INVALID_REQUEST

    def test_an_unknown_broker_is_refused(self) -> None:
        with pytest.raises(ApiError) as caught:
            alter_broker_settings(cluster(), BrokerId(9), Replacement({}), {})
        assert caught.value.code is Code.INVALID_REQUEST


def test_dynamic_defaults_win_over_those_of_the_start_under_topic_names() -> None:
    static = {"retention.ms": "1", "segment.ms": "2"}
    assert topic_defaults(static, {}) == static
    assert topic_defaults(static, {"log.retention.ms": "5", "message.max.bytes": "7"}) == {
        "retention.ms": "5",
        "segment.ms": "2",
        "max.message.bytes": "7",
    }
