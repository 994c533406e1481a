"""Compare a federated round with a tight, plain PyTorch loop: same data, clients and batches, interleaved in one run.

    python benchmarks/overhead.py [--repeats 10] [--epochs 1]

Both train 10 clients on 600 MNIST-sized images each, in batches of 50, and average them. Evaluation is not timed. The
plain loop is what you would write by hand for this one case: one model, in-place loads, indexed tensors, SGD.

benchmarks/simulators also times evaluation, start-up and memory, and compares with other simulators.
"""

import argparse
import logging
import statistics
import time
import warnings

import torch
from pytorch_lightning import Trainer, seed_everything
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from fl_lightning import FederatedDataModule, FederatedModule, LocalTraining
from fl_lightning.callbacks import FederatedServer
from fl_lightning.models import Classifier, FullyConnected, MnistCNN

CLIENTS, SAMPLES, BATCH = 10, 600, 50


def client_data() -> list[TensorDataset]:
    images = torch.randn(CLIENTS, SAMPLES, 1, 28, 28)
    labels = torch.randint(10, (CLIENTS, SAMPLES))
    return [TensorDataset(x, y) for x, y in zip(images, labels, strict=True)]


def plain_round(model: nn.Module, data: FederatedDataModule, round_number: int, epochs: int) -> None:
    start = {name: value.clone() for name, value in model.state_dict().items()}
    total = {name: torch.zeros_like(value) for name, value in start.items()}
    images, labels = data.data.tensors
    for client in range(CLIENTS):
        model.load_state_dict(start)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        batches = data.client_loader(client, round_number, BATCH).batch_sampler
        for epoch in range(epochs):
            batches.set_epoch(epoch)
            for batch in batches.arrays():
                index = torch.from_numpy(batch)
                loss = functional.cross_entropy(model(images[index]), labels[index])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        for name, value in model.state_dict().items():
            total[name] += value / CLIENTS
    model.load_state_dict(total)


class Timer:
    """Runs a plain round before or after each federated one, in turns, so that both see the same load."""

    def __init__(self, net: nn.Module, epochs: int) -> None:
        self.net, self.epochs = net, epochs
        self.plain: list[float] = []
        self.federated: list[float] = []

    def wrap(self, module: FederatedModule, data: FederatedDataModule) -> None:
        federated_step = module.training_step

        def plain() -> None:
            plain_round(self.net, data, module.current_epoch, self.epochs)

        def training_step(clients: list[int], batch_idx: int) -> None:
            both = [(self.plain, plain), (self.federated, lambda: federated_step(clients, batch_idx))]
            for times, run in both if module.current_epoch % 2 else reversed(both):
                begin = time.perf_counter()
                run()
                times.append(time.perf_counter() - begin)

        module.training_step = training_step  # type: ignore[method-assign]


def measure(name: str, make_net: type[nn.Module], repeats: int, epochs: int) -> None:
    seed_everything(0, verbose=False)
    net = make_net()
    module = FederatedModule(Classifier(make_net()))
    module.module.net.load_state_dict(net.state_dict())
    data = FederatedDataModule(client_data())
    timer = Timer(net, epochs)
    timer.wrap(module, data)
    server = FederatedServer(client=LocalTraining(epochs=epochs, batch_size=BATCH))
    trainer = Trainer(
        max_epochs=repeats + 1,
        callbacks=[server],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        accelerator="cpu",
    )
    trainer.fit(module, data)
    difference = max(
        (a - b).abs().max().item() for a, b in zip(net.parameters(), module.module.net.parameters(), strict=True)
    )
    plain, federated = timer.plain[1:], timer.federated[1:]  # the first round is a warm-up
    ratio = statistics.median(f / p for f, p in zip(federated, plain, strict=True))
    print(
        f"{name:20} E={epochs}  plain {1e3 * statistics.median(plain):8.1f} ms   "
        f"fl_lightning {1e3 * statistics.median(federated):8.1f} ms   ratio {ratio:.2f}   "
        f"(largest difference between the two models: {difference:.1e})"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=10, help="timed rounds")
    parser.add_argument("--epochs", type=int, default=1, help="local epochs")
    arguments = parser.parse_args()
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")
    machine = f"torch {torch.__version__}, {torch.get_num_threads()} threads"
    print(f"{CLIENTS} clients x {SAMPLES} images, batches of {BATCH}; {machine}")
    for name, net in (("MNIST CNN (FedNNNN)", MnistCNN), ("MLP 784-200-10", FullyConnected)):
        measure(name, net, arguments.repeats, arguments.epochs)


if __name__ == "__main__":
    main()
