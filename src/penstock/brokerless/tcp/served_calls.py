"""The calls that a client may make of a served store: how each is read, made and answered."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from penstock.brokerless.store import GroupMember, QueueStore, ReadPage
from penstock.brokerless.tcp import values
from penstock.brokerless.tcp.frames import Blobs, Frame, FrameError
from penstock.sdk.timers import TimerQuery

MAX_WAIT_S = 10.0
"""How long a call waits at most; a client that wants more asks again."""
_PAGE_BYTES = 16 * 1024 * 1024
_MAX_READ = 10_000
MIN_SESSION_MS = 100

Call = Callable[[QueueStore, Frame, Blobs], Any]


def _shape(store: QueueStore, frame: Frame, blobs: Blobs) -> Any:
    (topic,) = frame.header["args"]
    shape = store.topics.shape(values.text(topic))
    return None if shape is None else [shape.partitions, shape.replicas]


def _create(store: QueueStore, frame: Frame, blobs: Blobs) -> Any:
    topic, partitions, replicas, config = frame.header["args"]
    settings = {values.text(name): values.text(value) for name, value in config.items()}
    return store.topics.create(values.text(topic), values.number(partitions), values.number(replicas), settings)


def _settings(store: QueueStore, frame: Frame, blobs: Blobs) -> Any:
    (topic,) = frame.header["args"]
    return dict(store.settings(values.text(topic)))


def _append(store: QueueStore, frame: Frame, blobs: Blobs) -> Any:
    (batch,) = frame.header["args"]
    return list(store.append(values.batch_of(batch, frame)))


def _read(store: QueueStore, frame: Frame, blobs: Blobs) -> Any:
    tp, offset, max_count = frame.header["args"]
    most = min(values.number(max_count), _MAX_READ)
    page = store.read(values.tp_of(tp), values.number(offset), most)
    return values.put_page(_within_bound(page), blobs)


def _within_bound(page: ReadPage) -> ReadPage:
    size = 0
    for place, message in enumerate(page.messages):
        size += len(message.value or b"") + len(message.key or b"") + sum(len(v or b"") for _, v in message.headers)
        if size > _PAGE_BYTES and place > 0:
            return ReadPage(page.messages[:place], message.offset)
    return page


def _bounds(store: QueueStore, frame: Frame, blobs: Blobs) -> Any:
    (tp,) = frame.header["args"]
    return list(store.bounds(values.tp_of(tp)))


def _wait(store: QueueStore, frame: Frame, blobs: Blobs) -> Any:
    positions, timeout_ms = frame.header["args"]
    timeout_s = min(values.number(timeout_ms) / 1000, MAX_WAIT_S)
    store.wait(values.numbers_by_tp(positions), max(0.0, timeout_s))


def _read_timers(store: QueueStore, frame: Frame, blobs: Blobs) -> Any:
    (given,) = frame.header["args"]
    query = TimerQuery(
        values.text(given["topic"]),
        None if given["timer_id"] is None else values.text(given["timer_id"]),
        values.number(given["from_ms"]),
        values.optional_number(given["until_ms"]),
        values.number(given["limit"]),
        values.optional_number(given["partition"]),
    )
    return values.put_timers(store.read_timers(query), blobs)


def query_args(query: TimerQuery) -> Mapping[str, Any]:
    return asdict(query)


def _heartbeat(store: QueueStore, frame: Frame, blobs: Blobs) -> Any:
    group, name, topics, session_ms = frame.header["args"]
    member = GroupMember(values.text(name), frozenset(values.text(topic) for topic in topics))
    session = max(MIN_SESSION_MS, values.number(session_ms))
    return values.put_state(store.heartbeat(values.text(group), member, session))


def _claim(store: QueueStore, frame: Frame, blobs: Blobs) -> Any:
    group, member, wanted = frame.header["args"]
    return values.put_grants(store.claim(values.text(group), values.text(member), values.tps_of(wanted)))


def _release(store: QueueStore, frame: Frame, blobs: Blobs) -> Any:
    group, member, epochs = frame.header["args"]
    store.release(values.text(group), values.text(member), values.numbers_by_tp(epochs))


def _leave(store: QueueStore, frame: Frame, blobs: Blobs) -> Any:
    group, member = frame.header["args"]
    store.leave(values.text(group), values.text(member))


def _committed(store: QueueStore, frame: Frame, blobs: Blobs) -> Any:
    group, asked = frame.header["args"]
    return values.by_tp(store.committed(values.text(group), values.tps_of(asked)))


def _commit(store: QueueStore, frame: Frame, blobs: Blobs) -> Any:
    (given,) = frame.header["args"]
    offsets = values.offsets_of(given)
    if offsets is None:
        raise FrameError("there are no offsets to commit")
    store.commit(offsets)


def _commit_initial(store: QueueStore, frame: Frame, blobs: Blobs) -> Any:
    group, positions = frame.header["args"]
    store.commit_initial(values.text(group), values.numbers_by_tp(positions))


def _fence(store: QueueStore, frame: Frame, blobs: Blobs) -> Any:
    (transactional_id,) = frame.header["args"]
    return values.put_fence(store.fence(values.text(transactional_id)))


def _commit_transaction(store: QueueStore, frame: Frame, blobs: Blobs) -> Any:
    batches, offsets, fence = frame.header["args"]
    made = [values.batch_of(each, frame) for each in batches]
    written = store.commit_transaction(made, values.offsets_of(offsets), values.fence_of(fence))
    return [list(each) for each in written]


CALLS: Mapping[str, Call] = {
    "shape": _shape,
    "create": _create,
    "settings": _settings,
    "append": _append,
    "read": _read,
    "bounds": _bounds,
    "wait": _wait,
    "read_timers": _read_timers,
    "heartbeat": _heartbeat,
    "claim": _claim,
    "release": _release,
    "leave": _leave,
    "committed": _committed,
    "commit": _commit,
    "commit_initial": _commit_initial,
    "fence": _fence,
    "commit_transaction": _commit_transaction,
}
