"""Tests of applications without a broker: `StubClient` and `AsyncStubClient`, with a clock that the test moves."""

from penstock.testing.async_stub_client import AsyncStubClient as AsyncStubClient
from penstock.testing.stub_client import StubClient as StubClient
from penstock.testing.stub_core import HandlerFailure as HandlerFailure
