"""Curves of runs on disk, without training."""

from fl_lightning.reports.curves import Curve
from tests.experiments.fakes import config, write_run


def curve(tmp_path, name, setting="", rounds=2, seeds=(1,), **logged) -> Curve:
    runs = [
        write_run(
            tmp_path / name / (setting or "-") / f"seed_{seed}",
            [0.5, 0.6],
            settings=config(seed, rounds, aggregator=name),
            **logged,
        )
        for seed in seeds
    ]
    return Curve(name, setting, tuple(runs))
