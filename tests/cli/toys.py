from tests.toys import Net


class Unaffordable(Net):
    """A model for commands that need none."""

    def __init__(self) -> None:
        raise AssertionError("the model was made")
