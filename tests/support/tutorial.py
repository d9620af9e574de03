"""A tutorial, done as it stands: its commands are run, its programs saved and started, and what it says they print is
what they print.

What a block is for stands behind the word for its language: `sh` is run to its end, `sh terminal` goes on running;
`python NAME` is saved under this name; `text` is what the commands before it print, `text NAME` what a running program
has printed since it was last looked at. Only the broker's address and times differ.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from support.broker_process import BrokerProcess
from support.programs import dying_with_us, environment
from support.waiting import until

ROOT = Path(__file__).parents[2]
ADDRESS = "localhost:9092"
ENTER = "source .venv/bin/activate\n"
RUN_S = 120
BLOCK = re.compile(r"^```(\w+) ?([\w.]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


@dataclass
class Program:
    """One that goes on running; what it prints is in a file."""

    process: subprocess.Popen[bytes]
    output: Path
    looked_at: int = 0


class Reader:
    """Somebody who follows the tutorial."""

    def __init__(self, broker: BrokerProcess, folder: Path) -> None:
        self._folder = folder
        self._broker = broker
        self._programs: dict[str, Program] = {}
        self._printed: list[str] = []
        self._entered = ""
        # The environment that the tests run in is the one that `make run` would have made.
        (folder / ".venv").symlink_to(sys.prefix)
        self._env = environment({"PENSTOCK_BOOTSTRAP": broker.kafka})

    def follow(self, language: str, word: str, content: str) -> None:
        match language, word:
            case "sh", "terminal":
                self._start(content)
            case "sh", _:
                self._run(content)
            case "python", name:
                (self._folder / name).write_text(content.replace(ADDRESS, self._broker.kafka))
            case "text", "":
                assert self._printed == lines_of(content)
                self._printed = []
            case "text", name:
                self._look(self._programs[name], lines_of(content))
            case other:
                raise AssertionError(f"nobody knows what to do with a block of {other}")

    def close(self) -> None:
        for program in self._programs.values():
            program.process.kill()
            program.process.wait()

    def _run(self, commands: str) -> None:
        assert self._printed == [], "the tutorial does not say what the commands before have printed"
        done = subprocess.run(
            ["bash", "-e", "-c", self._entered + commands],
            cwd=self._folder,
            capture_output=True,
            timeout=RUN_S,
            env=self._env,
            check=False,
        )
        assert done.returncode == 0, done.stderr.decode()
        self._printed = lines_of(done.stdout.decode())
        if commands.startswith(ENTER):
            # In this terminal, that holds from now on.
            self._entered = ENTER

    def _start(self, commands: str) -> None:
        name = commands.split()[-1]
        if commands.strip() == "make run":
            # The broker is there already, on a port of its own; that `make run` would start one can still be seen.
            shown = subprocess.run(["make", "-n", "run"], cwd=ROOT, capture_output=True, timeout=RUN_S, check=True)
            assert b"penstock serve" in shown.stdout
            return
        output = self._folder / f"{name}.out"
        with output.open("wb") as stream:
            process = subprocess.Popen(
                dying_with_us(["bash", "-e", "-c", commands.replace(f"python {name}", f"exec python {name}")]),
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=sys.stderr.fileno() if os.isatty(2) else subprocess.DEVNULL,
                env=self._env,
            )
        self._programs[name] = Program(process, output)

    def _look(self, program: Program, wanted: list[str]) -> None:
        def said() -> list[str]:
            return lines_of(program.output.read_text())[program.looked_at :]

        try:
            until(lambda: len(said()) >= len(wanted), f"{program.output.stem} has said {len(wanted)} lines")
        finally:
            assert said()[: len(wanted)] == wanted
        program.looked_at += len(wanted)


def lines_of(text: str) -> list[str]:
    return [TIME.sub("TIME", line.rstrip()) for line in text.splitlines() if line.strip()]


def follow(tutorial: str, broker: BrokerProcess, folder: Path) -> None:
    """Does everything that a tutorial says."""
    blocks = BLOCK.findall(tutorial)
    assert blocks
    assert len(blocks) == tutorial.count("```") / 2
    reader = Reader(broker, folder)
    try:
        for language, word, content in blocks:
            reader.follow(language, word, content)
    finally:
        reader.close()
