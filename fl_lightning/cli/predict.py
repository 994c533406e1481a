"""``fl-lightning predict``: write the predictions of the served model to a file."""

from pathlib import Path
from typing import Any

import torch

from fl_lightning._lightning.names import Trainer, is_overridden
from fl_lightning.cli.options import check_output_file
from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.data import FederatedDataModule

OUTPUT_HELP = "file for the predictions, which torch.load reads."
DEFAULT_OUTPUT = "predictions.pt"


def check_predict_options(output: str) -> None:
    """Reject options that cannot work, before the data is read."""
    check_output_file(Path(output), (".pt", ".pth"))


def write_predictions(trainer: Trainer, data: FederatedDataModule, output: str, **arguments: Any) -> None:
    """Run ``Trainer.predict`` and save the result: a list of what ``predict_step`` returned for each batch.

    Args:
        trainer: the Trainer.
        data: the data module, whose source has the data to predict.
        output: the file to write.
        arguments: the other arguments of ``Trainer.predict``.
    """
    source = type(data.source).__name__
    if not is_overridden("predict_dataloader", data.source):
        raise MisconfigurationError(
            f"{source} has no predict_dataloader: define {source}.predict_dataloader, which returns a loader over the"
            " data to predict"
        )
    if trainer.world_size > 1:
        raise MisconfigurationError(
            f"predict runs on {trainer.world_size} devices, but writes one file in the order of the data:"
            " set --trainer.devices 1 --trainer.num_nodes 1"
        )
    predictions = trainer.predict(datamodule=data, return_predictions=True, **arguments)
    torch.save(predictions, output)
    several = len(trainer.num_predict_batches) > 1
    content = "a list per loader, with one entry per batch" if several else "a list with one entry per batch"
    print(f"Predictions: {output}, {content}; torch.load reads it", flush=True)
