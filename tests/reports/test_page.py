import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from fl_lightning.experiments.results import summarise
from fl_lightning.reports.curves import Curve
from fl_lightning.reports.page import write_page
from tests.reports.fakes import curve


def page(tmp_path, curves, notes=()):
    results = [summarise(one.name, one.setting, one.runs, len(one.runs), ["val/accuracy"], [0.55]) for one in curves]
    write_page(tmp_path / "out" / "report.html", "A <title>", curves, results, ["val/accuracy"], [0.55], notes)
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


def test_the_page_is_well_formed_and_self_contained(tmp_path):
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
def test_the_picture_of_a_partition_is_shown_once_for_all_runs_that_share_it(tmp_path, undrawn, same):
    curves = []
    for name in ("FedAvg", "FedNNNN"):
        made = curve(tmp_path, name)
        picture = b"png" if same else name.encode()
        curves.append(Curve(name, "", (replace(made.runs[0], picture=picture),)))
    text = page(tmp_path, curves)
    assert text.count("data:image/png;base64,") == (1 if same else 2)
    assert ("all runs</figcaption>" in text) is same
