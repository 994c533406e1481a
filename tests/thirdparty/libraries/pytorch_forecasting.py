"""A temporal fusion transformer, with the library's own LightningModule, data set, loader and schedule."""

import lightning as L  # noqa: N812
import numpy as np
import pandas as pd
from pytorch_forecasting import TemporalFusionTransformer, TimeSeriesDataSet
from torch.utils.data import DataLoader


def _dataset() -> TimeSeriesDataSet:
    generator = np.random.default_rng(0)
    series = [
        pd.DataFrame({"time": range(20), "series": str(number), "value": generator.normal(size=20).cumsum()})
        for number in range(4)
    ]
    return TimeSeriesDataSet(
        pd.concat(series, ignore_index=True),
        time_idx="time",
        target="value",
        group_ids=["series"],
        max_encoder_length=6,
        max_prediction_length=2,
        static_categoricals=["series"],
        time_varying_known_reals=["time"],
        time_varying_unknown_reals=["value"],
    )


def module() -> L.LightningModule:
    return TemporalFusionTransformer.from_dataset(
        _dataset(),
        hidden_size=8,
        attention_head_size=2,
        hidden_continuous_size=4,
        dropout=0.1,
        learning_rate=0.01,
    )


def loader() -> DataLoader:
    return _dataset().to_dataloader(train=True, batch_size=8, num_workers=0)
