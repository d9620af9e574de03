"""The benchmark's members, committers and choices of cases do what their figures claim, without any broker."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import typer
from bench.__main__ import main
from bench.client.classic_member import Blank, ClassicGroup
from bench.client.commits import COMMIT, check
from bench.client.driver import DriverError
from bench.client.job import percentiles
from bench.client.lines import Exchange, Line
from bench.client.wire import api_keys
from bench.plan import Plan
from typer.testing import CliRunner

from bench import plan
from penstock.protocol import apis
from penstock.protocol.messages.consumer_protocol import ASSIGNMENT
from penstock.protocol.messages.offset_commit import (
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)


def frame(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def test_answers_cut_anywhere_are_handed_over_whole_and_in_order() -> None:
    ours, theirs = socket.socketpair()
    line = Line(ours)
    seen: list[tuple[int, bytes]] = []

    def note(number: int, body: memoryview) -> None:
        seen.append((number, bytes(body)))

    for number in range(3):
        line.send(b"ask", partial(note, number))
    stream = frame(b"first") + frame(b"") + frame(b"third")
    for at in range(len(stream)):
        theirs.sendall(stream[at : at + 1])
        line.receive()
    assert seen == [(0, b"first"), (1, b""), (2, b"third")]
    ours.close()
    theirs.close()


def test_closed_connection_is_an_error() -> None:
    ours, theirs = socket.socketpair()
    theirs.close()
    with pytest.raises(DriverError):
        Line(ours).receive()
    ours.close()


def test_frame_made_in_advance_differs_only_in_its_generation() -> None:
    unset = struct.pack(">i", 0x5A5B5C5D)
    assert Blank(b"head" + unset + b"tail").filled(258) == b"head\x00\x00\x01\x02tail"
    with pytest.raises(ValueError, match="no generation"):
        Blank(b"nothing to fill")


@pytest.mark.parametrize("members", [1, 3, 7])
def test_shares_of_any_group_cover_every_partition_once(members: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        exchange = Exchange(f"127.0.0.1:{server.getsockname()[1]}")
        group = ClassicGroup(exchange, "group", ["a", "b"], 10, 7)
        found = [
            (topic.topic, partition)
            for share in group.shares(members)
            for topic in ASSIGNMENT.decode(share).assigned_partitions
            for partition in topic.partitions
        ]
        exchange.close(member.line for member in group.spare)
    assert sorted(found) == [(topic, partition) for topic in "ab" for partition in range(10)]


def test_refused_commit_of_one_partition_is_an_error() -> None:
    def answer(*codes: int) -> memoryview:
        partitions = tuple(
            OffsetCommitResponsePartition(partition_index=index, error_code=code) for index, code in enumerate(codes)
        )
        told = OffsetCommitResponse(topics=(OffsetCommitResponseTopic(name="t", partitions=partitions),))
        return memoryview(apis.encode_response(apis.OFFSET_COMMIT, COMMIT, 7, told))[4:]

    check(answer(0, 0, 0))
    with pytest.raises(DriverError, match="25"):
        check(answer(0, 25, 0))


def test_apis_of_a_server_are_read_from_its_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            link, _ = server.accept()
            with link:
                link.recv(1000)
                rows = b"".join(struct.pack(">hhh", key, 0, 3) for key in (0, 26, 68))
                link.sendall(frame(struct.pack(">ihi", 7, 0, 3) + rows))

        thread = threading.Thread(target=serve)
        thread.start()
        assert api_keys(server.getsockname()) == {0, 26, 68}
        thread.join()


def test_percentiles_of_durations_are_milliseconds_of_the_sorted_ones() -> None:
    found = percentiles([number * 1_000_000 for number in range(1000, 0, -1)])
    assert found == {"p50_ms": 501.0, "p99_ms": 991.0, "p999_ms": 1000.0, "max_ms": 1000.0}


PLANS = pytest.mark.parametrize("make", [plan.full, plan.quick, plan.smoke])


@PLANS
def test_cases_can_be_chosen_by_their_kind(make: Callable[[Path], Plan], tmp_path: Path) -> None:
    whole = make(tmp_path)
    assert {case.kind for case in whole.cases} <= plan.KINDS
    chosen = whole.only({"rebalance", "transactions"})
    assert {case.kind for case in chosen.cases} == {"rebalance", "transactions"}
    assert {case.kind for case in chosen.rehearsals} <= {"rebalance", "transactions"}


@PLANS
def test_no_two_cases_of_a_run_share_a_row(make: Callable[[Path], Plan], tmp_path: Path) -> None:
    keys = [measure.key for case in make(tmp_path).cases for measure in case.measures()]
    assert len(keys) == len(set(keys))


def test_word_that_is_neither_column_nor_case_is_refused() -> None:
    app = typer.Typer()
    app.command()(main)
    done = CliRunner().invoke(app, ["--smoke", "--only", "penstock,rebalances"])
    assert done.exit_code == 2
    assert "rebalances" in done.output
