"""The data folder: one process, one broker, one cluster."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.cluster.folder import DataFolder, FolderIdentity, new_cluster_id
from penstock.errors import ConfigError
from penstock.ids import BrokerId

BROKER = BrokerId(3)
IDENTITY = FolderIdentity("cluster", BROKER)


def test_a_new_folder_is_made_with_its_parents(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
    folder.close()


def test_the_lock_file_names_the_process_that_holds_it(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path)
    assert int((tmp_path / "lock").read_text()) == os.getpid()
    folder.close()


def test_a_folder_in_use_is_refused_with_the_process_that_uses_it(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from penstock.cluster.folder import DataFolder\n"
        "folder = DataFolder(Path(sys.argv[1])); print('held', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdout is not None and holder.stdin is not None
    with holder:
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(ConfigError, match=f"{tmp_path} is in use by process {holder.pid}$"):
            DataFolder(tmp_path)
        holder.kill()
    # The lock died with its process, without anybody cleaning up.
    DataFolder(tmp_path).close()


def test_a_closed_folder_can_be_opened_again(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path)
    folder.close()
    folder.close()
    DataFolder(tmp_path).close()


def test_a_path_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be used"):
        DataFolder(tmp_path / "file")


def test_a_folder_keeps_the_cluster_id_it_was_given_first(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path)
    assert folder.identity(BROKER) is None
    folder.belong_to(IDENTITY)
    assert folder.identity(BROKER) == IDENTITY
    folder.close()
    again = DataFolder(tmp_path)
    assert again.identity(BROKER) == IDENTITY
    again.close()


def test_meta_json_is_readable(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path)
    folder.belong_to(IDENTITY)
    assert json.loads((tmp_path / "meta.json").read_text()) == {
        "broker_id": 3,
        "cluster_id": "cluster",
        "format": 1,
    }
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["lock", "meta.json"]
    folder.close()


def test_another_brokers_folder_is_refused(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path)
    folder.belong_to(IDENTITY)
    with pytest.raises(ConfigError, match="belongs to broker 3, not to broker 4"):
        folder.identity(BrokerId(4))
    folder.close()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"broker_id": 3, "cluster_id": "x", "format": 2}', "has format 2"),
        ('{"broker_id": 3, "cluster_id": "x"}', "is not the description"),
        ('{"broker_id": "3", "cluster_id": "x", "format": 1}', "is not the description"),
        ("[]", "is not the description"),
        ("", "is not the description"),
    ],
)
def test_a_meta_json_that_cannot_be_used_is_refused_and_left_alone(tmp_path: Path, text: str, reason: str) -> None:
    meta = tmp_path / "meta.json"
    meta.write_text(text)
    folder = DataFolder(tmp_path)
    with pytest.raises(ConfigError, match=reason):
        folder.identity(BROKER)
    assert meta.read_text() == text
    folder.close()


def test_cluster_ids_have_kafkas_form_and_differ() -> None:
    ids = {new_cluster_id() for _ in range(1000)}
    assert len(ids) == 1000
    assert all(len(id) == 22 and not id.startswith("-") for id in ids)
    assert all(character.isalnum() or character in "-_" for id in ids for character in id)


class TestLives:
    """Whether a broker still has all that it wrote."""

    def life_after(self, tmp_path: Path, *, was_booted: bool = False) -> bool:
        if was_booted:
            path = tmp_path / "life.json"
            path.write_text(json.dumps(json.loads(path.read_text()) | {"boot": "another"}))
        folder = DataFolder(tmp_path)
        is_whole = folder.begin_life()
        folder.close()
        return is_whole

    @pytest.fixture(autouse=True)
    def first_life(self, tmp_path: Path) -> Iterator[DataFolder]:
        folder = DataFolder(tmp_path)
        assert not folder.begin_life()
        folder.be_whole()
        yield folder
        folder.close()

    def test_a_new_folder_has_nothing_and_a_killed_process_leaves_everything(
        self, tmp_path: Path, first_life: DataFolder
    ) -> None:
        first_life.close()
        assert self.life_after(tmp_path)

    def test_a_boot_takes_what_was_not_on_the_disk(self, tmp_path: Path, first_life: DataFolder) -> None:
        first_life.close()
        assert not self.life_after(tmp_path, was_booted=True)

    def test_a_boot_takes_nothing_after_a_clean_stop(self, tmp_path: Path, first_life: DataFolder) -> None:
        first_life.end_life()
        first_life.close()
        assert self.life_after(tmp_path, was_booted=True)
        assert not self.life_after(tmp_path, was_booted=True)

    def test_a_loss_is_remembered_until_the_cluster_knows_of_it(self, tmp_path: Path, first_life: DataFolder) -> None:
        first_life.close()
        assert not self.life_after(tmp_path, was_booted=True)
        folder = DataFolder(tmp_path)
        assert not folder.begin_life()
        folder.end_life()
        folder.close()
        folder = DataFolder(tmp_path)
        assert not folder.begin_life()
        folder.be_whole()
        folder.close()
        assert self.life_after(tmp_path)

    def test_a_file_that_cannot_be_used_is_refused(self, tmp_path: Path, first_life: DataFolder) -> None:
        (tmp_path / "life.json").write_text("{}")
        with pytest.raises(ConfigError, match="does not say"):
            first_life.begin_life()


def test_the_holder_of_a_folder_is_the_same_for_every_process_and_no_other_folders(tmp_path: Path) -> None:
    one, other = DataFolder(tmp_path / "one"), DataFolder(tmp_path / "other")
    assert one.holder != other.holder
    before = one.holder
    one.close()
    again = DataFolder(tmp_path / "one")
    assert again.holder == before
    again.close()
    other.close()
