"""For tests of applications: `StubClient`, a `penstock.Client` without a broker, with a clock that the test moves."""

from penstock.testing.client import StubClient as StubClient
