"""What a broker tells the cluster of itself when it joins."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.broker.stages import Bound
from penstock.cluster.metadata import BrokerInfo, ListenerEndpoint, MetadataImage
from penstock.errors import ConfigError
from penstock.ids import BrokerId
from penstock.logs import fields

if TYPE_CHECKING:
    from penstock.sql.passwords import PasswordKey

logger = logging.getLogger(__name__)


def registration_of(broker_id: BrokerId, bound: Bound, rack: str | None) -> BrokerInfo:
    """Of a broker with these listeners."""
    endpoints = tuple(
        ListenerEndpoint(settings.name, *settings.endpoint(address), settings.protocol) for settings, address in bound
    )
    inter_broker = next((settings.name for settings, _ in bound if settings.is_inter_broker), None)
    return BrokerInfo(
        broker_id,
        endpoints[0].host,
        endpoints[0].port,
        rack,
        endpoints=endpoints,
        inter_broker_listener=inter_broker,
    )


def with_shared_storage(registration: BrokerInfo, key: PasswordKey | None, image: MetadataImage) -> BrokerInfo:
    """The same of a broker with a database, and with this key to the passwords of database groups."""
    fingerprint = key.fingerprint if key is not None and _opens_passwords(key, image) else ""
    return replace(registration, has_shared_storage=True, database_key=fingerprint)


def _opens_passwords(key: PasswordKey, image: MetadataImage) -> bool:
    """Whether it is the key of the database groups that there are. A broker with another one leads only what is in the
    default group.
    """
    for group in image.databases.values():
        try:
            for server in group.servers:
                key.decrypt(server.secret)
        except ConfigError as error:
            logger.error("cannot use database groups", extra=fields(group=group.name, reason=str(error)))
            return False
    return True
