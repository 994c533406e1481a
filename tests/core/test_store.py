import weakref

import pytest
import torch

from fl_lightning.aggregation import Scaffold
from fl_lightning.callbacks import FederatedServer
from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.core.store import ClientStore
from fl_lightning.data import RandomClients
from tests.toys import Net, federate, identical


@pytest.fixture(params=["memory", "folder"])
def store(request, tmp_path):
    return ClientStore(tmp_path / "clients" if request.param == "folder" else None)


def test_the_last_stored_entry_is_returned_and_other_clients_have_none(store):
    store.put("Writer", 3, {"a": torch.arange(3.0)})
    store.put("Writer", 1, {"a": torch.zeros(1)})
    store.put("Writer", 3, {"a": torch.ones(2), "b": torch.tensor(5)})
    assert identical(store.get("Writer", 3), {"a": torch.ones(2), "b": torch.tensor(5)})
    assert store.get("Writer", 2) is None
    assert store.clients("Writer") == [1, 3]


def test_writers_do_not_see_each_other(store):
    first, second = store.part("First"), store.part("Second")
    first.put(3, {"a": torch.tensor(1.0)})
    second.put(3, {"a": torch.tensor(2.0)})
    second.put(4, {"a": torch.tensor(3.0)})
    assert first.get(3)["a"] == 1.0
    assert second.get(3)["a"] == 2.0
    assert first.get(4) is None
    assert (first.clients(), second.clients()) == ([3], [3, 4])


def test_a_killed_round_is_forgotten(store, tmp_path):
    store.put("Writer", 3, {"a": torch.tensor(1.0)})
    store.put("Writer", 3, {"a": torch.tensor(2.0)})
    saved = store.state_dict()
    store.put("Writer", 3, {"a": torch.tensor(3.0)})
    store.put("Writer", 4, {"a": torch.tensor(4.0)})
    resumed = ClientStore(store.folder)
    resumed.load_state_dict(saved)
    assert resumed.get("Writer", 3)["a"] == 2.0
    assert resumed.get("Writer", 4) is None
    resumed.put("Writer", 3, {"a": torch.tensor(5.0)})
    assert resumed.get("Writer", 3)["a"] == 5.0


def test_a_staged_entry_is_read_once_it_is_committed(store):
    store.put("Writer", 3, {"a": torch.tensor(1.0)})
    store.stage("Writer", 3, {"a": torch.tensor(2.0)})
    store.stage("Writer", 4, {"a": torch.tensor(3.0)})
    assert store.get("Writer", 3)["a"] == 1.0
    assert store.get("Writer", 4) is None
    store.commit()
    assert store.get("Writer", 3)["a"] == 2.0
    assert store.get("Writer", 4)["a"] == 3.0


def test_what_a_failed_round_staged_is_forgotten(store):
    store.stage("Writer", 3, {"a": torch.tensor(1.0)})
    store.begin_round()
    store.commit()
    assert store.get("Writer", 3) is None
    ClientStore(store.folder).check_empty()  # a run that failed in its first round can begin again


def test_a_staged_entry_stays_in_memory_only_without_a_folder(store):
    values = {"a": torch.ones(3)}
    alive = weakref.ref(values["a"])
    store.stage("Writer", 3, values)
    del values
    assert (alive() is None) == (store.folder is not None)


def test_the_checkpoint_contains_only_plain_types(store, tmp_path):
    store.put("Writer", 3, {"a": torch.tensor(1.0)})
    torch.save(store.state_dict(), tmp_path / "state.pt")
    assert torch.load(tmp_path / "state.pt", weights_only=True).keys() == {"entries", "versions"}


def test_a_folder_keeps_three_versions_and_an_older_one_is_refused(tmp_path):
    store = ClientStore(tmp_path)
    states = []
    for value in range(4):
        store.put("Writer", 0, {"a": torch.tensor(value)})
        states.append(store.state_dict())
    assert len(list(tmp_path.iterdir())) == 3
    for value, state in enumerate(states[1:], start=1):
        store.load_state_dict(state)
        assert store.get("Writer", 0) == {"a": torch.tensor(value)}
    store.load_state_dict(states[0])
    with pytest.raises(MisconfigurationError, match="the folder keeps what the last two checkpoints need"):
        store.get("Writer", 0)


def test_a_damaged_file_of_a_client_is_refused(tmp_path):
    store = ClientStore(tmp_path)
    store.put("Writer", 0, {"a": torch.arange(1000.0)})
    (file,) = tmp_path.iterdir()
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with pytest.raises(MisconfigurationError, match="is damaged: the checksum of data/0 is wrong: resume from the"):
        store.get("Writer", 0)


def test_files_that_a_killed_process_did_not_complete_are_removed(tmp_path):
    store = ClientStore(tmp_path)
    store.put("Writer", 0, {"a": torch.tensor(1)})
    kept = list(tmp_path.iterdir())
    store.stage("Writer", 0, {"a": torch.tensor(2)})
    assert list(tmp_path.iterdir()) != kept
    ClientStore(tmp_path).remove_incomplete()
    assert list(tmp_path.iterdir()) == kept


def test_a_checkpoint_with_a_folder_needs_the_folder(tmp_path):
    store = ClientStore(tmp_path)
    store.put("Writer", 0, {"a": torch.tensor(1)})
    with pytest.raises(MisconfigurationError, match=r"set server\.client_folder"):
        ClientStore().load_state_dict(store.state_dict())


def test_memory_and_folder_give_the_same_run(tmp_path):
    def run(folder):
        torch.manual_seed(0)
        server = FederatedServer(Scaffold(), client_folder=folder)
        federated, _ = federate(Net(), server=server, selection=RandomClients(count=2), rounds=5)
        return dict(federated.state_dict())

    assert identical(run(None), run(str(tmp_path / "clients")))
    assert list((tmp_path / "clients").iterdir())
