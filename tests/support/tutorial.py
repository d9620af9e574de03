"""A document, done as it stands: its commands are run, its programs saved and started, and what it says they print is
what they print.

What a block is for stands behind the word for its language: `sh` is run to its end, `sh terminal` goes on running;
`python` is run to its end, `python terminal` goes on running, `python NAME` is saved under this name; `text` is what
the commands before it print, `text NAME` what a running program has printed since it was last looked at. Only the
broker's addresses and times differ.

A block of commands or Python that cannot be run has a comment in front of it that says why: `<!-- not run: ... -->`.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import ConsumerGroupState
from confluent_kafka.admin import AdminClient

from support.broker_process import BrokerProcess
from support.programs import dying_with_us, environment
from support.waiting import PATIENCE_S, until

ROOT = Path(__file__).parents[2]
KAFKA = re.compile(r"(?:localhost|127\.0\.0\.1)?:9092\b")
HTTP = re.compile(r"(?:localhost|127\.0\.0\.1):8092\b")
ENTER = "source .venv/bin/activate\n"
RUN_S = 300
BLOCK = re.compile(
    r"^(?:<!-- not run: (?P<reason>[^\n]+) -->\n)?```(?P<language>\w*) ?(?P<word>[\w.:]*)\n(?P<content>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
GROUP = re.compile(r"group=\"([\w.-]+)\"")
COMMAND = re.compile(r"^(?:penstock|kcat|curl|pip|make|python) ", re.MULTILINE)
PROGRAM = re.compile(r"^(python|penstock) (?=[^\n]*\n*\Z)", re.MULTILINE)
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


@dataclass(frozen=True)
class Block:
    """Something between three backquotes and the next ones."""

    language: str
    word: str
    content: str
    reason: str | None
    """Why it is not run."""

    @property
    def name(self) -> str:
        """The file that a reader would save it in."""
        return self.word if "." in self.word else ""


def blocks_of(document: str) -> list[Block]:
    """All blocks in order; those that are neither commands nor programs, like diagrams, are included."""
    found = [
        Block(match["language"], match["word"], match["content"], match["reason"]) for match in BLOCK.finditer(document)
    ]
    assert found
    assert 2 * len(found) == len(re.findall(r"^```", document, re.MULTILINE)), "a block that cannot be understood"
    return found


@dataclass
class Program:
    """One that goes on running; what it prints is in a file."""

    process: subprocess.Popen[bytes]
    output: Path
    errors: Path
    looked_at: int = 0


class Reader:
    """Somebody who does what a document says, in two or three terminals."""

    def __init__(
        self,
        broker: BrokerProcess,
        folder: Path,
        env: Mapping[str, str] | None,
        *,
        enters: bool,
        shows_output: bool,
    ) -> None:
        """`enters`: the document says how to enter the environment; `shows_output`: it says what commands print."""
        self._shows_output = shows_output
        self._folder = folder
        self._broker = broker
        self._programs: dict[str, Program] = {}
        self._printed: list[str] = []
        self._entered = "" if enters else ENTER
        self._unnamed = 0
        # The environment that the tests run in is the one that `make run` would have made.
        (folder / ".venv").symlink_to(sys.prefix)
        self._env = environment({"PENSTOCK_BOOTSTRAP": broker.kafka, **(env or {})})

    def follow(self, block: Block) -> None:
        content = block.content
        match block.language, block.word:
            case "sh", "terminal":
                self._start(self._entered + self._addressed(content))
            case "sh", "":
                self._run(self._addressed(content))
            case "python", ("" | "terminal") as word:
                self._unnamed += 1
                name = f"program_{self._unnamed}.py"
                self._save(name, content)
                command = f"{ENTER}python {name}\n"
                if word:
                    self._start(command)
                    for group in GROUP.findall(content):
                        self._wait_for_members(group)
                else:
                    self._run(command)
            case "python", name:
                self._save(name, content)
            case "text", "":
                assert self._printed == lines_of(content)
                self._printed = []
            case "text", name:
                self._look(self._programs[name], lines_of(self._addressed(content)))
            case other:
                raise AssertionError(f"nobody knows what to do with a block of {other}")

    def end(self) -> None:
        """What was started and not ended is still at work."""
        for program in self._programs.values():
            assert program.process.poll() is None, program.errors.read_text()

    def _addressed(self, text: str) -> str:
        return HTTP.sub(self._broker.http, KAFKA.sub(self._broker.kafka, text))

    def _save(self, name: str, program: str) -> None:
        (self._folder / name).write_text(self._addressed(program))

    def close(self) -> None:
        for program in self._programs.values():
            program.process.kill()
            program.process.wait()

    def _run(self, commands: str) -> None:
        if self._shows_output:
            assert self._printed == [], "the document does not say what the commands before have printed"
        done = subprocess.run(
            ["bash", "-e", "-c", self._entered + commands],
            cwd=self._folder,
            capture_output=True,
            timeout=RUN_S,
            env=self._env,
            check=False,
        )
        assert done.returncode == 0, f"{commands}{done.stderr.decode()}"
        self._printed = lines_of(done.stdout.decode())
        if commands.startswith(ENTER):
            # In this terminal, that holds from now on.
            self._entered = ENTER

    def _start(self, commands: str) -> None:
        name = commands.split()[-1]
        if commands.removeprefix(ENTER).partition("#")[0].strip() == "make run":
            # The broker is there already, on a port of its own; that `make run` would start one can still be seen.
            shown = subprocess.run(["make", "-n", "run"], cwd=ROOT, capture_output=True, timeout=RUN_S, check=True)
            assert b"penstock serve" in shown.stdout
            return
        output, errors = self._folder / f"{name}.out", self._folder / f"{name}.err"
        with output.open("wb") as stream, errors.open("wb") as complaints:
            process = subprocess.Popen(
                dying_with_us(["bash", "-e", "-c", PROGRAM.sub(r"exec \1 ", commands)]),
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=complaints,
                env=self._env,
            )
        self._programs[name] = Program(process, output, errors)

    def _wait_for_members(self, group: str) -> None:
        """A reader goes on when the program runs, and by then it has joined."""
        admin = AdminClient({"bootstrap.servers": self._broker.kafka})

        def is_stable() -> bool:
            found = admin.describe_consumer_groups([group])[group].result(PATIENCE_S)
            return bool(found.state == ConsumerGroupState.STABLE)

        until(is_stable, f"group {group} is stable")

    def _look(self, program: Program, wanted: list[str]) -> None:
        def said() -> list[str]:
            return lines_of(program.output.read_text())[program.looked_at :]

        try:
            until(lambda: len(said()) >= len(wanted), f"{program.output.stem} has said {len(wanted)} lines")
        finally:
            assert by_message(said()[: len(wanted)]) == by_message(wanted)
        program.looked_at += len(wanted)


def by_message(lines: list[str]) -> list[str]:
    """Lines about one message, which they name before their first comma, in their order. On a busy machine a retry may
    come before the next message is sent, so the order of different messages is not promised.
    """
    return sorted(lines, key=lambda line: line.partition(",")[0])


def lines_of(text: str) -> list[str]:
    return [TIME.sub("TIME", line.rstrip()) for line in text.splitlines() if line.strip()]


def follow(document: str, broker: BrokerProcess, folder: Path, env: Mapping[str, str] | None = None) -> None:
    """Does everything that a document says."""
    blocks = [block for block in blocks_of(document) if block.language and block.reason is None]
    enters = any(ENTER in block.content for block in blocks)
    reader = Reader(broker, folder, env, enters=enters, shows_output=any(block.language == "text" for block in blocks))
    try:
        for block in blocks:
            reader.follow(block)
        reader.end()
    finally:
        reader.close()
