import gc

import pytest


@pytest.fixture(scope="module", autouse=True)
def _free_networks():
    """Free the networks of a file's tests: exceptions keep some in reference cycles."""
    yield
    gc.collect()
