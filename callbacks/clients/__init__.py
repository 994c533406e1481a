"""Callbacks that take part in local training, and the evaluation of each client's model."""
