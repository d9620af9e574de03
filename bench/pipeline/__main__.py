"""The command: `python -m bench.pipeline`."""

from __future__ import annotations

import shutil
import signal
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import pyspark
import typer
from confluent_kafka.admin import AdminClient
from rich.console import Console

from bench import machine
from bench.__main__ import CACHE, DOCS, interrupt
from bench.measure import Results
from bench.pipeline.conformance import conform
from bench.pipeline.connector import Connector
from bench.pipeline.engines import Engine, OurSource, TheirSource
from bench.pipeline.run import PEER, PipelineRun
from bench.report.files import Header
from bench.report.table import OURS
from bench.report.telling import report
from bench.run import FAILURES, one_line
from bench.servers.penstock import PenstockServer
from bench.servers.process import ServerProcess, adopt_orphans
from penstock.pipeline.failure import PipelineError
from penstock.pipeline.session import SparkOptions, start

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MILLION = 1_000_000
_START_S = 60.0


def main(
    rows: Annotated[int, typer.Option(min=1, help="Messages of 1 KiB; of 100 B twice as many.")] = 500_000,
    rounds: Annotated[int, typer.Option(min=1, help="How often each is measured.")] = 3,
    growth: Annotated[str, typer.Option(help="Rows of the archives whose cost is compared, in millions.")] = "1,4,16",
    turns: Annotated[
        int, typer.Option(min=1, help="Of a producer, and of the archive that is to keep up with it.")
    ] = 4,
    alone: Annotated[
        bool, typer.Option("--alone", help="Without Spark's own connector, which comes by Maven.")
    ] = False,
    cores: Annotated[int, typer.Option(min=1, help="Tasks of Spark at once.")] = 2,
    out: Annotated[Path | None, typer.Option(help="Folder of the report.")] = None,
    data: Annotated[Path | None, typer.Option(help="Folder for topics and lakes; on the disk to measure.")] = None,
) -> None:
    """Measure topics read by Spark and archived, beside Spark's own Kafka connector."""
    signal.signal(signal.SIGTERM, interrupt)
    adopt_orphans()
    console = Console()
    grown = [int(float(word) * _MILLION) for word in growth.split(",") if word.strip()]
    wanted = PipelineRun({"1 KiB": rows, "100 B": 2 * rows}, rounds, grown, turns)
    base = data or CACHE / "data"
    base.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=base))
    facts, results = machine.facts(), Results()
    versions, clients = {OURS: PenstockServer().version}, {OURS: f"PySpark {pyspark.__version__}"}
    connector = None if alone else _connector(results)
    launch = PenstockServer().prepare(folder / "server")
    server = ServerProcess(launch)
    spark: SparkSession | None = None
    try:
        AdminClient({"bootstrap.servers": launch.address}).list_topics(timeout=_START_S)
        jars = ",".join(map(str, connector.jars)) if connector is not None else ""
        settings = {"spark.jars": jars} if jars else {}
        spark = start("penstock bench", SparkOptions(folder / "spark", f"local[{cores}]", "1g", settings))
        peers: dict[str, Engine] = {}
        if connector is not None:
            results.notes += [*([connector.note] if connector.note else []), *conform(spark, launch.address, folder)]
            peers[PEER] = TheirSource(spark, launch.address, folder)
            versions[PEER], clients[PEER] = connector.version, "Kafka's Java client"
        wanted.run(launch.address, OurSource(spark, launch.address, folder), peers, results, console.print)
    except (*FAILURES, PipelineError) as error:
        results.failures.append(one_line(error))
    except KeyboardInterrupt:
        console.print("interrupted; what was started is stopped")
        raise typer.Exit(130) from None
    finally:
        if spark is not None:
            spark.stop()
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)
    header = Header(
        name="pipeline",
        title="The data pipeline",
        base=PEER,
        plan=f"{rows:,} messages of 1 KiB, {2 * rows:,} of 100 B, local[{cores}]",
        machine=facts,
        versions=versions,
        clients=clients,
    )
    if not report(console, header, results, out or DOCS):
        raise typer.Exit(1)


def _connector(results: Results) -> Connector | None:
    connector = Connector(CACHE)
    try:
        connector.obtain()
    except FAILURES as error:
        results.failures.append(f"{PEER} could not be had: {one_line(error)}")
        return None
    return connector


if __name__ == "__main__":
    typer.run(main)
