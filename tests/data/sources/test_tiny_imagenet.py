import pytest

from fl_lightning.data import TinyImageNet
from tests.data.files import message_of, set_up, write_tiny_imagenet


def test_tiny_imagenet_is_read_in_its_published_layout(tmp_path):
    write_tiny_imagenet(tmp_path)
    source = set_up(TinyImageNet(tmp_path))
    assert source.classes == ["n01443537", "n01629819", "n01641577"]
    assert source.parts.train.tensors[0].shape == (9, 3, 64, 64)
    assert source.parts.train.tensors[1].tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    images, labels = source.parts.test.tensors
    assert labels.tolist() == [0, 1, 2]
    assert (images.float().mean(dim=(1, 2, 3)) - 100).round().tolist() == [0, 1, 2]


@pytest.mark.parametrize("line", ["val_9.JPEG\tn01443537\t0\t0\t1\t1", "val_0.JPEG\tn99999999\t0", "nonsense"])
def test_a_wrong_line_in_the_annotations_is_named(tmp_path, line):
    write_tiny_imagenet(tmp_path)
    annotations = tmp_path / "tiny-imagenet-200" / "val" / "val_annotations.txt"
    annotations.write_text(annotations.read_text() + line + "\n")
    assert f"{annotations}, line 4" in message_of(TinyImageNet(tmp_path))
