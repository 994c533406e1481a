import torch

from fl_lightning.client.vectorized.recording import record


def operations(recording) -> list[str]:
    return [str(node.target) for node in recording.graph.nodes if node.op == "call_function"]


def test_an_operation_that_repeats_an_earlier_one_is_left_out():
    def function(x):
        return (x * 2).exp() + (x * 2).sin() * (x * 3)

    recording = record(function, torch.rand(3))
    assert operations(recording).count("aten.mul.Tensor") == 3  # x * 2, x * 3 and their product
    x = torch.rand(3)
    assert torch.equal(recording(x), function(x))


def test_reshaping_that_changes_no_shape_is_left_out():
    def function(x):
        return x.view(2, 3).expand(2, 3).view(3, 2).exp()

    recording = record(function, torch.rand(2, 3))
    assert operations(recording) == ["aten.view.default", "aten.exp.default"]
    x = torch.rand(2, 3)
    assert torch.equal(recording(x), function(x))


def test_equal_operations_before_and_after_a_change_in_place_both_stay():
    def function(x):
        before = x * 2
        x.add_(1)
        return before + x * 2

    recording = record(function, torch.rand(3))
    x = torch.rand(3)
    assert torch.equal(recording(x.clone()), function(x.clone()))
