"""Wrong and odd configs: each of them trains or ends with one line before the first round, and none runs a command."""

import gc
import logging
from collections import Counter
from pathlib import Path

import pytest

from tests.cli.mutations import GOOD, Mutation, every_mutation, one_parser, run

#: every n-th mutation is tried by ``make test``, all of them by ``make test-all``
_EVERY = 144
_PARTS = 8
#: said about a callback's metric, which may be logged as late as at the end of the first round
_MAY_TAKE_A_ROUND = ("Early stopping conditioned on metric", "could not find the monitored key")


@pytest.fixture(autouse=True)
def _quiet():
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def check(mutations: list[Mutation], folder: Path) -> None:
    """Run the mutations and report all that end badly."""
    bad, outcomes = [], Counter()
    with one_parser():
        for number, mutation in enumerate(mutations):
            own = folder / str(number)
            own.mkdir()
            outcome, message = run(mutation, own)
            gc.collect()
            late = outcome == "one line after a round" and any(part in message for part in _MAY_TAKE_A_ROUND)
            if outcome not in GOOD and not late:
                bad.append(f"{outcome}: {mutation.name}: {message}")
            elif mutation.wrong is False and outcome != "trained":
                bad.append(f"wrongly refused: {mutation.name}: {message}")
            outcomes[outcome] += 1
    print(dict(outcomes))
    assert not bad, "\n".join(bad)


@pytest.mark.spread(2)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("part", range(_PARTS))
def test_a_mutated_config_trains_or_is_refused_in_one_line(tmp_path, part):
    check(every_mutation()[::_EVERY][part::_PARTS], tmp_path)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("part", range(4 * _PARTS))
def test_thousands_of_mutated_configs_train_or_are_refused_in_one_line(tmp_path, part):
    check(every_mutation()[part :: 4 * _PARTS], tmp_path)


@pytest.mark.slow
def test_mutations_are_always_the_same_and_have_names_of_their_own():
    once, again = every_mutation(100), every_mutation(100)
    assert once == again
    assert len({mutation.name for mutation in once}) > 0.9 * len(once) > 3000
