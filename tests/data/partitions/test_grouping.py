import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fl_lightning.data.partitions.grouping import cut


@given(sizes=st.lists(st.integers(0, 5), min_size=1, max_size=10))
def test_the_pieces_have_the_given_sizes_and_make_up_the_whole(sizes):
    pieces = cut(np.arange(sum(sizes)), np.array(sizes))
    assert [len(piece) for piece in pieces] == sizes
    assert np.concatenate(pieces).tolist() == list(range(sum(sizes)))
