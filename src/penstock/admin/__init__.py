"""Admin: typed operations on a cluster, asked as a client. `docs/admin.md` is the reference.

Names are imported when they are first used: a command that lists topics does not load what resends dead letters.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.admin.acls import AccessDecision as AccessDecision
    from penstock.admin.acls import AuthorizerState as AuthorizerState
    from penstock.admin.acls import RemovalEffect as RemovalEffect
    from penstock.admin.brokers import BrokerDescription as BrokerDescription
    from penstock.admin.brokers import BrokerState as BrokerState
    from penstock.admin.brokers import HostedReplica as HostedReplica
    from penstock.admin.cluster import Cluster as Cluster
    from penstock.admin.configs import ConfigChange as ConfigChange
    from penstock.admin.configs import ConfigEntry as ConfigEntry
    from penstock.admin.configs import ConfigResource as ConfigResource
    from penstock.admin.databases import DatabaseGroupDescription as DatabaseGroupDescription
    from penstock.admin.databases import DatabaseServerDescription as DatabaseServerDescription
    from penstock.admin.dead_letter_topic import DeadLetter as DeadLetter
    from penstock.admin.dead_letter_topic import DeadLetterId as DeadLetterId
    from penstock.admin.dead_letter_topic import DeadLetterSelection as DeadLetterSelection
    from penstock.admin.dead_letter_topic import DeadLetterState as DeadLetterState
    from penstock.admin.dead_letter_topic import parse_dead_letter_id as parse_dead_letter_id
    from penstock.admin.errors import RESOURCE_NOT_FOUND as RESOURCE_NOT_FOUND
    from penstock.admin.errors import AdminError as AdminError
    from penstock.admin.errors import UnreachableError as UnreachableError
    from penstock.admin.group_reset import ResetPlan as ResetPlan
    from penstock.admin.group_reset import ResetTarget as ResetTarget
    from penstock.admin.group_reset import ShiftBy as ShiftBy
    from penstock.admin.groups import CommittedOffset as CommittedOffset
    from penstock.admin.groups import GroupDescription as GroupDescription
    from penstock.admin.groups import GroupLag as GroupLag
    from penstock.admin.groups import GroupListing as GroupListing
    from penstock.admin.groups import GroupOffset as GroupOffset
    from penstock.admin.groups import GroupPause as GroupPause
    from penstock.admin.groups import MemberDescription as MemberDescription
    from penstock.admin.log_dirs import LogDir as LogDir
    from penstock.admin.log_dirs import LogSegment as LogSegment
    from penstock.admin.log_dirs import ReplicaLog as ReplicaLog
    from penstock.admin.positions import AtOffset as AtOffset
    from penstock.admin.positions import AtTime as AtTime
    from penstock.admin.positions import Earliest as Earliest
    from penstock.admin.positions import LastRecords as LastRecords
    from penstock.admin.positions import Latest as Latest
    from penstock.admin.positions import OffsetBounds as OffsetBounds
    from penstock.admin.positions import Position as Position
    from penstock.admin.quotas import QuotaDescription as QuotaDescription
    from penstock.admin.reassignments import Reassignment as Reassignment
    from penstock.admin.results import Page as Page
    from penstock.admin.results import Results as Results
    from penstock.admin.retirement import RetiredPartitions as RetiredPartitions
    from penstock.admin.setting_descriptions import SettingDescription as SettingDescription
    from penstock.admin.setting_descriptions import topic_setting_descriptions as topic_setting_descriptions
    from penstock.admin.topics import NewTopic as NewTopic
    from penstock.admin.topics import PartitionDescription as PartitionDescription
    from penstock.admin.topics import PartitionOffsets as PartitionOffsets
    from penstock.admin.topics import TopicDescription as TopicDescription
    from penstock.admin.topics import TopicIdentity as TopicIdentity
    from penstock.admin.transactions import OpenTransaction as OpenTransaction
    from penstock.admin.transactions import TransactionDescription as TransactionDescription
    from penstock.admin.transactions import TransactionListing as TransactionListing
    from penstock.admin.users import UserDescription as UserDescription
    from penstock.ids import TopicPartition as TopicPartition
    from penstock.sdk.timers import WaitingMessage as WaitingMessage
    from penstock.security.acls import Acl as Acl
    from penstock.security.acls import AclEntry as AclEntry
    from penstock.security.acls import AclFilter as AclFilter
    from penstock.security.acls import Operation as Operation
    from penstock.security.acls import PatternType as PatternType
    from penstock.security.acls import Permission as Permission
    from penstock.security.acls import ResourcePattern as ResourcePattern
    from penstock.security.acls import ResourceType as ResourceType
    from penstock.security.principal import Principal as Principal
    from penstock.security.quota_entity import QuotaEntity as QuotaEntity

_HOMES = {
    "penstock.admin.acls": (
        "AccessDecision",
        "AuthorizerState",
        "RemovalEffect",
    ),
    "penstock.admin.brokers": (
        "BrokerDescription",
        "BrokerState",
        "HostedReplica",
    ),
    "penstock.admin.cluster": ("Cluster",),
    "penstock.admin.configs": (
        "ConfigChange",
        "ConfigEntry",
        "ConfigResource",
    ),
    "penstock.admin.databases": (
        "DatabaseGroupDescription",
        "DatabaseServerDescription",
    ),
    "penstock.admin.dead_letter_topic": (
        "DeadLetter",
        "DeadLetterId",
        "DeadLetterSelection",
        "DeadLetterState",
        "parse_dead_letter_id",
    ),
    "penstock.admin.errors": (
        "RESOURCE_NOT_FOUND",
        "AdminError",
        "UnreachableError",
    ),
    "penstock.admin.group_reset": (
        "ResetPlan",
        "ResetTarget",
        "ShiftBy",
    ),
    "penstock.admin.groups": (
        "CommittedOffset",
        "GroupDescription",
        "GroupLag",
        "GroupListing",
        "GroupOffset",
        "GroupPause",
        "MemberDescription",
    ),
    "penstock.admin.log_dirs": (
        "LogDir",
        "LogSegment",
        "ReplicaLog",
    ),
    "penstock.admin.positions": (
        "AtOffset",
        "AtTime",
        "Earliest",
        "LastRecords",
        "Latest",
        "OffsetBounds",
        "Position",
    ),
    "penstock.admin.quotas": ("QuotaDescription",),
    "penstock.admin.reassignments": ("Reassignment",),
    "penstock.admin.results": (
        "Page",
        "Results",
    ),
    "penstock.admin.retirement": ("RetiredPartitions",),
    "penstock.admin.setting_descriptions": (
        "SettingDescription",
        "topic_setting_descriptions",
    ),
    "penstock.admin.topics": (
        "NewTopic",
        "PartitionDescription",
        "PartitionOffsets",
        "TopicDescription",
        "TopicIdentity",
    ),
    "penstock.admin.transactions": (
        "OpenTransaction",
        "TransactionDescription",
        "TransactionListing",
    ),
    "penstock.admin.users": ("UserDescription",),
    "penstock.ids": ("TopicPartition",),
    "penstock.security.acls": (
        "Acl",
        "AclEntry",
        "AclFilter",
        "Operation",
        "PatternType",
        "Permission",
        "ResourcePattern",
        "ResourceType",
    ),
    "penstock.security.principal": ("Principal",),
    "penstock.sdk.timers": ("WaitingMessage",),
    "penstock.security.quota_entity": ("QuotaEntity",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'penstock.admin' has no attribute '{name}'")
    found = globals()[name] = getattr(import_module(home), name)
    return found


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME_OF])
