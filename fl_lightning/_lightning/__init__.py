"""The only place that uses private names of Lightning. Each has a test in ``tests/test_lightning_contract.py``."""
