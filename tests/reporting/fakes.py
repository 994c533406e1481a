"""Folders as runs leave them, without training anything."""

import json
from pathlib import Path

import yaml

from fl_lightning.reporting.runs import Run, read_run
from tests.reporting.records import write_events


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
    """A run that logged the metric and, by keyword, whatever else (``train__loss`` for ``train/loss``)."""
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
