"""Pushing: a subscription whose handler is an endpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock import aio
from penstock.clock import Clock, SystemClock
from penstock.push.answers import Answer, NotYet, Refused
from penstock.push.endpoint import Endpoint, Manner
from penstock.push.requests import Request, batch, single
from penstock.push.tally import PushTally
from penstock.push.target import Target
from penstock.sdk.message import Message
from penstock.sdk.receive.retries import Retries
from penstock.sdk.receive.terms import Terms

_MARGIN_S = 30.0
"""A request ends by itself; the subscription's own deadline comes so much later, and so never in its place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What is pushed, and how fast."""

    topics: tuple[str, ...]
    group: str
    retries: Retries
    concurrency: int
    rate: float | None = None
    batch: int | None = None
    """None: one message a request."""
    ordered: bool = False
    tags: str | None = None
    from_beginning: bool = False


async def push(
    bootstrap: str,
    settings: Mapping[str, str],
    wishes: Wishes,
    target: Target,
    manner: Manner,
    tally: PushTally,
    clock: Clock | None = None,
) -> None:
    """Until SIGINT or SIGTERM: requests that are under way are waited for, then the group is left."""
    async with (
        Endpoint(target, manner, clock or SystemClock()) as endpoint,
        aio.Client(bootstrap, client_id="penstock-push", hooks=[tally], settings=settings) as client,
    ):

        async def deliver(message: Message) -> None:
            await _post(endpoint, single(message, wishes.retries.attempts), [message])

        async def deliver_all(messages: Sequence[Message]) -> None:
            await _post(endpoint, batch(messages), messages)

        handler: Any = deliver if wishes.batch is None else deliver_all
        client.subscribe(wishes.topics, handler, **_terms(wishes, manner))
        await client.run()


async def _post(endpoint: Endpoint, request: Request, messages: Sequence[Message]) -> None:
    answer = await endpoint.post(request)
    for message in messages:
        _settle(message, answer)


def _settle(message: Message, answer: Answer) -> None:
    """What was taken needs no word: the handler's return acknowledges it."""
    if isinstance(answer, Refused):
        message.reject(answer.reason)
    elif isinstance(answer, NotYet):
        after_s = None if answer.after_ms is None else answer.after_ms / 1000
        message.retry(after_s, answer.reason)


def _terms(wishes: Wishes, manner: Manner) -> Terms:
    return Terms(
        group=wishes.group,
        retries=wishes.retries,
        deadline=manner.timeout_s + _MARGIN_S,
        concurrency=wishes.concurrency,
        rate=wishes.rate,
        batch=wishes.batch,
        ordered=wishes.ordered,
        tags=wishes.tags,
        from_beginning=wishes.from_beginning,
    )
