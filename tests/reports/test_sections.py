from dataclasses import replace

from fl_lightning.core.layers import LAYER_KINDS
from fl_lightning.reports.curves import Curve
from fl_lightning.reports.sections import Sections
from tests.reports.fakes import curve

LOGGED = {
    "train__loss": [2.0, 1.0],
    "norms__all__N": [0.2, 0.1],
    "norms__all__E": [1.0, 0.9],
    "norms__all__N_over_E": [0.2, 0.11],
    "norms__all__move": [0.3, 0.2],
    "norms__all__integral": [0.3, 0.5],
    "norms__net.0__N": [0.1, 0.1],
    "norms__net.0__E": [0.2, 0.2],
    "angles__client_000": [0.5, 0.6],
    "angles__client_007": [0.8, 0.9],
    "angles_smoothed__client_007": [0.8, 0.85],
    "divergence__gradient": [0.4, 0.3],
    "clients__val_accuracy_worst": [0.1, 0.2],
}


def titles(curves, metrics=("val/accuracy",)):
    return [section.title for section in Sections(curves, metrics, [0.55]).all()]


def test_everything_that_was_logged_has_a_section(tmp_path, undrawn):
    curves = [curve(tmp_path, "FedAvg", **LOGGED), curve(tmp_path, "FedNNNN", **LOGGED)]
    assert titles(curves) == [
        "Metrics over the rounds",
        "Difference from the baseline",
        "Norms of the updates",
        "How far the global model moved",
        "Angles of the clients",
        "Smoothed angles of the clients",
        "Loss and divergence",
        "Evaluation per client",
    ]


def test_what_was_not_logged_is_left_out(tmp_path, undrawn):
    assert titles([curve(tmp_path, "FedAvg")]) == ["Metrics over the rounds"]


def test_every_setting_has_its_own_figure(tmp_path, undrawn):
    curves = [curve(tmp_path, name, setting) for setting in ("IID", "two") for name in ("FedAvg", "FedNNNN")]
    first, second = Sections(curves, ["val/accuracy"], []).all()
    assert len(first.figures) == len(second.figures) == 2
    assert [name for _, name in first.legend] == ["FedAvg", "FedNNNN"]
    assert [name for _, name in second.legend] == ["FedNNNN"]


def test_single_layers_are_folded_away(tmp_path, undrawn):
    norms = Sections([curve(tmp_path, "FedAvg", **LOGGED)], ["val/accuracy"], []).all()[1]
    assert norms.figures == ["N and E, whole model", "N / E, whole model"]
    assert norms.folded == ["N and E, net.0"]


def test_every_kind_of_layer_has_a_figure_that_is_not_folded(tmp_path, undrawn):
    logged = {f"norms__{kind}__{quantity}": [0.2, 0.1] for kind in LAYER_KINDS for quantity in "NE"}
    norms = Sections([curve(tmp_path, "FedAvg", **logged)], ["val/accuracy"], []).all()[1]
    assert len(norms.figures) == len(LAYER_KINDS)
    assert norms.folded == []


def test_angles_of_many_clients_are_drawn_as_quantiles(tmp_path, undrawn):
    quantiles = {f"angles__quantile_{share}": [0.1, 0.2] for share in (10, 50, 90)}
    (section,) = Sections([curve(tmp_path, "FedAvg", **quantiles)], ["val/accuracy"], []).all()[1:]
    assert "quantiles" in section.note
    assert section.legend == []


def test_a_validation_loss_is_drawn_whatever_its_name(tmp_path, undrawn):
    made = curve(tmp_path, "FedAvg", nll__loss=[2.0, 1.0], fedfoo__loss=[3.0, 2.0])
    logged = Curve("FedAvg", "", tuple(replace(run, evaluated=("val/accuracy", "nll/loss")) for run in made.runs))
    (section,) = Sections([logged], ["val/accuracy"], []).all()[1:]
    assert section.figures == ["nll/loss"]


def test_every_metric_is_compared_with_the_named_baseline(tmp_path, undrawn):
    curves = [curve(tmp_path, name, val__loss=[2.0, 1.0]) for name in ("FedAvg", "FedNNNN")]
    difference = Sections(curves, ["val/accuracy", "val/loss"], [], baseline="FedNNNN").all()[1]
    assert difference.figures == ["val/accuracy minus FedNNNN", "val/loss minus FedNNNN"]
    assert difference.note == (
        "Above zero (val/accuracy) or below zero (val/loss), a method is better than FedNNNN in that round."
    )


def test_a_divergence_is_not_drawn_in_per_cent(tmp_path, monkeypatch):
    percent = {}
    monkeypatch.setattr(
        "fl_lightning.reports.sections.figure", lambda title, *rest: percent.setdefault(title, rest[4]) and title
    )
    made = curve(tmp_path, "FedAvg", divergence__statistics=[0.06, 0.05])
    Sections([made], ["val/accuracy", "divergence/statistics"], []).all()
    assert percent == {"val/accuracy": True, "divergence/statistics": False}
