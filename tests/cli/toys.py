from tests.toys import Net


class Unaffordable(Net):
    """A model that must not be created, for commands that need no model."""

    def __init__(self) -> None:
        raise AssertionError("the model was made")
