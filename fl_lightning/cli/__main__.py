"""``python -m fl_lightning.cli`` is the ``fl-lightning`` command."""

from fl_lightning.cli.main import main

main()
