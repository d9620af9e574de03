"""A server that speaks S3, as a process of its own on a free loopback port, and what is in its buckets."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from pyarrow import fs

from penstock.pipeline.lake.delta import LakeLocation
from penstock.pipeline.lake.object_store import for_arrow
from support.programs import dying_with_us, environment

REGION = "us-east-1"
MEETING = "meeting-"
"""In buckets with such names a put-if-absent waits a while for another one of the same name."""

_CHILD = Path(__file__).parent / "s3_child.py"
_LOG_SHOWN_CHARS = 10_000


class S3Process:
    """Starts when it is made, ends with `kill`."""

    def __init__(self, folder: Path) -> None:
        log = folder / "s3.log"
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                dying_with_us([sys.executable, str(_CHILD), MEETING]),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment(),
                start_new_session=True,
            )
        assert self._process.stdout is not None
        said = self._process.stdout.readline()
        assert said, f"the S3 server died:\n{log.read_text(errors='replace')[-_LOG_SHOWN_CHARS:]}"
        told = json.loads(said)
        self.endpoint = f"http://127.0.0.1:{told['port']}"
        self._users: dict[str, list[str]] = told["users"]

    def storage(self, user: str = "writer") -> dict[str, str]:
        """Options of a lake on this server, for a user: `writer`, or `reader`, who may not write."""
        key, secret = self._users[user]
        return {
            "AWS_ACCESS_KEY_ID": key,
            "AWS_SECRET_ACCESS_KEY": secret,
            "AWS_REGION": REGION,
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ALLOW_HTTP": "true",
        }

    def make_bucket(self, name: str) -> None:
        fs.S3FileSystem(**for_arrow(self.storage()), allow_bucket_creation=True).create_dir(name)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


def objects_of(location: LakeLocation) -> list[str]:
    """The names of all objects of a lake but those of its log, below the lake's own."""
    root = location.uri.removeprefix("s3://")
    selector = fs.FileSelector(root, recursive=True)
    found = [
        info.path for info in fs.S3FileSystem(**for_arrow(location.storage)).get_file_info(selector) if info.is_file
    ]
    return sorted(path.removeprefix(f"{root}/") for path in found if "/_delta_log/" not in path)
