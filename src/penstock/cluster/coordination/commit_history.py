"""The value of the clock node: which paths the last commits changed.

    {"commits": [["/topics/a"], ["/topics/a", "/topics/b"]]}      oldest first; the last one moved the clock here

The clock's version is the node's own version, so the n-th commit from the end is the one that moved the clock to
`version - n`. Only the last commits are kept: the value is written with every commit and read after every one, by
every broker. A broker that is further behind has to read everything again.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from penstock.errors import CoordinationError

CLOCK = "/clock"
"""The engine's own node: nothing else sees it or writes to it."""

MAX_COMMITS = 100
MAX_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class CommitHistory:
    """The paths that the last commits changed, commit by commit, oldest first."""

    commits: tuple[tuple[str, ...], ...] = ()

    def followed_by(self, paths: tuple[str, ...]) -> CommitHistory:
        """With one commit more; the oldest go, all of them if that commit alone is too much to keep."""
        kept: list[tuple[str, ...]] = []
        size = 0
        for commit in ((paths, *reversed(self.commits)))[:MAX_COMMITS]:
            size += len(_encode(commit)) + 1
            if size > MAX_BYTES:
                break
            kept.append(commit)
        return CommitHistory(tuple(reversed(kept)))

    def after(self, version: int, now: int) -> tuple[tuple[str, ...], ...] | None:
        """The commits after that version, with the clock at `now`; None if they are no longer all known."""
        missed = now - version
        if not 0 <= missed <= len(self.commits):
            return None
        return self.commits[len(self.commits) - missed :]

    def encode(self) -> bytes:
        return b'{"commits":' + _encode(self.commits) + b"}"

    @classmethod
    def decode(cls, value: bytes) -> CommitHistory:
        try:
            commits = tuple(tuple(commit) for commit in json.loads(value)["commits"])
            if not all(isinstance(path, str) for commit in commits for path in commit):
                raise TypeError("a path is not a text")
        except (ValueError, TypeError, KeyError) as error:
            raise CoordinationError(f"node {CLOCK} of the coordination tree cannot be read: {error!r}") from error
        return cls(commits)


def changed_paths(commits: tuple[tuple[str, ...], ...] | None) -> list[str] | None:
    """All paths of these commits, each once, in the order in which they were first changed."""
    return None if commits is None else list(dict.fromkeys(path for commit in commits for path in commit))


def _encode(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
