import copy
import subprocess

import numpy as np
import pytest
import torch
import yaml
from torch.utils.data import DataLoader, Dataset

from fl_lightning import FederatedDataModule
from fl_lightning.callbacks.run.checkpoint import LastRound
from fl_lightning.callbacks.run.provenance import Provenance, differences
from fl_lightning.core.environment import git_states, installed_packages
from fl_lightning.core.run_folder import RunFolder
from fl_lightning.data import IID, FreshDraw
from fl_lightning.data.fingerprint import data_fingerprint, partition_fingerprint
from tests.toys import Blobs, federate


def run(folder, rounds=1, callbacks=(), **more):
    torch.set_num_threads(1)
    flags = {"enable_checkpointing": True, "default_root_dir": str(folder)}
    federate(rounds=rounds, callbacks=[LastRound(), *callbacks], **flags, **more)
    return RunFolder(folder)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return run(tmp_path_factory.mktemp("run"))


def record_of(folder):
    return yaml.safe_load(folder.provenance.read_text())


def test_a_run_records_what_it_was_made_with(finished):
    record = record_of(finished)
    assert record["packages"] == installed_packages()
    assert record["machine"]["threads"] == 1
    assert record["machine"]["device"] == "cpu"
    assert record["seed"] == 0
    assert record["data"] == {**record["data"], "samples": 120, "covers": "all labels and 16 of 120 samples"}
    assert record["partition"]["clients"] == 4


def test_the_versions_are_those_that_python_finds():
    from importlib import metadata

    found = installed_packages()
    for name in ("torch", "numpy", "pytorch-lightning", "pytest"):
        assert found[name] == metadata.version(name)


def test_repeating_a_run_under_the_same_conditions_says_nothing(finished, tmp_path, capsys):
    run(tmp_path, callbacks=[Provenance(repeats=finished)])
    assert capsys.readouterr().out == ""
    before, after = record_of(finished), record_of(RunFolder(tmp_path))
    assert {**before, "started": ""} == {**after, "started": ""}


def test_other_threads_and_data_are_named_before_the_first_round(finished, tmp_path, capsys):
    torch.set_num_threads(2)
    flags = {"enable_checkpointing": True, "default_root_dir": str(tmp_path)}
    federate(source=Blobs(samples=100), rounds=1, callbacks=[Provenance(repeats=finished)], **flags)
    data, partition, machine = capsys.readouterr().out.splitlines()
    assert data.startswith(f"Differs from {finished}: the training data is not the same (samples 120 -> 100; digest ")
    assert data.endswith(": results will differ")
    assert "division of the data among the clients is not the same (digest" in partition
    assert machine == f"Differs from {finished}: threads 1 -> 2: results may differ in the last bits"


def test_a_resumed_run_is_compared_with_its_own_record(tmp_path, capsys):
    folder = run(tmp_path)
    record = record_of(folder)
    record["packages"]["torch"] = "1.0"
    folder.provenance.write_text(yaml.safe_dump(record))
    run(tmp_path, rounds=2, ckpt_path=str(folder.checkpoint))
    assert f"Differs from {folder}: torch 1.0 -> " in capsys.readouterr().out
    assert record_of(folder)["packages"]["torch"] == "1.0"
    later = yaml.safe_load(folder.provenance_from_round(2).read_text())
    assert later["packages"]["torch"] != "1.0"


def test_differences_are_one_line_per_kind(finished):
    old = record_of(finished)
    new = copy.deepcopy(old)
    assert list(differences(old, new)) == []
    assert list(differences({}, new)) == []
    old["code"] = {"/home/a/project": {"commit": "a" * 40}}
    new["code"] = {"/home/b/project": {"commit": "b" * 40, "changes": "123"}, "/home/b/other": {"commit": "c" * 40}}
    new["packages"] |= {"numpy": "0", "torch": "2", "added": "1"}
    new["seed"] = 5
    seed, code, packages = differences(old, new)
    assert seed == "seed 0 -> 5: results will differ"
    assert code == ("code of project aaaaaaaaaa -> bbbbbbbbbb with uncommitted changes 123: results may differ")
    torch_, numpy, added = packages.removesuffix(": results may differ in the last bits").split("; ")
    assert (torch_, numpy) == (f"torch {old['packages']['torch']} -> 2", f"numpy {old['packages']['numpy']} -> 0")
    assert added == "added missing -> 1"


def test_many_differences_are_counted():
    old = {"packages": {f"p{number}": "1" for number in range(20)}}
    (line,) = differences(old, {"packages": {}})
    assert "p7 1 -> missing; and 12 more: results" in line


def test_the_state_of_the_code_is_its_commit_and_a_digest_of_what_is_not_committed(tmp_path):
    def git(*arguments):
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        return subprocess.run(["git", "-C", tmp_path, *identity, *arguments], check=True, capture_output=True).stdout

    git("init", "-q")
    assert git_states([tmp_path]) == {}
    file = tmp_path / "model.py"
    file.write_text("one")
    git("add", ".")
    git("commit", "-qm", "first")
    commit = git("rev-parse", "HEAD").decode().strip()
    assert git_states([tmp_path, file]) == {str(tmp_path): {"commit": commit}}
    states = []
    for content in ("two", "three"):
        file.write_text(content)
        states.append(git_states([file])[str(tmp_path)])
    assert states[0]["commit"] == states[1]["commit"] == commit
    assert states[0]["changes"] != states[1]["changes"]


class Augmented(Dataset):
    """A data set of dictionaries that draws random numbers, as an augmentation does."""

    def __init__(self, offset=0.0):
        self.offset = offset
        self.targets = torch.arange(40) % 4

    def __len__(self):
        return 40

    def __getitem__(self, index):
        noise = torch.rand(3) + np.random.rand()
        return {"image": noise + index + self.offset, "text": f"sample {index}", "label": int(self.targets[index])}


class Source(Blobs):
    def __init__(self, dataset):
        super().__init__()
        self.dataset = dataset

    def setup(self, stage):
        pass

    def train_dataloader(self):
        return DataLoader(self.dataset, batch_size=4)


def prepared(dataset, partition=None):
    data = FederatedDataModule(Source(dataset), partition or IID(num_clients=4))
    data.setup("fit")
    return data


def test_a_fingerprint_depends_on_samples_but_not_on_random_numbers_and_leaves_those_alone():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = data_fingerprint(prepared(Augmented()))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert data_fingerprint(prepared(Augmented())) == first
    assert data_fingerprint(prepared(Augmented(offset=0.5))) != first


def test_a_fingerprint_covers_every_label():
    dataset = Augmented()
    first = data_fingerprint(prepared(dataset))
    dataset.targets[1] = 3
    assert data_fingerprint(prepared(dataset))["digest"] != first["digest"]


def test_a_fingerprint_of_the_partition_depends_on_who_owns_what():
    first = partition_fingerprint(prepared(Augmented()))
    assert partition_fingerprint(prepared(Augmented())) == first
    assert partition_fingerprint(prepared(Augmented(), IID(num_clients=5))) != first
    drawn = prepared(Augmented(), FreshDraw(num_clients=200, low=1, high=2))
    assert partition_fingerprint(drawn)["covers"] == "64 of 200 clients in the first round"
