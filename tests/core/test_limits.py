import pytest
from hypothesis import given
from hypothesis import strategies as st

from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.core.limits import check_number


@pytest.mark.parametrize(
    ("value", "limits", "message"),
    [
        (0, {"at_least": 1}, "n=0: set it to 1 or more"),
        (0, {"above": 0}, "n=0: set it above 0"),
        (1e-320, {"above": 0}, "n=1e-320: set it above 0"),
        (2, {"at_most": 1}, "n=2: set it to 1 or less"),
        (1, {"below": 1}, "n=1: set it below 1"),
        (0.0, {"above": 0, "at_most": 1}, "n=0.0: set it in (0, 1]"),
        (1, {"at_least": 0, "below": 1}, "n=1: set it in [0, 1)"),
        (0, {"at_least": 1, "reason": "a client must train"}, "n=0, but a client must train: set it to 1 or more"),
        (0, {"at_least": 1, "setting": "client.epochs"}, "n=0: set client.epochs to 1 or more"),
        (float("nan"), {}, "n=nan is not a finite number: set it to a finite number"),
        (float("inf"), {"at_least": 0}, "n=inf is not a finite number: set it to 0 or more"),
        (10**30, {"at_least": 1}, f"n={10**30} is too large: set it to 1 or more"),
        (None, {"at_least": 1}, "n=None is not a number: set it to 1 or more"),
        ("3", {"above": 0}, "n='3' is not a number: set it above 0"),
    ],
)
def test_a_number_outside_its_limits_is_refused_with_the_limit(value, limits, message):
    with pytest.raises(MisconfigurationError) as refusal:
        check_number("n", value, **limits)
    assert str(refusal.value) == message


@given(st.integers(1, 2**63 - 1) | st.floats(1, allow_infinity=False, allow_nan=False))
def test_every_finite_number_within_its_limits_is_accepted(value):
    check_number("n", value, at_least=1, above=0.5)


@given(st.sampled_from([float("nan"), float("inf"), -float("inf")]), st.none() | st.floats(allow_nan=False))
def test_no_limit_accepts_what_is_not_finite(value, limit):
    for name in ("at_least", "above", "at_most", "below"):
        with pytest.raises(MisconfigurationError, match="is not a finite number"):
            check_number("n", value, **{name: limit})
