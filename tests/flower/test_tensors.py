import io

import pytest
import torch

from fl_lightning.flower.packet import Packet, read_packet, write_packet
from fl_lightning.flower.tensors import WireError, decode, encode, same_bits
from tests.flower.loopback import through_bytes

CPU = torch.device("cpu")
TENSORS = {
    "weight": torch.randn(3, 2),
    "half": torch.randn(5).to(torch.bfloat16),
    "flag": torch.tensor(True),
    "count": torch.tensor(7),
    "empty": torch.empty(0, 4),
    "special": torch.tensor([float("nan"), float("inf"), -0.0]),
    "transposed": torch.arange(6).view(2, 3).T,
    "complex": torch.tensor([1 + 2j]),
}


def test_tensors_of_every_kind_arrive_bit_for_bit():
    arrived = decode(through_bytes(encode({"number": 1}, {"group": TENSORS, "none": {}})), CPU)
    assert list(arrived) == ["group"]
    assert list(arrived["group"]) == list(TENSORS)
    assert all(same_bits(arrived["group"][name], value) for name, value in TENSORS.items())


def test_bits_are_compared_unlike_values():
    assert not same_bits(torch.tensor(0.0), torch.tensor(-0.0))
    assert same_bits(torch.tensor(float("nan")), torch.tensor(float("nan")))
    assert not same_bits(torch.tensor(1.0), torch.tensor(1))
    assert not same_bits(torch.tensor(1.0), None)


@pytest.mark.parametrize(
    ("layout", "data", "reason"),
    [
        ([["x", "float32", [2]]], b"1234", "too few bytes for x"),
        ([["x", "float32", [1]]], b"12345678", "8 bytes, but its tensors take 4"),
        ([["x", "float32", [1]], ["x", "float32", [1]]], b"12345678", "twice"),
        ([["x", "object", [1]]], b"1234", "not a name, a type and a shape"),
        ([["x", "Tensor", [1]]], b"1234", "not a name, a type and a shape"),
        ([["x", "float32", [-1]]], b"1234", "not a name, a type and a shape"),
        ([["x", "float32", [1.0]]], b"1234", "not a name, a type and a shape"),
        ([[1, "float32", [1]]], b"1234", "not a name, a type and a shape"),
        ("x", b"1234", "not a name, a type and a shape"),
        ([["x", "float32", [10**9, 10**9]]], b"1234", "too few bytes"),
    ],
)
def test_bytes_that_do_not_match_their_description_are_refused(layout, data, reason):
    with pytest.raises(WireError, match=reason):
        decode(Packet({"layouts": {"group": layout}}, {"group": data}), CPU)


def test_groups_without_a_description_are_refused():
    with pytest.raises(WireError, match="do not match their description"):
        decode(Packet({}, {"group": b""}), CPU)


def test_a_stream_that_ends_early_gives_no_packet():
    stream = io.BytesIO()
    write_packet(stream, Packet({"a": 1}, {"group": b"12345678"}))
    data = stream.getvalue()
    for size in (0, 4, 12, len(data) - 1):
        assert read_packet(io.BytesIO(data[:size])) is None
    assert read_packet(io.BytesIO(b"GET / HTTP/1.1\r\n\r\n")) is None
