import pytest

from tests.other_lightning.process import stop_server
from tests.turns import turn


@pytest.fixture(scope="package", autouse=True)
def _server(tmp_path_factory):
    with turn(tmp_path_factory):
        yield
        stop_server()
