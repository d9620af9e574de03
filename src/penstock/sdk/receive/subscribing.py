"""Subscriptions on a cluster: puts their parts together."""

from __future__ import annotations

from penstock.sdk.access import Access
from penstock.sdk.hooks import Hooks
from penstock.sdk.message import Reply
from penstock.sdk.receive.handling import Handler
from penstock.sdk.receive.kafka_inbox import KafkaInbox
from penstock.sdk.receive.plan import Plan
from penstock.sdk.receive.preparing import KafkaPreparation
from penstock.sdk.receive.runners import Runner
from penstock.sdk.receive.subscription import Subscription
from penstock.sdk.receive.transactor import KafkaTransactor
from penstock.sdk.send.watching import WatchedOutbox
from penstock.sdk.topics import Topics


def subscription_on(
    access: Access,
    topics: Topics,
    plan: Plan,
    handler: Handler,
    *,
    outbox: WatchedOutbox,
    runner: Runner,
    hooks: Hooks | None = None,
    reply: Reply | None = None,
) -> Subscription:
    """A subscription that is not started yet. `outbox` must not drop or spill: retries and dead letters go through
    it.
    """
    return Subscription(
        plan,
        handler,
        preparation=KafkaPreparation(topics),
        inbox=KafkaInbox(access, plan),
        outbox=outbox,
        runner=runner,
        transactor=KafkaTransactor(access, plan.group, outbox.watch) if plan.delivery == "exactly-once" else None,
        hooks=hooks,
        reply=reply,
    )
