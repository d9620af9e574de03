"""Topics of a database, looked up and created in the metadata that brokers use, too."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.brokerless.sql.link import LinkThread
from penstock.cluster.decisions.topics import USE_DEFAULT, TopicCreation
from penstock.cluster.metadata import MetadataImage, TopicImage
from penstock.errors import ApiError, Code
from penstock.sdk.backend import AS_BACKEND_SAYS, Topics, TopicShape
from penstock.sdk.errors import InvalidInputError, TopicError

_INVALID = frozenset(
    {
        Code.INVALID_CONFIG,
        Code.INVALID_PARTITIONS,
        Code.INVALID_TOPIC_EXCEPTION,
        Code.INVALID_REPLICATION_FACTOR,
        Code.INVALID_REQUEST,
    }
)


class SqlTopics(Topics):
    """All topics in shared storage. Thread-safe."""

    def __init__(self, thread: LinkThread) -> None:
        self._thread = thread

    def shape(self, topic: str) -> TopicShape | None:
        image = self._image_with(topic)
        found = image.seen(topic)
        if found is None:
            return None
        _check_shared(topic, image)
        return TopicShape(len(found.partitions), 1)

    def create(
        self,
        topic: str,
        partitions: int = AS_BACKEND_SAYS,
        replicas: int = AS_BACKEND_SAYS,
        config: Mapping[str, str] | None = None,
    ) -> bool:
        """How many copies there are is the database's matter, whatever `replicas` says."""
        count = USE_DEFAULT if partitions == AS_BACKEND_SAYS else partitions
        request = TopicCreation(topic, count, overrides=dict(config or {}))
        results = self._thread.call(self._thread.link.metadata.create_topics([request]))
        result = results[topic]
        if not isinstance(result, ApiError):
            return True
        if result.code is Code.TOPIC_ALREADY_EXISTS:
            return False
        if result.code in _INVALID:
            raise InvalidInputError(f"topic {topic} cannot be created: {result}")
        raise TopicError(f"topic {topic} could not be created: {result}")

    def image_of(self, topic: str) -> TopicImage:
        """Raises `TopicError` if there is no such topic, or it is a view, or not in the database."""
        image = self._image_with(topic)
        found = image.topics.get(topic)
        if found is None:
            raise TopicError(f"topic {topic} does not exist")
        if found.view_of is not None:
            raise TopicError(f"topic {topic} is a view of {found.view_of}: it has no messages of its own")
        _check_shared(topic, image)
        return found

    def settings(self, topic: str) -> Mapping[str, str]:
        found = self._image_with(topic).topics.get(topic)
        if found is None:
            raise TopicError(f"topic {topic} does not exist")
        return found.overrides

    def refresh(self) -> None:
        """Read the metadata now."""
        self._thread.call(self._thread.link.metadata.refresh())

    def _image_with(self, topic: str) -> MetadataImage:
        """The image, read again if it does not have the topic: another client may just have created it."""
        link = self._thread.link
        return link.image if topic in link.image.topics else self._thread.call(link.metadata.refresh())


def _check_shared(topic: str, image: MetadataImage) -> None:
    found = image.topics[topic]
    base = found if found.view_of is None else image.topics.get(found.view_of)
    if base is not None and not base.is_shared:
        raise TopicError(
            f"topic {topic} is not in the database: a broker stores it in files, and only brokers serve it"
        )
