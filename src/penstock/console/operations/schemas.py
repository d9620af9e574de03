"""Operations on the schemas that keys and values of a topic are decoded with."""

from __future__ import annotations

from dataclasses import replace

from penstock.console.operations.clusters import Clusters
from penstock.console.operations.operation import Changed, Scope, Service, change, query
from penstock.console.schemas.schema_rule import SchemaRule
from penstock.console.schemas.topic_schemas import TopicSchemas
from penstock.console.security.roles import Caller, Role
from penstock.console.state.audit import AuditLog


class SchemaOperations(Service):
    """Schemas of topics. A schema decides under which names a mask finds its fields, so a change needs the role admin
    on the topic.
    """

    def __init__(self, audit: AuditLog, clusters: Clusters, schemas: TopicSchemas) -> None:
        super().__init__(audit)
        self._clusters = clusters
        self._schemas = schemas

    @query("schemas.list", Role.VIEWER, Scope.TOPIC)
    async def list(self, caller: Caller, cluster: str, topic: str) -> tuple[SchemaRule, ...]:
        self._clusters[cluster]
        return await self._schemas.list(cluster, topic)

    @change("schemas.add", Role.ADMIN, Scope.TOPIC, hidden=("rule",))
    async def add(self, caller: Caller, cluster: str, topic: str, rule: SchemaRule) -> Changed[SchemaRule]:
        """Decodes messages of the topic with a schema from now on; the cluster and its topic know nothing of it."""
        managed = self._clusters[cluster]
        (await managed.link.detail(("topic", topic), lambda admin: admin.topics.describe([topic]))).all()
        made = await self._schemas.add(replace(rule, cluster=cluster, topic=topic))
        return Changed(made, None, _told(made))

    @change("schemas.remove", Role.ADMIN, Scope.TOPIC)
    async def remove(self, caller: Caller, cluster: str, topic: str, schema: str) -> Changed[None]:
        self._clusters[cluster]
        return Changed(None, _told(await self._schemas.remove(cluster, topic, schema)), None)


def _told(rule: SchemaRule) -> dict[str, object]:
    """For the audit log: with the size of the schema in place of it."""
    return {**rule.body(), "id": rule.id, "text": f"{len(rule.text)} characters"}
