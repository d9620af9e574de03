"""A stand-in for the part of Spark's Kafka connector that deals with delegation tokens, where Maven does not have it.

Without Kerberos that part does nothing but hand settings on, and so does this.
"""

from __future__ import annotations

import subprocess
import zipfile
from pathlib import Path

from bench.servers.packages import ensure_command
from bench.servers.process import ServerError

_LIMIT_S = 120
_SOURCES = {
    "KafkaConfigUpdater": """
    private final java.util.Map<String, Object> settings = new java.util.HashMap<>();

    public KafkaConfigUpdater(String module, scala.collection.immutable.Map<String, Object> given) {
        scala.collection.Iterator<scala.Tuple2<String, Object>> pairs = given.iterator();
        while (pairs.hasNext()) {
            scala.Tuple2<String, Object> pair = pairs.next();
            settings.put(pair._1(), pair._2());
        }
    }

    public KafkaConfigUpdater set(String name, Object value) { settings.put(name, value); return this; }
    public KafkaConfigUpdater setIfUnset(String name, Object value) { settings.putIfAbsent(name, value); return this; }
    public KafkaConfigUpdater setAuthenticationConfigIfNeeded() { return this; }
    public KafkaConfigUpdater setAuthenticationConfigIfNeeded(scala.Option<?> token) { return this; }
    public java.util.Map<String, Object> build() { return settings; }
""",
    "KafkaRedactionUtil$": """
    public static final KafkaRedactionUtil$ MODULE$ = new KafkaRedactionUtil$();

    public scala.collection.immutable.Seq<?> redactParams(scala.collection.immutable.Seq<?> settings) {
        return settings;
    }
""",
    "KafkaTokenUtil$": """
    public static final KafkaTokenUtil$ MODULE$ = new KafkaTokenUtil$();

    public scala.Option<Object> findMatchingTokenClusterConfig(org.apache.spark.SparkConf settings, String servers) {
        return scala.Option.empty();
    }

    public boolean needTokenUpdate(java.util.Map<String, Object> settings, scala.Option<?> token) { return false; }
""",
}
_PACKAGE = "org.apache.spark.kafka010"


def compile_stand_in(jar: Path, spark_jars: Path) -> None:
    """Makes the jar."""
    ensure_command("javac", "default-jdk-headless")
    sources, classes = jar.parent / "stand-in", jar.parent / "stand-in-classes"
    for folder in (sources, classes):
        folder.mkdir(parents=True, exist_ok=True)
    files = []
    for name, body in _SOURCES.items():
        file = sources / f"{name}.java"
        file.write_text(f"package {_PACKAGE};\n\npublic final class {name} {{{body}}}\n")
        files.append(str(file))
    command = ["javac", "-nowarn", "-d", str(classes), "-cp", f"{spark_jars}/*", *files]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S)
    if done.returncode:
        raise ServerError(f"the stand-in for delegation tokens could not be compiled: {done.stderr[-400:]}")
    with zipfile.ZipFile(jar, "w") as packed:
        for file in sorted(classes.rglob("*.class")):
            packed.write(file, file.relative_to(classes))
