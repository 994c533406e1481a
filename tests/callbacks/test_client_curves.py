"""Curves of one value per client, for few and for many clients."""

import pytest

from fl_lightning.callbacks.diagnostics.client_curves import client_curves


def test_many_clients_get_quantiles_and_the_worst_three():
    values = {client: float(client) for client in range(101)}
    assert {tag: float(value) for tag, value in client_curves("angles/", values, each=False).items()} == pytest.approx(
        {
            "angles/quantile_10": 10,
            "angles/quantile_50": 50,
            "angles/quantile_90": 90,
            "angles/worst_1": 100,
            "angles/worst_2": 99,
            "angles/worst_3": 98,
        }
    )


def test_few_clients_get_one_curve_each():
    curves = client_curves("feddna/gamma_", {7: 0.5, 12: 0.25}, each=True)
    assert {tag: float(value) for tag, value in curves.items()} == {
        "feddna/gamma_client_007": 0.5,
        "feddna/gamma_client_012": 0.25,
    }
