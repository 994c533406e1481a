"""Callbacks about clients: what runs on each client beside its training, and how well each is served."""
