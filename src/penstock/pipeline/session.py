"""A Spark session as the pipeline needs it."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.extras import missing_extra
from penstock.pipeline.failure import PipelineError
from penstock.pipeline.java import bundled, java_home
from penstock.pipeline.shipping import zipped

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL = "local[*]"

_QUIET = Path(__file__).parent / "log4j2.properties"

_PYTHON = "spark.pyspark.python"

_ALWAYS = {
    "spark.sql.python.filterPushdown.enabled": "true",
    # A topic may be named 2024.
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.showConsoleProgress": "false",
}
_ON_THIS_MACHINE = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
}

# They print every failed query with its stack, besides raising it.
_TALKATIVE = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")


@dataclass(frozen=True, slots=True)
class SparkOptions:
    """What a user may say about Spark."""

    folder: Path
    """For Spark's files that may be lost."""
    master: str = LOCAL
    memory: str = "1g"
    settings: Mapping[str, str] = field(default_factory=dict)
    """Spark's own, by its names; they go before ours."""


def start(name: str, options: SparkOptions) -> SparkSession:
    """A session; its process ends with ours."""
    try:
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException
        from pyspark.logger import PySparkLogger
        from pyspark.sql import SparkSession
    except ModuleNotFoundError as error:
        raise missing_extra(error, "the pipeline") or error from None
    options.folder.mkdir(parents=True, exist_ok=True)
    is_local = options.master.startswith("local")
    # PySpark reads these from the environment, and from nowhere else.
    home = java_home(os.environ, options.folder, bundled())
    if home is not None:
        os.environ["JAVA_HOME"] = str(home)
    if _PYTHON in options.settings:
        os.environ["PYSPARK_PYTHON"] = options.settings[_PYTHON]
    elif is_local:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    settings = _ALWAYS | (_ON_THIS_MACHINE | {"spark.local.dir": str(options.folder)} if is_local else {})
    settings |= {
        "spark.driver.memory": options.memory,
        "spark.sql.warehouse.dir": str(options.folder / "warehouse"),
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_QUIET.as_uri()}",
    }
    builder = SparkSession.builder.appName(name).master(options.master)
    for key, value in (settings | dict(options.settings)).items():
        builder = builder.config(key, value)
    for logger in _TALKATIVE:
        PySparkLogger.getLogger(logger).setLevel(logging.CRITICAL)
    try:
        session = builder.getOrCreate()
    except (PySparkException, Py4JError) as error:
        # Java has said why, to standard error.
        raise PipelineError(f"Spark could not be started: {str(error).splitlines()[0]}") from None
    if not is_local:
        session.sparkContext.addPyFile(str(zipped(options.folder)))
    return session
