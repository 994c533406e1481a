import re
from html.parser import HTMLParser

import numpy as np
import pytest

from fl_lightning.reporting.curves import Curve
from fl_lightning.reporting.figures import PALETTE, Stroke, figure
from fl_lightning.reporting.page import write_page
from fl_lightning.reporting.sections import Sections
from fl_lightning.reporting.table import summarise
from tests.reporting.fakes import config, write_run

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


def curve(tmp_path, name, setting="", rounds=2, seeds=(1,), **logged):
    runs = [
        write_run(
            tmp_path / name / (setting or "-") / f"seed_{seed}",
            [0.5, 0.6],
            settings=config(seed, rounds, aggregator=name),
            **logged,
        )
        for seed in seeds
    ]
    return Curve(name, setting, tuple(runs))


@pytest.fixture
def undrawn(monkeypatch):
    """Figures are their titles."""
    monkeypatch.setattr("fl_lightning.reporting.sections.figure", lambda title, *_: title)


def titles(curves, metrics=("val/accuracy",)):
    return [section.title for section in Sections(curves, metrics, [0.55]).all()]


def page(tmp_path, curves, notes=()):
    lines = [summarise(one.name, one.setting, one.runs, len(one.runs), ["val/accuracy"], [0.55]) for one in curves]
    write_page(tmp_path / "out" / "report.html", "A <title>", curves, lines, ["val/accuracy"], [0.55], notes)
    return (tmp_path / "out" / "report.html").read_text()


class _Balanced(HTMLParser):
    VOID = ("meta", "img")

    def __init__(self):
        super().__init__()
        self.open = []
        self.links = []

    def handle_starttag(self, tag, attributes):
        self.links += [value for name, value in attributes if name in ("src", "href", "xlink:href")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.links += [value for name, value in attributes if name in ("src", "href", "xlink:href")]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_everything_that_was_logged_has_a_section(tmp_path, undrawn):
    curves = [curve(tmp_path, "FedAvg", **LOGGED), curve(tmp_path, "FedNNNN", **LOGGED)]
    assert titles(curves) == [
        "Over the rounds",
        "Difference to the baseline",
        "Norms of the updates",
        "How far the server moved",
        "Angles of the clients",
        "Smoothed angles of the clients",
        "Loss and divergence",
        "Evaluated client by client",
    ]


def test_what_was_not_logged_is_left_out(tmp_path, undrawn):
    assert titles([curve(tmp_path, "FedAvg")]) == ["Over the rounds"]


def test_every_setting_has_a_figure_of_its_own(tmp_path, undrawn):
    curves = [curve(tmp_path, name, setting) for setting in ("IID", "two") for name in ("FedAvg", "FedNNNN")]
    first, second = Sections(curves, ["val/accuracy"], []).all()
    assert len(first.figures) == len(second.figures) == 2
    assert [name for _, name in first.legend] == ["FedAvg", "FedNNNN"]
    assert [name for _, name in second.legend] == ["FedNNNN"]


def test_single_layers_are_folded_away(tmp_path, undrawn):
    norms = Sections([curve(tmp_path, "FedAvg", **LOGGED)], ["val/accuracy"], []).all()[1]
    assert norms.figures == ["N and E, whole model", "N / E, whole model"]
    assert norms.folded == ["N and E, net.0"]


def test_angles_of_many_clients_are_drawn_as_quantiles(tmp_path, undrawn):
    quantiles = {f"angles__quantile_{share}": [0.1, 0.2] for share in (10, 50, 90)}
    (section,) = Sections([curve(tmp_path, "FedAvg", **quantiles)], ["val/accuracy"], []).all()[1:]
    assert "quantiles" in section.note
    assert section.legend == []


def test_a_run_of_a_single_round_is_drawn_as_points():
    svg = figure("one", "value", [Stroke(np.array([1]), np.array([0.5]), 0)])
    assert "<use" in svg


def test_a_figure_takes_its_colours_from_the_page():
    x = np.arange(3)
    svg = figure("t", "y", [Stroke(x, x + 1.0, number, width=np.ones(3)) for number in range(9)], scale="log")
    used = set(re.findall(r"var\(--(\w+)\)", svg))
    assert used == {*(f"c{number}" for number in range(len(PALETTE["light"]))), "ink", "faint"}
    assert not re.search(r"#0[13]0[0-9a-f]{3}", svg)


def test_gaps_and_zeros_are_no_obstacle_to_a_figure():
    values = np.array([0.0, np.nan, 2.0])
    assert "<svg" in figure("t", "y", [Stroke(np.arange(3), values, 0, width=values)], scale="log")


def test_the_page_is_well_formed_and_needs_nothing_else(tmp_path):
    parser = _Balanced()
    text = page(tmp_path, [curve(tmp_path, "FedAvg", seeds=(1, 2), train__loss=[2.0, 1.0])])
    parser.feed(text)
    assert parser.open == []
    assert all(link.startswith(("#", "data:")) for link in parser.links)
    assert not re.search(r"<script|@import|url\((?!#)", text)


def test_identifiers_are_unique(tmp_path):
    names = re.findall(r' id="([^"]+)"', page(tmp_path, [curve(tmp_path, name) for name in ("FedAvg", "FedNNNN")]))
    assert len(names) == len(set(names))


def test_the_page_has_the_table_the_differences_and_the_configs(tmp_path, undrawn):
    text = page(tmp_path, [curve(tmp_path, "FedAvg"), curve(tmp_path, "FedNNNN")])
    assert "<th>rounds to 55 %</th>" in text
    assert "<tr><td>server.aggregator.class_path</td><td>FedAvg</td><td>FedNNNN</td></tr>" in text
    assert "class_path: fl_lightning.aggregation.FedNNNN" in text


def test_unfinished_runs_are_marked(tmp_path, undrawn):
    text = page(tmp_path, [curve(tmp_path, "FedAvg", rounds=30)])
    assert "FedAvg, seed 1 is unfinished: 2 of 30 rounds." in text


def test_notes_are_shown(tmp_path, undrawn):
    assert "left out: that one" in page(tmp_path, [curve(tmp_path, "FedAvg")], notes=["left out: that one"])


def test_names_are_escaped(tmp_path, undrawn):
    assert "<title>A &lt;title&gt;</title>" in page(tmp_path, [curve(tmp_path, "FedAvg")])


@pytest.mark.parametrize("same", [True, False])
def test_the_picture_of_a_partition_is_shown_once_for_all_that_have_it(tmp_path, undrawn, same):
    from dataclasses import replace

    curves = []
    for name in ("FedAvg", "FedNNNN"):
        made = curve(tmp_path, name)
        picture = b"png" if same else name.encode()
        curves.append(Curve(name, "", (replace(made.runs[0], picture=picture),)))
    text = page(tmp_path, curves)
    assert text.count("data:image/png;base64,") == (1 if same else 2)
    assert ("all runs</figcaption>" in text) is same
