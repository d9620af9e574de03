"""The errors that the SDK raises: one class for each case that an application can handle differently."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.sdk.ports import Receipt


class ClientError(PenstockError):
    """Base class of all errors that the SDK raises on purpose."""


class InvalidInputError(ClientError, ValueError):
    """An argument is invalid; the text names it. Nothing was sent."""


class DecodeError(ClientError, ValueError):
    """The value of a message is not what its handler, or `Message.decode`, expects."""


class ClosedError(ClientError):
    """The client is closed."""


class SendError(ClientError):
    """A message did not become durable: the broker refused it, or all tries failed.

    If `is_retriable` is true, the message may still be stored: the reply was lost, not necessarily the message.
    """

    def __init__(self, message: str, *, is_retriable: bool = False) -> None:
        super().__init__(message)
        self.is_retriable = is_retriable
        """Whether the cluster was unreachable, so that sending again may succeed."""


class BufferFullError(SendError):
    """The buffer for messages that wait for the cluster is full; the message was not accepted."""


class SendManyError(SendError):
    """Some messages of a `send_many` did not become durable. `is_retriable` is true if that holds for all of them."""

    def __init__(self, message: str, results: Sequence[Receipt | SendError], *, is_retriable: bool = False) -> None:
        super().__init__(message, is_retriable=is_retriable)
        self.results = results
        """For each message, in the order of the call, its receipt or why it was not stored."""


class TopicError(ClientError):
    """A topic does not exist, or could not be read or created."""


class SpillError(ClientError):
    """The folder of `Spill` cannot be used: another process holds it, or it cannot be read or written."""


class TransactionError(ClientError):
    """A transaction did not commit: `read_committed` readers see nothing of it, unless `is_unknown` is true."""

    def __init__(self, message: str, *, is_unknown: bool = False) -> None:
        super().__init__(message)
        self.is_unknown = is_unknown
        """The commit was not answered in time: either all messages are visible, or none."""


class FencedError(TransactionError):
    """Another producer took over the transactional id and aborted the transaction."""


class NoReplyError(ClientError, TimeoutError):
    """No reply arrived in time."""


class SettledError(ClientError):
    """The message was already acknowledged, retried or rejected, or its deadline has passed."""
