"""The commands of ``fl-lightning``, in the order of its help. This file imports nothing, so that the help is fast."""

#: every command, and what it does
COMMANDS = {
    "fit": "Train a federation.",
    "validate": "Evaluate a checkpoint on the validation data.",
    "test": "Evaluate a checkpoint on the test data.",
    "predict": "Write the predictions of a checkpoint to a file.",
    "partition": "Show which client owns how many samples of which class.",
    "compare": "Run a suite over several seeds and print a table of the results.",
    "report": "Write a page of figures and tables about runs.",
    "flower": "Run the federation on several machines, through Flower.",
}

#: how to continue a run that was stopped from outside
RESUME = "Finished rounds are saved: add --ckpt_path last to the same command to continue."

#: commands that do not need LightningCLI: each runs the function ``main`` of a module
STANDALONE_COMMANDS = {
    "compare": "fl_lightning.cli.compare",
    "report": "fl_lightning.cli.report",
    "flower": "fl_lightning.flower.command",
}
