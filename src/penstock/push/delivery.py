"""Delivery: a subscription whose handler posts to an endpoint."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock import aio
from penstock.clock import Clock, SystemClock
from penstock.push.endpoint import HttpEndpoint, RequestOptions
from penstock.push.push_counts import PushCounter
from penstock.push.requests import Request, batch, single
from penstock.push.responses import PushOutcome, Refused, RetryLater
from penstock.push.target import Target
from penstock.sdk.message import Message
from penstock.sdk.problem_log import OngoingProblem
from penstock.sdk.receive.retries import Retries
from penstock.sdk.receive.subscription_options import SubscriptionOptions

log = logging.getLogger(__name__)

_MARGIN_S = 30.0
"""The subscription's handler deadline lies this much after the request's timeout, so that the request fails first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PushOptions:
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
    from_beginning: bool = True


async def push(
    bootstrap: str,
    settings: Mapping[str, str],
    options: PushOptions,
    target: Target,
    request_options: RequestOptions,
    counter: PushCounter,
    clock: Clock | None = None,
) -> None:
    """Runs until SIGINT or SIGTERM, then waits for requests in flight and leaves the group."""
    async with (
        HttpEndpoint(target, request_options, clock or SystemClock()) as endpoint,
        aio.Client(bootstrap, client_id="penstock-push", hooks=[counter], settings=settings) as client,
    ):
        problem = OngoingProblem(
            log, f"{target} does not accept messages; they are retried", f"{target} accepts messages again"
        )

        async def deliver(message: Message) -> None:
            await _post(endpoint, single(message, options.retries.attempts), [message], problem)

        async def deliver_all(messages: Sequence[Message]) -> None:
            await _post(endpoint, batch(messages), messages, problem)

        handler: Any = deliver if options.batch is None else deliver_all
        client.subscribe(options.topics, handler, **_subscription_options(options, request_options))
        await client.run()


async def _post(endpoint: HttpEndpoint, request: Request, messages: Sequence[Message], problem: OngoingProblem) -> None:
    answer = await endpoint.post(request)
    if isinstance(answer, RetryLater):
        problem.report(answer.reason)
    else:
        problem.end()
    for message in messages:
        _settle(message, answer)


def _settle(message: Message, answer: PushOutcome) -> None:
    """A delivered message needs nothing: the return of the handler acknowledges it."""
    if isinstance(answer, Refused):
        message.reject(answer.reason)
    elif isinstance(answer, RetryLater):
        after_s = None if answer.after_ms is None else answer.after_ms / 1000
        message.retry(after_s, answer.reason)


def _subscription_options(options: PushOptions, request_options: RequestOptions) -> SubscriptionOptions:
    return SubscriptionOptions(
        group=options.group,
        retries=options.retries,
        deadline=request_options.timeout_s + _MARGIN_S,
        concurrency=options.concurrency,
        rate=options.rate,
        batch=options.batch,
        ordered=options.ordered,
        tags=options.tags,
        from_beginning=options.from_beginning,
    )
