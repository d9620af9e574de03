"""What a lake needs now and then besides compaction: removes expired days, and files that no version refers to."""

from __future__ import annotations

from collections.abc import Collection
from datetime import date

from penstock.pipeline.lake.delta import Change, Lake, LakeFile


def expire(lake: Lake, before: date, topics: Collection[str] | None = None) -> list[LakeFile]:
    """Removes the files of days before a day, of all topics or of some; watermarks stay. Gives what was removed."""
    going: list[LakeFile] = []

    def choose() -> bool:
        # Chosen on the version that the change follows: whatever compaction has made of it is what goes.
        going[:] = [
            file
            for file in lake.files()
            if date.fromisoformat(file.date) < before and (topics is None or file.topic in topics)
        ]
        return bool(going)

    lake.commit(Change(removed=going), choose)
    return going
