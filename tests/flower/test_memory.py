"""A client's memory stays on its node, survives its restart, and is right after the server resumes an earlier round."""

import pytest
import torch

from fl_lightning.callbacks import LastRound
from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.flower.memory import NodeMemory
from fl_lightning.flower.protocol import Version
from tests.flower.loopback import Federation
from tests.flower.test_equality import PARTITION, case, simulated
from tests.toys import identical

WITH_MEMORY = ("Scaffold", "FedBN", "FedDyn", "Ditto", "TopK")


def groups_of(packets) -> set[str]:
    return {name.partition(":")[0] for packet in packets for name in packet.groups}


@pytest.mark.parametrize("name", WITH_MEMORY)
def test_what_a_client_remembers_is_not_sent_to_the_server(name, tmp_path):
    make_module, make_server, selection = case(name)
    with Federation(make_module, make_server, PARTITION, tmp_path) as federation:
        _, trainer = federation.run(rounds=2, selection=selection)
        assert "memory" not in groups_of(federation.post.requests + federation.post.replies)
        assert "personal" not in groups_of(federation.post.requests)
    kept = trainer.lightning_module.server.store.state_dict()["entries"]
    assert set(kept) == {"node"}
    assert all(set(values) == {"run", "round"} for values in kept["node"].values())


@pytest.mark.parametrize("name", ["Scaffold", "FedBN", "Scaffold with TopK"])
def test_a_server_that_keeps_the_memory_gives_the_same_bits_and_leaves_nothing_on_the_node(name, tmp_path):
    make_module, make_server, selection = case(name)
    with Federation(make_module, make_server, PARTITION, tmp_path, client_memory="server") as federation:
        state, _ = federation.run(selection=selection)
        assert "memory" in groups_of(federation.post.replies)
    assert identical(state, simulated(name)[0])
    assert not list(tmp_path.rglob("*.pt"))


@pytest.mark.parametrize("name", ["Scaffold with TopK", "Ditto"])
def test_restarted_nodes_and_a_resumed_server_end_like_an_undisturbed_simulation(name, tmp_path):
    expected, _ = simulated(name, rounds=4)
    make_module, make_server, selection = case(name)
    options = {"selection": selection, "callbacks": [LastRound()], "enable_checkpointing": True}
    with Federation(make_module, make_server, PARTITION, tmp_path / "nodes") as federation:
        federation.run(rounds=2, default_root_dir=tmp_path, **options)
        checkpoint = tmp_path / "checkpoints" / "last.ckpt"
        early = checkpoint.read_bytes()
        # The nodes go on to round 4, then the server loses the last two rounds and repeats them.
        federation.run(rounds=4, default_root_dir=tmp_path, ckpt_path=checkpoint, **options)
        checkpoint.write_bytes(early)
        for number in (0, 1):
            federation.stop(number)
            federation.start(number, range(number, PARTITION.num_clients, 2))
        state, _ = federation.run(rounds=4, default_root_dir=tmp_path, ckpt_path=checkpoint, **options)
    assert identical(state, expected)


def test_a_node_keeps_ten_versions_and_names_one_that_is_gone(tmp_path):
    memory = NodeMemory(tmp_path)
    for number in range(12):
        memory.save(3, Version(7, number), {"writer": {"value": torch.tensor(number)}})
    assert memory.versions(3) == list(range(2, 12))
    assert memory.load(3, Version(7, 4))["writer"]["value"] == 4
    assert memory.load(3, None) == {}
    with pytest.raises(MisconfigurationError, match=r"no memory of client 3 after round 2: .* resume from a later"):
        memory.load(3, Version(7, 1))
    with pytest.raises(MisconfigurationError, match="no memory of client 3"):
        memory.load(3, Version(8, 4))


def test_a_file_that_holds_code_is_not_run(tmp_path):
    class Code:
        def __reduce__(self):
            return (pytest.fail, ("unpickled",))

    memory = NodeMemory(tmp_path)
    memory.save(0, Version(0, 0), {})
    (file,) = tmp_path.rglob("*.pt")
    torch.save(Code(), file)
    with pytest.raises(Exception, match=r"[Ww]eights"):
        memory.load(0, Version(0, 0))
