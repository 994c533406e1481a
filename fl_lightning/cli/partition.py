"""``fl-lightning partition``: show which client owns how many samples of which class, without training."""

import shutil
from pathlib import Path

from fl_lightning.cli.options import check_output_file
from fl_lightning.data import FederatedDataModule
from fl_lightning.data.ownership.counts import Ownership
from fl_lightning.data.ownership.table import partition_table

OUTPUT_HELP = "file for a picture of the partition: .png, .pdf or .svg."


def check_partition_options(output: str | None) -> None:
    """Reject options that cannot work, before the data is read."""
    if output is not None:
        check_output_file(Path(output), (".png", ".pdf", ".svg"))


def show_partition(data: FederatedDataModule, output: str | None = None) -> None:
    """Print a table of how many samples of each class each client owns.

    Args:
        data: the federation's data. It is downloaded and set up here.
        output: the file for a picture of the partition; if None, no picture is drawn.
    """
    data.prepare_data()
    data.setup("fit")
    ownership = Ownership.of(data)
    print(partition_table(ownership, shutil.get_terminal_size((100, 24)).columns), flush=True)
    if output is not None:
        from fl_lightning.data.ownership.picture import partition_figure

        partition_figure(ownership).savefig(output, dpi=150)
        print(f"Picture: {output}", flush=True)
