"""What a caller may do, as handlers and guards ask for it.

- A topic that shows the delayed records of another one is protected as that topic is: it has no ACLs of its own. A view
  has its own: a client that may read a view may read nothing else of its base.
- The other brokers of the cluster are known by their listener and not by ACLs. The rows of the table say what brokers
  may send each other; through that listener they may do nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from penstock.broker.permissions.denials import Denials
from penstock.cluster.metadata import MetadataImage
from penstock.cluster.timer_topics import name_of, timer_topic
from penstock.errors import Code
from penstock.ids import TopicId
from penstock.net.caller import Caller
from penstock.security.acls import CLUSTER_NAME, Operation, ResourceType
from penstock.security.authorizer import Authorizer

DENIED_CODES: Mapping[ResourceType, Code] = {
    ResourceType.TOPIC: Code.TOPIC_AUTHORIZATION_FAILED,
    ResourceType.GROUP: Code.GROUP_AUTHORIZATION_FAILED,
    ResourceType.CLUSTER: Code.CLUSTER_AUTHORIZATION_FAILED,
    ResourceType.TRANSACTIONAL_ID: Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}


def protected_topic(name: str) -> str:
    """The topic whose ACLs hold for a topic of this name."""
    timers = timer_topic(name)
    return name if timers is None else timers.base


class Permissions:
    """The authorizer of a broker, and what its guards ask beside it; there is none without an authorizer."""

    def __init__(self, authorizer: Authorizer, denials: Denials, image: Callable[[], MetadataImage]) -> None:
        self.authorizer = authorizer
        self.denials = denials
        self._image = image

    @property
    def image(self) -> MetadataImage:
        return self._image()

    def image_changed(self, old: MetadataImage, new: MetadataImage) -> None:
        """Decides by the ACLs of the new image from now on."""
        if old.acls is not new.acls:
            self.authorizer.change(new.acls)

    def decisions(self, caller: Caller, operation: Operation, type_: ResourceType) -> Mapping[str, bool]:
        """By the name of the resource; of a topic, the protected one."""
        return self.authorizer.decisions(caller.principal, caller.host, operation, type_)


class Access:
    """What one caller may do in one request."""

    __slots__ = ("_api", "_caller", "_permissions")

    def __init__(self, permissions: Permissions, caller: Caller, api: str) -> None:
        self._permissions = permissions
        self._caller = caller
        self._api = api

    @property
    def image(self) -> MetadataImage:
        return self._permissions.image

    @property
    def caller(self) -> Caller:
        return self._caller

    def sees(self, operation: Operation, type_: ResourceType, name: str) -> bool:
        """Whether it may; what it may not is left out of an answer, so it is no denial."""
        if type_ is ResourceType.TOPIC:
            name = protected_topic(name)
        return self._permissions.decisions(self._caller, operation, type_)[name]

    def may(self, operation: Operation, type_: ResourceType, name: str = CLUSTER_NAME) -> bool:
        """Whether it may; if not, that is noted."""
        allowed = self.sees(operation, type_, name)
        if not allowed:
            self.deny(operation, type_, name)
        return allowed

    def deny(self, operation: Operation, type_: ResourceType, name: str = CLUSTER_NAME) -> None:
        self._permissions.denials.note(self._caller, self._api, operation, type_, name)

    def refusal(self, operation: Operation, type_: ResourceType, name: str = CLUSTER_NAME) -> Code:
        """The code of a denial; NONE if it is allowed."""
        return Code.NONE if self.may(operation, type_, name) else DENIED_CODES[type_]

    def may_create(self, topic: str) -> bool:
        """CREATE on the cluster holds for every topic."""
        return self.sees(Operation.CREATE, ResourceType.CLUSTER, CLUSTER_NAME) or self.may(
            Operation.CREATE, ResourceType.TOPIC, topic
        )

    def may_write_idempotently(self) -> bool:
        """IDEMPOTENT_WRITE on the cluster, or WRITE on some topic (KIP-679)."""
        caller = self._caller
        return self._permissions.authorizer.may_with_any(
            caller.principal, caller.host, Operation.WRITE, ResourceType.TOPIC
        ) or self.may(Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER)

    def operations(self, type_: ResourceType, name: str = CLUSTER_NAME) -> int:
        """What it may do, as responses list it."""
        if type_ is ResourceType.TOPIC:
            name = protected_topic(name)
        caller = self._caller
        return self._permissions.authorizer.operations(caller.principal, caller.host, type_, name)

    def topic_of(self, topic_id: TopicId) -> str | None:
        """The name of the topic with this id; None if there is none."""
        names = self.image.topic_names_by_id
        return names.get(topic_id) or name_of(topic_id, names.get)
