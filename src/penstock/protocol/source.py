"""Python source under construction: what the two code generators share.

A codec for one version is generated as the text of one flat function, because a function per field
or per struct would cost more than the work it does.
"""

from __future__ import annotations

from typing import Any


class Source:
    """Lines of a function body, and the values its free names stand for."""

    def __init__(self) -> None:
        self.names: dict[str, Any] = {}
        self._lines: list[str] = []
        self._depth = 1
        self._fresh = 0

    def line(self, text: str) -> None:
        self._lines.append("    " * self._depth + text)

    def fresh(self, stem: str) -> str:
        """A local name that nothing else uses."""
        self._fresh += 1
        return f"{stem}{self._fresh}"

    def bind(self, stem: str, value: Any) -> str:
        """A free name for `value`."""
        name = self.fresh(stem)
        self.names[name] = value
        return name

    def indent(self) -> None:
        self._depth += 1

    def dedent(self) -> None:
        self._depth -= 1

    def build(self, head: str, title: str) -> Any:
        """Compiles `def run(...)` from `head` and the lines; `title` names it in tracebacks."""
        text = "\n".join([f"def run({head}):", *self._lines])
        namespace = dict(self.names)
        exec(compile(text, f"<{title}>", "exec"), namespace)
        return namespace["run"]
