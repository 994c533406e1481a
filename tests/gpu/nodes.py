"""A federation whose server is on the CPU and whose only node is on the emulated GPU."""

import tempfile
from pathlib import Path
from typing import Any

from torch import Tensor

from fl_lightning import FederatedDataModule, FederatedModule
from fl_lightning.flower.memory import NodeMemory
from fl_lightning.flower.node import Answer, Node
from tests.flower.loopback import Federation
from tests.flower.test_equality import PARTITION, case, simulated
from tests.gpu.cases import differences, emulated, on_cpu
from tests.toys import Blobs, quiet_trainer


def node(name: str) -> dict[str, Any]:
    """Return how a federation with a node on the emulated GPU differs from a simulation on the CPU.

    The server runs while the node waits for requests, because the emulation works in a single thread.
    """
    expected, _ = simulated(name)
    make_module, make_server, selection = case(name)
    folder = Path(tempfile.mkdtemp())
    server = make_server()
    ended: dict[str, Tensor] = {}

    def serve(answer: Answer) -> None:
        with Federation(make_module, make_server, PARTITION, folder, nodes=0) as federation:
            federation.post.answers[0] = answer
            ended.update(federation.run(selection=selection)[0])

    clients = range(PARTITION.num_clients)
    served = Node(server, lambda _: clients, {"client.epochs": 1}, NodeMemory(folder), serve)
    with emulated():
        trainer = quiet_trainer(accelerator="gpu", devices=1, max_epochs=1, limit_val_batches=0, callbacks=[served])
        trainer.fit(FederatedModule(make_module()), FederatedDataModule(Blobs(), partition=PARTITION))
        device = str(trainer.strategy.root_device)
        state = on_cpu(ended)
    return {"weights": differences(on_cpu(expected), state), "node": device}
