"""What the SDK raises: a class for each thing that an application may want to act on."""

from __future__ import annotations

from penstock.errors import PenstockError


class ClientError(PenstockError):
    """Root of everything that `penstock.Client` raises on purpose."""


class InvalidInputError(ClientError, ValueError):
    """Something that was given cannot be used; the message names it. Nothing was sent."""


class ClosedError(ClientError):
    """The client was closed."""


class SendError(ClientError):
    """A message did not become durable: the broker refused it, or all tries have passed.

    After a time-out (`is_retriable`) it may still be in the log: the answer was lost, not necessarily the message.
    """

    def __init__(self, message: str, *, is_retriable: bool = False) -> None:
        super().__init__(message)
        self.is_retriable = is_retriable
        """Whether the cluster was away, so that the same message may go through later."""


class BufferFullError(SendError):
    """What waits for the cluster has reached its bound; the message was not taken."""


class TopicError(ClientError):
    """A topic is not there, or could not be asked about or made."""


class SpillError(ClientError):
    """A folder for spilled messages that cannot be used: another process has it, or it cannot be read or written."""


class TransactionError(ClientError):
    """A transaction did not commit: nothing of it is seen by `read_committed` readers."""

    def __init__(self, message: str, *, is_unknown: bool = False) -> None:
        super().__init__(message)
        self.is_unknown = is_unknown
        """The commit was not answered in time: it cannot be said whether all of it is seen, or nothing."""


class FencedError(TransactionError):
    """Another producer has taken over the transactional id; the transaction was aborted by it."""


class NoReplyError(ClientError, TimeoutError):
    """No reply has come within the time that was given."""


class SettledError(ClientError):
    """A message was already acknowledged, retried or rejected, or its deadline has passed."""
