"""Callbacks about the run itself: progress, checkpoints, what TensorBoard and the terminal show."""
