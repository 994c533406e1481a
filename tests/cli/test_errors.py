import pytest

from fl_lightning.cli.errors import shorten_parser_error


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("a\n  b", "a b"),
        (
            "Parser key \"client.epochs\": Expected a <class 'int'>. Got value: abc",
            "client.epochs: abc is not of type int",
        ),
        (
            'Parser key "data.partition": Does not validate against any of the Union subtypes\n'
            "Subtypes: [<class 'fl_lightning.data.partition.Partition'>, <class 'NoneType'>]\nErrors:\n"
            "  - Parser key \"classes\": Expected a <class 'int'>. Got value: two\n"
            "  - Expected a <class 'NoneType'>\nGiven value type: <class 'str'>",
            "data.partition.classes: two is not of type int",
        ),
    ],
)
def test_messages_of_the_parser_are_shortened(message, expected):
    assert shorten_parser_error(message) == expected
