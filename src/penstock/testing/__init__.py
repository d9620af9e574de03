"""For tests of applications: `StubClient` and `AsyncStubClient`, without a broker, with a clock that the test moves."""

from penstock.testing.aio_client import AsyncStubClient as AsyncStubClient
from penstock.testing.client import StubClient as StubClient
