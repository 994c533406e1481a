"""What a federation on one machine prints."""

import io
import os
import threading

from fl_lightning.flower.local import show_lines

FLOWER = (
    b"\x1b[92mINFO \x1b[0m:      Start `flwr-serverapp` process\n"
    b"\x1b[32m\x1b[1mSuccessfully installed demo.\x1b[0m\n"
    b"\x1b[92mINFO \x1b[0m:      \n"
    b"\n"
    b"Round 1/3: 10 of 10 clients, 2.0 s\n"
    b"  val/loss: 2.0\n"
    b"\x1b[91mERROR \x1b[0m:     Exit Code: 201\n"
    b"the end"
)


def test_flowers_lines_are_shown_without_colours_and_empty_lines():
    target = io.StringIO()
    show_lines(io.BytesIO(FLOWER), target)
    assert target.getvalue().splitlines() == [
        "INFO :      Start `flwr-serverapp` process",
        "Successfully installed demo.",
        "Round 1/3: 10 of 10 clients, 2.0 s",
        "  val/loss: 2.0",
        "ERROR :     Exit Code: 201",
        "the end",
    ]


def test_a_line_is_shown_as_soon_as_it_is_complete():
    (read, flower), (shown, write) = os.pipe(), os.pipe()
    with open(read, "rb") as source, open(write, "w") as target:
        thread = threading.Thread(target=show_lines, args=(source, target), daemon=True)
        thread.start()
        os.write(flower, b"Round 1\nRou")
        assert os.read(shown, 100) == b"Round 1\n"
        os.close(flower)
        assert os.read(shown, 100) == b"Rou"
        thread.join(10)
    os.close(shown)


class Closed(io.StringIO):
    """A pipe that nobody reads any more."""

    def write(self, text: str) -> int:
        raise BrokenPipeError


def test_nothing_is_read_any_more_when_nobody_reads_what_is_shown():
    source = io.BytesIO(FLOWER)
    show_lines(source, Closed())
    assert source.closed
