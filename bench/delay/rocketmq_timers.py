"""Delayed messages over RocketMQ's remoting protocol, spoken here as far as it is needed.

A frame is its length, the length of its header, a header in JSON and a body. Requests are answered in any order; a
window keeps the broker from turning them away. `TIMER_DELIVER_MS` among a message's properties is its due time.
"""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import Iterable, Mapping

from bench.client.driver import DriverError, NotReady, endpoint
from bench.delay.clients import DUE, PADDING, Received, now_ms

_LENGTHS = struct.Struct(">II")
_SEND, _PULL, _CREATE_TOPIC = 310, 11, 17
_FOUND, _NOT_FOUND, _RETRY = 0, 19, 20
_BUSY = 2
_WINDOW = 256
"""Sends that are not answered yet."""
_PULL_MESSAGES = 1000
_SUSPEND_AND_SUBSCRIBE = "6"
_STORED_AT, _BODY_AT = 56, 88
"""Where the time of storing and the body lie in a message that is pulled."""
_ANSWER_S = 20.0
_BACK_OFF_S = 0.02


class _Connection:
    def __init__(self, address: str) -> None:
        self._socket = socket.create_connection(endpoint(address), timeout=_ANSWER_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._stream = self._socket.makefile("rb", buffering=1 << 20)

    def write(self, data: bytes) -> None:
        self._socket.sendall(data)

    def answer(self) -> tuple[dict[str, object], bytes]:
        head = self._stream.read(_LENGTHS.size)
        if len(head) < _LENGTHS.size:
            raise OSError("the broker closed the connection")
        size, header_size = _LENGTHS.unpack(head)
        content = self._stream.read(size - 4)
        header_size &= 0xFFFFFF
        return json.loads(content[:header_size]), content[header_size:]

    def close(self) -> None:
        self._stream.close()
        self._socket.close()


def _frame(code: int, number: int, fields: Mapping[str, str], body: bytes = b"") -> bytes:
    header = json.dumps(
        {"code": code, "flag": 0, "language": "PYTHON", "opaque": number, "version": 475, "extFields": fields}
    ).encode()
    return _LENGTHS.pack(4 + len(header) + len(body), len(header)) + header + body


def _message(topic: str, number: int, due: int, born: str) -> bytes:
    properties = f"TIMER_DELIVER_MS\x01{due}\x02WAIT\x01true\x02"
    fields = {"a": "bench", "b": topic, "c": "TBW102", "d": "1", "e": "0", "f": "0", "g": born, "h": "0"}
    fields |= {"i": properties, "j": "0", "k": "false", "m": "false"}
    return _frame(_SEND, number, fields, DUE.pack(due) + PADDING)


class RocketTimers:
    client = "its remoting protocol in Python"

    def create(self, address: str, topic: str) -> None:
        connection = _Connection(address)
        fields = {"topic": topic, "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}
        fields |= {"topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"}
        try:
            connection.write(_frame(_CREATE_TOPIC, 0, fields))
            header, _ = connection.answer()
        finally:
            connection.close()
        if header["code"] != 0:
            raise NotReady(str(header.get("remark")))

    def send(self, address: str, topic: str, dues: Iterable[int], limit_s: float) -> int:
        connection = _Connection(address)
        deadline = time.monotonic() + limit_s
        waiting: dict[int, int] = {}
        again: list[int] = []
        number = count = 0
        born = str(now_ms())

        def take_answer() -> None:
            nonlocal count
            header, _ = connection.answer()
            due = waiting.pop(int(str(header["opaque"])))
            if header["code"] == 0:
                count += 1
            elif header["code"] == _BUSY:
                again.append(due)
                time.sleep(_BACK_OFF_S)
            else:
                raise DriverError(f"a message was refused: {header.get('remark')}")
            if time.monotonic() > deadline:
                raise DriverError(f"only {count:,} messages were taken in time")

        def put(due: int) -> None:
            nonlocal number
            while len(waiting) >= _WINDOW:
                take_answer()
            waiting[number] = due
            connection.write(_message(topic, number, due, born))
            number += 1

        try:
            for due in dues:
                put(due)
            while waiting or again:
                while again:
                    put(again.pop())
                while waiting:
                    take_answer()
        finally:
            connection.close()
        return count

    def receive(self, address: str, topic: str, count: int, limit_s: float) -> Received:
        connection = _Connection(address)
        found, offset = Received(), 0
        deadline = time.monotonic() + limit_s
        fields = {"consumerGroup": "bench", "topic": topic, "queueId": "0", "maxMsgNums": str(_PULL_MESSAGES)}
        fields |= {"sysFlag": _SUSPEND_AND_SUBSCRIBE, "commitOffset": "0", "suspendTimeoutMillis": "1000"}
        fields |= {"subscription": "*", "subVersion": "0", "expressionType": "TAG"}
        try:
            while len(found) < count:
                if time.monotonic() > deadline:
                    raise DriverError(f"{len(found):,} of {count:,} messages came in time")
                connection.write(_frame(_PULL, 0, fields | {"queueOffset": str(offset)}))
                header, content = connection.answer()
                arrived = now_ms()
                if header["code"] == _FOUND:
                    offset = int(header["extFields"]["nextBeginOffset"])  # type: ignore[index]
                    _take(content, arrived, found)
                elif header["code"] not in (_NOT_FOUND, _RETRY):
                    raise DriverError(f"a pull was refused: {header.get('remark')}")
        finally:
            connection.close()
        return found


def _take(content: bytes, arrived: int, found: Received) -> None:
    position = 0
    while position < len(content):
        (size,) = struct.unpack_from(">I", content, position)
        (stored,) = DUE.unpack_from(content, position + _STORED_AT)
        (due,) = DUE.unpack_from(content, position + _BODY_AT)
        found.add(due, stored, arrived)
        position += size
