"""Brokers that come, go and come back, as the others see them; with a real ZooKeeper."""

from __future__ import annotations

import asyncio
import json
import math
from functools import partial
from pathlib import Path

import pytest

from penstock.clock import SystemClock
from penstock.cluster import nodes
from penstock.cluster.coordination.contract import Create, Put
from penstock.cluster.metadata import NO_LEADER, MetadataImage
from penstock.errors import ConfigError

from .conftest import Connect, Join, eventually
from .members import Member, ids


class TestComing:
    async def test_all_see_each_other_in_images_of_the_same_version(self, join: Join) -> None:
        members = [await join(number, rack=f"rack-{number}") for number in (1, 2, 3)]
        for member in members:
            await eventually(lambda member=member: len(member.image.alive) == 3, "all are seen")
        images = [member.image for member in members]
        assert images[0] == images[1] == images[2]
        assert [broker.rack for broker in images[0].brokers.values()] == ["rack-1", "rack-2", "rack-3"]
        assert [broker.epoch for broker in images[0].brokers.values()] == [1, 1, 1]

    async def test_the_first_names_the_cluster_and_a_folder_of_another_cluster_is_refused(
        self, join: Join, tmp_path: Path
    ) -> None:
        one, other = await join(1), await join(2)
        assert one.image.cluster_id == other.image.cluster_id
        (tmp_path / "broker-3").mkdir()
        meta = {"broker_id": 3, "cluster_id": "elsewhere", "format": 1}
        (tmp_path / "broker-3" / "meta.json").write_text(json.dumps(meta))
        reason = f"belongs to cluster {one.image.cluster_id}, the data folder to elsewhere"
        with pytest.raises(ConfigError, match=reason):
            await join(3)

    async def test_brokers_that_start_at_the_same_time_make_one_cluster(self, join: Join) -> None:
        members = await asyncio.gather(*(join(number) for number in range(1, 6)))
        for member in members:
            await eventually(lambda member=member: len(member.image.alive) == 5, "all are seen")
        assert len({member.image.cluster_id for member in members}) == 1

    async def test_a_lease_holds_from_the_registration_on(self, join: Join) -> None:
        member = await join(1)
        assert member.membership.epoch == 1
        now_ms = SystemClock().monotonic_ms
        await eventually(lambda: now_ms() < member.membership.lease_until_ms(), "the lease holds")
        assert member.membership.lease_until_ms() <= member.tree.lease_until_ms()
        await member.membership.close()
        assert member.membership.lease_until_ms() == -math.inf

    async def test_a_number_that_is_in_use_is_refused(self, join: Join, tmp_path: Path) -> None:
        first = await join(1)
        (tmp_path / "broker-1").rename(tmp_path / "first")
        with pytest.raises(ConfigError, match=r"broker\.id = 1: another broker of this cluster at 127\.0\.0\.1:9001"):
            await join(1)
        assert first.membership.epoch == 1
        assert (await first.metadata.refresh()).brokers[first.id].epoch == 1

    async def test_a_number_is_waited_for_until_the_lease_of_its_last_holder_ends(
        self, join: Join, tmp_path: Path
    ) -> None:
        first = await join(1)
        (tmp_path / "broker-1").rename(tmp_path / "first")
        coming = asyncio.create_task(join(1, lease_ms=30_000))
        await eventually(lambda: not coming.done(), "it waits")
        await first.tree.close()
        assert (await coming).membership.epoch == 2

    async def test_the_lease_of_a_process_that_had_the_same_folder_is_taken_at_once(self, join: Join) -> None:
        first, other = await join(1), await join(2)
        await first.create("a", (1, 2))
        # The process is gone, and ZooKeeper does not know it yet.
        await first.membership.close()
        first.folder.close()
        again = await join(1)
        assert again.membership.epoch == 2
        image = await other.metadata.refresh()
        assert image.topics["a"].partitions[0].leader == 1
        assert image.topics["a"].partitions[0].leader_epoch == 1
        await first.tree.close()
        assert await other.tree.children(nodes.LEASES) == ["broker-1", "broker-2"]

    async def test_a_broker_that_lost_records_leaves_the_in_sync_sets_that_have_others(
        self, join: Join, tmp_path: Path
    ) -> None:
        first, other = await join(1), await join(2)
        await first.create("a", (1, 2), (2, 1))
        await first.create("alone", (1,))
        await first.die()
        life = tmp_path / "broker-1" / "life.json"
        life.write_text(json.dumps(json.loads(life.read_text()) | {"boot": "another"}))
        again = await join(1)
        led = [(found.leader, found.in_sync, found.leader_epoch) for found in again.image.topics["a"].partitions]
        assert led == [(2, ids(2), 1), (2, ids(2), 1)]
        assert (again.partition("alone").leader, again.partition("alone").leader_epoch) == (1, 2)
        assert json.loads(life.read_text())["is_whole"] is True
        await eventually(lambda: other.image.version == again.image.version, "the other knows")
        assert other.image == again.image


class TestGoing:
    async def test_who_resigns_leaves_what_it_led_to_others_in_sync(self, join: Join) -> None:
        one, other = await join(1), await join(2)
        await one.create("a", (1, 2))
        await one.create("alone", (1,))
        await one.leave()
        assert (await other.metadata.refresh()).alive == {2}
        assert (other.partition("a").leader, other.partition("a").leader_epoch) == (2, 1)
        assert (other.partition("alone").leader, other.partition("alone").leader_epoch) == (NO_LEADER, 1)
        assert await other.tree.children(nodes.LEASES) == ["broker-2"]

    async def test_who_comes_back_leads_again_what_nobody_else_could(self, join: Join) -> None:
        one, other = await join(1), await join(2)
        await one.create("a", (1, 2))
        await one.create("alone", (1,))
        await one.leave()
        await join(1)
        image = await other.metadata.refresh()
        assert (other.partition("a").leader, other.partition("alone").leader) == (2, 1)
        assert image.brokers[one.id].epoch == 2

    async def test_the_last_one_leaves_everything_as_it_is(self, join: Join) -> None:
        one = await join(1)
        await one.create("a", (1,))
        version = one.image.version
        await one.leave()
        again = await join(1)
        assert again.image.version == version + 1
        assert (again.partition("a").leader, again.partition("a").leader_epoch) == (1, 0)


class TestLostSessions:
    async def test_a_broker_registers_again_as_if_it_had_been_started_again(self, join: Join) -> None:
        one, other = await join(1), await join(2)
        await one.create("a", (1, 2))
        one.lose_session()
        await eventually(lambda: one.membership.epoch == 2, "it is a member again")
        image = await other.metadata.refresh()
        assert image.topics["a"].partitions[0].leader_epoch == 1
        assert image.topics["a"].partitions[0].in_sync == ids(1, 2)
        assert await other.tree.children(nodes.LEASES) == ["broker-1", "broker-2"]

    async def test_without_a_session_a_broker_is_no_member(self, join: Join) -> None:
        one = await join(1)
        one.membership._lose()
        assert (one.membership.epoch, one.membership.lease_until_ms()) == (None, -math.inf)

    async def test_the_lease_of_a_broker_that_does_not_read_the_metadata_is_over_although_its_session_lives(
        self, join: Join
    ) -> None:
        one, other = await join(1), await join(2)
        await one.metadata.refresh()
        now_ms = SystemClock().monotonic_ms
        await eventually(lambda: one.membership.lease_until_ms() > now_ms(), "the lease holds")
        async with one.metadata._store._lock:
            # It may say that another broker leads.
            await other.create("a", (1, 2))
            await eventually(lambda: one.membership.lease_until_ms() < now_ms(), "the lease is over")
            assert one.tree.lease_until_ms() > now_ms()
        await eventually(lambda: one.membership.lease_until_ms() > now_ms(), "the lease holds again")


class TestMetadata:
    async def test_many_writers_lose_nothing_and_end_with_the_same_image(self, join: Join) -> None:
        members: list[Member] = [await join(number) for number in (1, 2, 3)]
        seen: list[list[int]] = [[], [], []]

        def note(versions: list[int], old: MetadataImage, new: MetadataImage) -> None:
            versions.append(new.version)

        for member, versions in zip(members, seen, strict=True):
            member.metadata.subscribe(partial(note, versions))

        async def write(member: Member) -> None:
            for number in range(10):
                await member.create(f"{member.id}-{number}", (member.id,))

        await asyncio.gather(*map(write, members))
        final = await members[0].metadata.refresh()
        assert len(final.topics) == 30
        for member, versions in zip(members, seen, strict=True):
            await eventually(lambda member=member: member.image.version == final.version, "all have heard")
            assert member.image == final
            assert versions == sorted(set(versions))

    async def test_somebody_else_may_have_been_faster_with_the_same_topic(self, join: Join) -> None:
        one, other = await join(1), await join(2)
        results = await asyncio.gather(one.create("a", (1,)), other.create("a", (2,)), return_exceptions=True)
        assert sorted(result is None for result in results) == [False, True]

    async def test_what_was_missed_for_long_is_read_as_a_whole(self, join: Join, connect: Connect) -> None:
        one = await join(1)
        await one.create("a", (1,))
        one.metadata._store._unwatch()
        path, value = nodes.topic_path("b"), nodes.encode_topic(one.image.topics["a"])
        await one.tree.commit(Create(path, value))
        for version in range(150):
            await one.tree.commit(Put(path, value, version))
        await one.metadata.refresh()
        assert sorted(one.image.topics) == ["a", "b"]
        assert one.image.version == await one.tree.clock()
