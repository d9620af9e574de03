"""What can go wrong, in five families, each met in one place.

| family              | who is at fault       | what happens                                      |
|---------------------|-----------------------|---------------------------------------------------|
| `ProtocolError`     | the peer              | the connection is closed                          |
| `ApiError`          | the request           | the response carries the Kafka error code         |
| `StorageError`      | the disk              | this log goes offline, the others live on         |
| `CoordinationError` | the coordination tree | step down, then retry                             |
| `ConfigError`       | the operator          | the process exits and names the key               |

`Code` holds Kafka's error numbers under Kafka's own names.
"""

from __future__ import annotations

from enum import IntEnum


class PenstockError(Exception):
    """Root of everything Penstock raises on purpose."""


class ProtocolError(PenstockError):
    """Bytes that are not the Kafka protocol, or break a limit on it."""


class StorageError(PenstockError):
    """A log cannot be trusted with another write or read."""


class DiskFullError(StorageError):
    """No room for a write: nothing was appended, the log stays usable."""


class UnsyncedError(StorageError):
    """A write was appended, and then its sync failed: a recovery or a follower may still have it."""


class CoordinationError(PenstockError):
    """The coordination tree could not be reached."""


class ConflictError(CoordinationError):
    """Another client changed the tree first; read again and retry."""


class PeerError(PenstockError):
    """Another broker did not answer."""


class ConfigError(PenstockError):
    """A setting that is unknown or cannot be used."""


class Code(IntEnum):
    """Kafka's error codes that a Penstock broker answers with."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    INVALID_FETCH_SIZE = 4
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    MESSAGE_TOO_LARGE = 10
    OFFSET_METADATA_TOO_LARGE = 12
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    RECORD_LIST_TOO_LARGE = 18
    NOT_ENOUGH_REPLICAS = 19
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    INVALID_COMMIT_OFFSET_SIZE = 28
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    NOT_CONTROLLER = 41
    INVALID_REQUEST = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTION_COORDINATOR_FENCED = 52
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    SECURITY_DISABLED = 54
    OPERATION_NOT_ATTEMPTED = 55
    KAFKA_STORAGE_ERROR = 56
    SASL_AUTHENTICATION_FAILED = 58
    UNKNOWN_PRODUCER_ID = 59
    REASSIGNMENT_IN_PROGRESS = 60
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FETCH_SESSION_ID_NOT_FOUND = 70
    INVALID_FETCH_SESSION_EPOCH = 71
    LISTENER_NOT_FOUND = 72
    TOPIC_DELETION_DISABLED = 73
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    UNSUPPORTED_COMPRESSION_TYPE = 76
    OFFSET_NOT_AVAILABLE = 78
    MEMBER_ID_REQUIRED = 79
    PREFERRED_LEADER_NOT_AVAILABLE = 80
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83
    ELECTION_NOT_NEEDED = 84
    NO_REASSIGNMENT_IN_PROGRESS = 85
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87
    UNSTABLE_OFFSET_COMMIT = 88
    THROTTLING_QUOTA_EXCEEDED = 89
    PRODUCER_FENCED = 90
    RESOURCE_NOT_FOUND = 91
    DUPLICATE_RESOURCE = 92
    UNACCEPTABLE_CREDENTIAL = 93
    INVALID_UPDATE_VERSION = 95
    FEATURE_UPDATE_FAILED = 96
    UNKNOWN_TOPIC_ID = 100
    INCONSISTENT_TOPIC_ID = 103
    TRANSACTIONAL_ID_NOT_FOUND = 105
    FETCH_SESSION_TOPIC_ID_ERROR = 106
    FENCED_MEMBER_EPOCH = 110
    UNRELEASED_INSTANCE_ID = 111
    UNSUPPORTED_ASSIGNOR = 112
    STALE_MEMBER_EPOCH = 113
    MISMATCHED_ENDPOINT_TYPE = 114
    UNSUPPORTED_ENDPOINT_TYPE = 115
    TRANSACTION_ABORTABLE = 120
    INVALID_REGULAR_EXPRESSION = 128


class ApiError(PenstockError):
    """A request that is answered with an error code; the connection lives on."""

    def __init__(self, code: Code, message: str | None = None) -> None:
        super().__init__(message or code.name)
        self.code = code
        self.message = message


def code_of(error: Exception) -> Code:
    """The code under which an error of a partition is answered; one that is neither the request's nor the disk's is
    raised on.
    """
    if isinstance(error, ApiError):
        return error.code
    if isinstance(error, UnsyncedError):
        # The other code says to producers that nothing was written, and they use the sequence numbers again.
        return Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    if isinstance(error, StorageError):
        return Code.KAFKA_STORAGE_ERROR
    raise error


def code_from(number: int) -> Code:
    """A code that another broker has answered with; one that is not known here is an unknown error."""
    try:
        return Code(number)
    except ValueError:
        return Code.UNKNOWN_SERVER_ERROR
