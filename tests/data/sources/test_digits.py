import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from fl_lightning.data import Digits
from tests.data.files import set_up


def test_the_digits_are_normalised_by_their_training_part():
    digits = set_up(Digits())
    images, labels = load_digits(return_X_y=True)
    train_x, test_x, train_y, test_y = train_test_split(images, labels, test_size=0.2, random_state=0, stratify=labels)
    mean, std = train_x.mean(), train_x.std(ddof=1)
    for dataset, x, y in ((digits.parts.train, train_x, train_y), (digits.parts.test, test_x, test_y)):
        expected = ((x - mean) / std).astype(np.float32).reshape(-1, 1, 8, 8)
        np.testing.assert_allclose(dataset.tensors[0].numpy(), expected, rtol=1e-6)
        assert dataset.tensors[1].tolist() == y.tolist()
