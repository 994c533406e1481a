"""The picture of the partition in TensorBoard."""

from pytorch_lightning.loggers import TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.toys import federate


def pictures(folder) -> int:
    events = EventAccumulator(str(folder))
    events.Reload()
    return len(events.Images("partition")) if "partition" in events.Tags()["images"] else 0


def test_a_resumed_run_does_not_draw_its_picture_again(tmp_path):
    def fit(rounds: int, version: str, ckpt_path=None) -> str:
        logger = TensorBoardLogger(tmp_path, "", version)
        _, trainer = federate(rounds=rounds, logger=logger, enable_checkpointing=True, ckpt_path=ckpt_path)
        return trainer.checkpoint_callback.best_model_path

    checkpoint = fit(1, "first")
    assert pictures(tmp_path / "first") == 1
    fit(2, "resumed", checkpoint)
    assert pictures(tmp_path / "resumed") == 0
