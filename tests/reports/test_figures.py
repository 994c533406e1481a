import re

import numpy as np

from fl_lightning.reports.figures import PALETTE, Stroke, figure


def test_a_single_round_is_drawn_as_a_point():
    svg = figure("one", "value", [Stroke(np.array([1]), np.array([0.5]), 0)])
    assert "<use" in svg


def test_a_figure_takes_its_colours_from_the_page():
    x = np.arange(3)
    svg = figure("t", "y", [Stroke(x, x + 1.0, number, width=np.ones(3)) for number in range(9)], scale="log")
    used = set(re.findall(r"var\(--(\w+)\)", svg))
    assert used == {*(f"c{number}" for number in range(len(PALETTE["light"]))), "ink", "faint"}
    assert not re.search(r"#0[13]0[0-9a-f]{3}", svg)


def test_a_figure_can_have_gaps_and_zeros():
    values = np.array([0.0, np.nan, 2.0])
    assert "<svg" in figure("t", "y", [Stroke(np.arange(3), values, 0, width=values)], scale="log")
