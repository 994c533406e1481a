"""Wrong and odd configs: each of them trains or ends with one line before the first round, and none runs a command."""

import gc
import logging
from collections import Counter
from inspect import isabstract, isclass, signature

import pytest

import fl_lightning.aggregation
import fl_lightning.attacks
import fl_lightning.callbacks
import fl_lightning.data
import fl_lightning.transforms
from tests.cli.mutations import KINDS, Mutation, every_mutation, spread
from tests.cli.mutations.right_configs import right_configs
from tests.cli.mutations.running import GOOD, run

#: how many mutations of each kind ``make test`` runs, fewer of those that train; ``make test-all`` runs all
_COUNTS = {"valid": 6, "structural": 42, "arguments": 50, "classes": 40, "settings": 10, "files": 28, "pairs": 32}
_PARTS = 32
#: said about a callback's metric, which may be logged as late as at the end of the first round
_MAY_TAKE_A_ROUND = ("Early stopping conditioned on metric", "could not find the monitored key")

#: a class that needs other data, and one that every run has
_NOT_MUTATED = ("ByColumn", "RoundProgressBar")
#: arguments with which a config would be another one, such as a count beside a fraction
_OPTIONAL = {"count", "fraction", "head", "one_shot", "metric", "reference"}


@pytest.fixture
def check(tmp_path):
    """Return a function that runs mutations and reports all that end badly."""

    def check(mutations: list[Mutation]) -> None:
        bad, outcomes = [], Counter()
        for number, mutation in enumerate(mutations):
            folder = tmp_path / str(number)
            folder.mkdir()
            outcome, message = run(mutation, folder)
            if number % 20 == 19:
                gc.collect()
            late = outcome == "one line after a round" and any(part in message for part in _MAY_TAKE_A_ROUND)
            if outcome not in GOOD and not late:
                bad.append(f"{outcome}: {mutation.name}: {message}")
            elif mutation.wrong is False and outcome != "trained":
                bad.append(f"wrongly refused: {mutation.name}: {message}")
            outcomes[outcome] += 1
        print(dict(outcomes))
        assert not bad, "\n".join(bad)

    logging.disable(logging.CRITICAL)
    yield check
    logging.disable(logging.NOTSET)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", KINDS)
def test_hundreds_of_mutated_configs_train_or_are_refused_in_one_line(check, kind):
    check(spread(kind, _COUNTS[kind]))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("part", range(_PARTS))
def test_thousands_of_mutated_configs_train_or_are_refused_in_one_line(check, part):
    check(every_mutation()[part::_PARTS])


def test_mutations_are_always_the_same():
    once, again = ([mutation.file() for kind in KINDS for mutation in spread(kind, 20)] for _ in range(2))
    assert once == again


@pytest.mark.parametrize(
    ("base", "package"),
    [
        (fl_lightning.aggregation.Aggregator, fl_lightning.aggregation),
        (fl_lightning.attacks.Attack, fl_lightning.attacks),
        (fl_lightning.callbacks.ClientCallback, fl_lightning.callbacks),
        (fl_lightning.callbacks.RoundCallback, fl_lightning.callbacks),
        (fl_lightning.data.Partition, fl_lightning.data),
        (fl_lightning.data.Selection, fl_lightning.data),
        (fl_lightning.transforms.UploadTransform, fl_lightning.transforms),
    ],
)
def test_every_class_of_the_package_is_mutated_with_all_its_arguments(base, package):
    mutated = {right.label.split(" ")[-1]: set(right.arguments) for right in right_configs()}
    exported = {name: getattr(package, name) for name in package.__all__}
    concrete = {name: value for name, value in exported.items() if isclass(value) and issubclass(value, base)}
    for name, value in concrete.items():
        if not isabstract(value) and value is not base and name not in _NOT_MUTATED:
            assert mutated[name] >= set(signature(value).parameters) - _OPTIONAL, name
