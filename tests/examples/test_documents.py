"""The documents for users: their commands and programs are run in order, each document against a fresh broker.

The pipeline's needs Spark: `spark/test_pipeline_tutorial.py`.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from conftest import BrokerFactory
from support.broker_process import BrokerProcess
from support.programs import required_program, run
from support.tutorial import COMMAND, ROOT, Block, blocks_of, follow

RUN_HERE = (
    "README.md",
    "docs/tutorial.md",
    "docs/sdk.md",
    "docs/delay.md",
    "docs/forms.md",
    "docs/views.md",
    "docs/groups.md",
    "docs/worker.md",
    "docs/push.md",
    "docs/admin.md",
    "docs/quotas.md",
)
DOCUMENTS = (*RUN_HERE, "docs/transactions.md", "docs/pipeline.md")
MYPY_S = 300
TOPIC_NAMES = (
    r"penstock (?:topic create|send|tail) ([\w.-]+)",
    r"kcat [^\n]*-t ([\w.-]+)",
    r"(?:subscribe|send|send_soon|produce)\(\[?\"([\w.-]+)\"",
)
GROUP_NAMES = (
    r"penstock (?:group|deadletter) \w+ ([\w.-]+)",
    r"group=\"([\w.-]+)\"",
    r"\"group.id\": \"([\w.-]+)\"",
    r"kcat [^\n]*-G ([\w.-]+)",
)


def blocks(document: str) -> list[Block]:
    return blocks_of((ROOT / document).read_text())


@pytest.mark.parametrize("document", RUN_HERE)
def test_what_a_document_says_can_be_done(document: str, new_broker: BrokerFactory, tmp_path: Path) -> None:
    do(document, new_broker(), tmp_path)


def test_the_transactional_program_writes_one_invoice_for_every_basket(
    new_broker: BrokerFactory, tmp_path: Path
) -> None:
    broker = new_broker()
    do("docs/transactions.md", broker, tmp_path)
    everything = (required_program("kcat"), "-b", broker.kafka, "-C", "-o", "beginning", "-e", "-t")
    baskets, invoices = (run([*everything, topic]).stdout.splitlines() for topic in ("baskets", "invoices"))
    assert baskets
    assert sorted(invoices) == sorted(b"invoice for " + basket for basket in baskets)


def do(document: str, broker: BrokerProcess, folder: Path) -> None:
    for program in ("kcat", "curl"):
        if any(program in block.content for block in blocks(document)):
            required_program(program)
    follow((ROOT / document).read_text(), broker, folder)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_no_command_escapes_by_having_no_language(document: str) -> None:
    hidden = [
        block.content
        for block in blocks(document)
        if not (block.language or block.reason) and COMMAND.search(block.content)
    ]
    assert hidden == []


def test_every_document_has_topics_and_groups_of_its_own() -> None:
    """So that whoever reads two of them with one broker finds no topic with other partitions and no drained group."""
    users: dict[tuple[str, str], set[str]] = defaultdict(set)
    for document in DOCUMENTS:
        for block in blocks(document):
            if block.language in ("sh", "python") and block.reason is None:
                for kind, patterns in (("topic", TOPIC_NAMES), ("group", GROUP_NAMES)):
                    for name in re.findall("|".join(patterns), block.content):
                        users[kind, "".join(name)].add(document)
    assert users
    assert {name: where for name, where in users.items() if len(where) > 1} == {}


def test_the_programs_in_documents_pass_mypy_strict(tmp_path: Path) -> None:
    """As in a project of a reader, without a configuration of ours."""
    names: list[str] = []
    for document in DOCUMENTS:
        for number, block in enumerate(blocks(document)):
            if block.language == "python":
                names.append(f"{Path(document).stem.lower()}_{number}_{block.name or 'unnamed.py'}")
                (tmp_path / names[-1]).write_text(block.content)
    assert names
    kept = ROOT / ".mypy_cache" / "documents"
    checked = subprocess.run(
        [
            sys.executable,
            "-m",
            "mypy",
            "--strict",
            "--config-file=",
            "--follow-imports=silent",
            f"--cache-dir={kept}",
            *names,
        ],
        cwd=tmp_path,
        env={"MYPYPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=MYPY_S,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
