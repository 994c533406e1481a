"""The only folder that uses private names of Lightning. Each name has a test in ``tests/lightning_contract``."""
