"""Callbacks for the run itself: progress, checkpoints, TensorBoard and terminal output."""
