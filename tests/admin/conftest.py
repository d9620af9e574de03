"""A cluster as operators ask it."""

from __future__ import annotations

import pytest

from penstock.admin import Cluster
from support.broker_process import BrokerProcess
from support.waiting import PATIENCE_S


@pytest.fixture
def cluster(broker: BrokerProcess) -> Cluster:
    return Cluster(broker.kafka, timeout_s=PATIENCE_S)
