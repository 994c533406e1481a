"""Runs and their folders, without training."""

import json
from pathlib import Path

import numpy as np
import yaml
from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.summary import hparams

from fl_lightning.experiments.results import CellResult, summarise
from fl_lightning.experiments.runs import Run, Series, read_run
from tests.experiments.records import write_events


def config(seed: int = 1, rounds: int = 3, aggregator: str = "FedAvg", **client: object) -> dict:
    return {
        "seed_everything": seed,
        "trainer": {"max_epochs": rounds, "logger": {"init_args": {"save_dir": f"somewhere/{seed}"}}},
        "data": {"source": {"class_path": "fl_lightning.data.Digits"}, "seed": None},
        "client": {"epochs": 5, **client},
        "server": {"aggregator": {"class_path": f"fl_lightning.aggregation.{aggregator}"}},
        "ckpt_path": None,
    }


def write_run(
    folder: Path,
    values: list[float],
    metric: str = "val/accuracy",
    settings: dict | None = None,
    record: dict | None = None,
    **more: list[float],
) -> Run:
    """Write a run that logged the metric and, by keyword, other tags (``train__loss`` for ``train/loss``)."""
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(settings or config(rounds=len(values))))
    if record is not None:
        (folder / "compare.json").write_text(json.dumps(record))
    tags = {tag.replace("__", "/"): list(numbers) for tag, numbers in more.items()}
    count = len(values)
    sent = [1e6 * (index + 1) for index in range(count)]
    write_events(
        folder,
        {
            metric: values,
            "round/clients": [10.0] * count,
            "bytes/up_total": sent,
            "bytes/down_total": [2 * number for number in sent],
            **tags,
        },
    )
    return read_run(folder)


def list_metrics(folder: Path, metrics: list[str]) -> None:
    """Add the list of metrics to a run that the callback HyperParameters writes for TensorBoard."""
    with SummaryWriter(folder) as writer:
        experiment, *_ = hparams({"aggregator": "FedFoo()"}, dict.fromkeys(metrics))
        writer.file_writer.add_summary(experiment)


def run(values, metric="val/accuracy", finished=True, seconds=60.0, **more) -> Run:
    """Return a run in memory that logged the metric and, by keyword, other tags."""
    scalars = {metric: values, "bytes/up_total": [1e6], "bytes/down_total": [2e6], **more}
    series = {tag: Series(np.arange(1, len(each) + 1), np.array(each, dtype=float)) for tag, each in scalars.items()}
    return Run(Path("folder"), {}, series, seconds, record={"finished": finished})


def result(
    *runs, targets=(), metrics=("val/accuracy",), published=None, name="FedAvg", column="", skip=None, x=None
) -> CellResult:
    return summarise(name, column, runs, len(runs), metrics, targets, published, skip, x)
