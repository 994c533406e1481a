from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_lightning.data.sources._text import PADDING, UNKNOWN, TokenisedTexts, tokenise


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("@switchfoot http://twitpic.com/2y1zl - Awww, that's a bummer.", ["<user>", "<url>", "aww", "that's", "a"]),
        ("I LOVE it!!! sooooo happyyy", ["i", "love", "it", "!", "!", "!", "soo", "happyy"]),
        ("you &amp; me &lt;3 #fun www.x.org/a?b", ["you", "me", "3", "fun", "<url>"]),
        ("managed to save 50%  Why?", ["managed", "to", "save", "50", "why", "?"]),
        ("'quoted' snake_case café", ["quoted", "snake", "case", "café"]),
        ("... -_-", []),
    ],
)
def test_tweets_are_tokenised_as_documented(text, words):
    assert tokenise(text)[: len(words) or None] == words


@settings(max_examples=60, deadline=None)
@given(
    texts=st.lists(st.lists(st.sampled_from("abcdefgh"), max_size=7), min_size=1, max_size=12),
    count=st.integers(1, 9),
    length=st.integers(1, 9),
    data=st.data(),
)
def test_texts_are_numbered_by_frequency_padded_and_cut(texts, count, length, data):
    rows = sorted(data.draw(st.sets(st.integers(0, len(texts) - 1), min_size=1)))
    tokenised = TokenisedTexts.from_tensors(TokenisedTexts.from_words(texts).tensors())
    first_seen = {word: place for place, word in reversed(list(enumerate(word for text in texts for word in text)))}
    frequency = Counter(word for row in rows for word in texts[row])
    expected = sorted(frequency, key=lambda word: (-frequency[word], first_seen[word]))[:count]
    vocabulary = tokenised.most_frequent(np.array(rows), count)
    assert [tokenised.words[word] for word in vocabulary] == expected

    numbers = {word: number for number, word in enumerate(expected, 2)}
    encoded = tokenised.encoded(np.arange(len(texts)), vocabulary, length)
    assert encoded.dtype == np.int64
    for row, text in zip(encoded.tolist(), texts, strict=True):
        kept = [numbers.get(word, UNKNOWN) for word in text[:length]] or [UNKNOWN]
        assert row == kept + [PADDING] * (length - len(kept))
