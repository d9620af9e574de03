"""What the stages of a broker's start hand on to each other; `broker.py` makes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.broker.background.archive_hold import ArchiveHold
from penstock.broker.coordinators import Coordinators
from penstock.broker.handlers.fetch.handler import FetchHandler
from penstock.broker.metrics.loop_monitor import LoopMonitor
from penstock.broker.metrics.registry import RequestMetrics
from penstock.broker.peers import Peers
from penstock.broker.permissions.access import Permissions
from penstock.broker.requests.client_limits import ClientLimits
from penstock.broker.requests.dispatch import Dispatcher
from penstock.broker.requests.quota_enforcement import QuotaEnforcement
from penstock.cluster.controller.controller import Controller
from penstock.cluster.coordination.contract import Coordination
from penstock.cluster.folder import DataFolder
from penstock.cluster.membership import Membership
from penstock.cluster.metadata_changes import MetadataChanges
from penstock.config.address import Address
from penstock.config.listeners import ListenerSettings
from penstock.delay.delays import Delays
from penstock.net.listener import Listeners
from penstock.replication.damage_repair import DamageRepair
from penstock.replication.in_sync_sets import InSyncKeeper
from penstock.replication.replicas import Replicas
from penstock.storage.segmented.engine import SegmentedEngine
from penstock.views.catalogue import Catalogue

if TYPE_CHECKING:
    from penstock.sql.groups import DatabaseGroups
    from penstock.sql.passwords import PasswordKey

Bound = Sequence[tuple[ListenerSettings, Address]]
"""The listeners, and the address that each has bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterStage:
    """This broker's place in the cluster."""

    folder: DataFolder
    databases: DatabaseGroups | None
    """What topics with penstock.storage=sql live in, if there are any."""
    database_key: PasswordKey | None
    """To the passwords of database groups, if this broker has one."""
    has_run_before: bool
    """Whether the folder belonged to a cluster before this start."""
    coordination: Coordination
    metadata: MetadataChanges
    membership: Membership


@dataclass(frozen=True, slots=True, kw_only=True)
class DataStage:
    """What this broker stores."""

    segmented: SegmentedEngine
    replicas: Replicas
    delays: Delays
    catalogue: Catalogue


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingStage:
    """What answers requests."""

    requests: RequestMetrics
    in_sync: InSyncKeeper
    peers: Peers
    repair: DamageRepair
    coordinators: Coordinators
    fetch_handler: FetchHandler
    dispatcher: Dispatcher
    quotas: ClientLimits
    quota_enforcement: QuotaEnforcement
    permissions: Permissions | None
    """None without an authorizer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackgroundStage:
    """The background tasks that other parts of the broker use."""

    controller: Controller
    archive: ArchiveHold


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    """All parts of a broker that runs."""

    monitor: LoopMonitor
    cluster: ClusterStage
    data: DataStage
    serving: ServingStage
    listeners: Listeners
    background: BackgroundStage
