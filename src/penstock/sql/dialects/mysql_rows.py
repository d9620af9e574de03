"""A connection of PyMySQL with two parts of our own: the reading of rows, and TLS for addresses without certificates.

The driver makes several objects and calls for each row and column; most of what a consumer of old records costs on the
broker was spent there. Only the reading of rows is replaced: all else of a result, its errors included, is the
driver's. `pyproject.toml` allows the versions whose insides are known to fit.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import pymysql
from pymysql.connections import Connection, MySQLResult
from pymysql.constants import CR
from pymysql.protocol import MysqlPacket

_LARGEST_PACKET = 0xFFFFFF
"""A row that fills it goes on in the next packet."""
_EOF, _EOF_BYTES = 0xFE, 9
_ERROR = 0xFF
_NULL, _TWO_BYTES, _THREE_BYTES = 251, 252, 253

Decode = Callable[[bytes], object]


class RowConnection(Connection):  # type: ignore[misc]
    """A connection whose results are read by `RowResult`."""

    def _create_ssl_ctx(self, options: Mapping[str, Any]) -> ssl.SSLContext:
        if options:
            context: ssl.SSLContext = super()._create_ssl_ctx(options)
            return context
        return _unverified()

    def _read_query_result(self, unbuffered: bool = False) -> int:
        assert not unbuffered, "results are read as a whole"
        self._result = None
        result = RowResult(self)
        result.read()
        self._result = result
        if result.server_status is not None:
            self.server_status = result.server_status
        return int(result.affected_rows)


@cache
def _unverified() -> ssl.SSLContext:
    """For an address without certificates: TLS if the server has it. The driver would load the certificates of the
    system for each connection, which takes longer than all the rest, and not use them.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


class RowResult(MySQLResult):  # type: ignore[misc]
    connection: Any
    affected_rows: Any

    def _read_rowdata_packet(self) -> None:
        connection = self.connection
        decoders = [_decoder(*each) for each in self.converters]
        read, expected = connection._rfile.read, connection._next_seq_id
        rows: list[tuple[object, ...]] = []
        whole = b""
        while True:
            head = read(4)
            size = int.from_bytes(head[:3], "little")
            data = read(size)
            if len(head) < 4 or len(data) < size or head[3] != expected:
                # A server that shuts down sends its error with a number of its own.
                raise _lost(connection)
            expected = (expected + 1) & 0xFF
            if size == _LARGEST_PACKET:
                whole += data
                continue
            if whole:
                data, whole = whole + data, b""
            elif (data[0] == _EOF and size < _EOF_BYTES) or data[0] == _ERROR:
                break
            rows.append(_row(data, decoders))
        connection._next_seq_id = expected
        last = MysqlPacket(data, connection.encoding)
        if last.is_error_packet():
            last.raise_for_error()
        self._check_packet_is_eof(last)
        self.connection = None
        self.affected_rows = len(rows)
        self.rows = rows


def _row(data: bytes, decoders: list[Decode | None]) -> tuple[object, ...]:
    at = 0
    values: list[object] = []
    for decode in decoders:
        size = data[at]
        at += 1
        if size >= _NULL:
            if size == _NULL:
                values.append(None)
                continue
            width = 2 if size == _TWO_BYTES else 3 if size == _THREE_BYTES else 8
            size = int.from_bytes(data[at : at + width], "little")
            at += width
        end = at + size
        values.append(data[at:end] if decode is None else decode(data[at:end]))
        at = end
    return tuple(values)


def _decoder(encoding: str | None, converter: Callable[[Any], object] | None) -> Decode | None:
    """What makes a value of the bytes of a column; None if the bytes are the value."""
    if converter is int:
        return int
    if encoding is None:
        return converter
    if converter is None:
        return lambda value: value.decode(encoding)
    return lambda value: converter(value.decode(encoding))


def _lost(connection: Connection) -> pymysql.OperationalError:
    connection._force_close()
    return pymysql.OperationalError(CR.CR_SERVER_LOST, "Lost connection to MySQL server during query")
