from torch.utils.data import ConcatDataset, Subset

from fl_lightning.data.labels import labels_of
from tests.data.datasets import Pairs


def test_labels_are_found_wherever_data_sets_keep_them():
    with_targets = Pairs(4)
    with_targets.targets = [2, 1, 0, 1]
    assert labels_of(with_targets).tolist() == [2, 1, 0, 1]
    assert labels_of(Subset(with_targets, [3, 0])).tolist() == [1, 2]
    assert labels_of(Pairs(5)).tolist() == [0, 1, 2, 0, 1]
    assert labels_of(ConcatDataset([Pairs(2), with_targets])).tolist() == [0, 1, 2, 1, 0, 1]
