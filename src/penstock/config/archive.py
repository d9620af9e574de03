"""Settings of a topic whose history is archived: what retention leaves until the archive has it."""

from __future__ import annotations

from penstock.config.setting import Kind, Setting

NO_BOUND = -1

ARCHIVE_GROUP = Setting(
    name="penstock.archive.group",
    kind=Kind.STRING,
    default="",
    doc="Group that stands for the archive: retention deletes nothing from its committed offsets on. Empty: none.",
)
ARCHIVE_MAX_BYTES = Setting(
    name="penstock.archive.max.bytes",
    kind=Kind.LONG,
    default=str(10 << 30),
    low=NO_BOUND,
    doc="Bytes that a partition holds for its archive, at most, beyond what retention leaves; -1 sets no bound.",
)
ARCHIVE_MAX_MS = Setting(
    name="penstock.archive.max.ms",
    kind=Kind.LONG,
    default=str(7 * 24 * 3_600_000),
    low=NO_BOUND,
    doc="Milliseconds beyond retention.ms for which records are held for their archive; -1 sets no bound.",
)
