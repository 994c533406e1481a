from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pytorch_lightning.utilities.exceptions import MisconfigurationException

from fl_lightning import FederatedDataModule
from fl_lightning.data import IID, Sentiment140, sentiment140
from fl_lightning.data.text import PADDING, UNKNOWN, TokenisedTexts, tokenise
from tests.data.files import write_tweets

WORDS = ("good", "bad", "day", "work", "sun", "rain", "sleep")


def tweets(count: int = 40) -> list[tuple[int, str, str]]:
    generator = np.random.default_rng(3)
    return [
        (4 * (row % 2), f"user{row % 7}", " ".join([*generator.choice(WORDS, size=row % 9), f"only{row}"]))
        for row in range(count)
    ]


def set_up(source):
    source.prepare_data()
    source.setup("fit")
    return source


def text_of(source: Sentiment140, row: torch.Tensor) -> str:
    return " ".join(source.vocabulary[word] for word in row if word != PADDING)


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
def test_tweets_are_taken_apart_as_documented(text, words):
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


def test_tweets_keep_their_words_and_their_polarity(tmp_path):
    rows = tweets()
    write_tweets(tmp_path, rows)
    source = set_up(Sentiment140(tmp_path))
    by_text = {text: polarity // 4 for polarity, _, text in rows}
    inputs, labels = source.parts.train.tensors
    assert [by_text[text_of(source, row)] for row in inputs] == labels.tolist()
    assert [inputs.dtype, labels.dtype] == [torch.int64, torch.int64]
    assert inputs.shape[1] == 32


def test_a_fifth_is_the_test_part_in_equal_shares_of_both_classes(tmp_path):
    write_tweets(tmp_path, tweets(100))
    train, validation, test = set_up(Sentiment140(tmp_path, validation_fraction=0.25)).parts
    assert (len(train), len(validation), len(test)) == (60, 20, 20)
    assert [part.tensors[1].bincount().tolist() for part in (train, validation, test)] == [[30, 30], [10, 10], [10, 10]]


def test_the_vocabulary_knows_the_training_part_alone(tmp_path):
    write_tweets(tmp_path, tweets(100))
    source = set_up(Sentiment140(tmp_path, train_fraction=0.5, validation_fraction=0.25))
    known = {word for word in source.vocabulary if word.startswith("only")}
    assert len(known) == len(source.parts.train) == 30
    for part in (source.parts.validation, source.parts.test):
        assert ((part.tensors[0] == UNKNOWN).sum(1) == 1).all()


def test_the_vocabulary_has_the_size_that_is_asked_for(tmp_path):
    write_tweets(tmp_path, tweets())
    source = set_up(Sentiment140(tmp_path, vocabulary_size=5, max_length=3))
    assert len(source.vocabulary) == 5
    assert source.vocabulary[:2] == ["<padding>", "<unknown>"]
    assert set(source.vocabulary[2:]) < set(WORDS)
    inputs = torch.cat([source.parts.train.tensors[0], source.parts.test.tensors[0]])
    assert inputs.shape == (40, 3)
    assert inputs.max() == 4


def test_a_tweet_without_words_can_be_packed(tmp_path):
    write_tweets(tmp_path, [(4 * (row % 2), "someone", "...") for row in range(10)])
    source = set_up(Sentiment140(tmp_path, max_length=4))
    assert source.parts.train.tensors[0].tolist() == [[UNKNOWN, 0, 0, 0]] * 8


def test_the_users_are_a_column_of_the_training_data(tmp_path):
    rows = tweets(100)
    write_tweets(tmp_path, rows)
    source = set_up(Sentiment140(tmp_path, validation_fraction=0.1))
    writer = {text: user for _, user, text in rows}
    names = [writer[text_of(source, row)] for row in source.parts.train.tensors[0]]
    column = source.columns["user"]
    assert len(column) == len(names)
    assert np.issubdtype(column.dtype, np.integer)
    assert len(set(zip(names, column.tolist(), strict=True))) == len(set(names)) == len(set(column.tolist()))


def test_a_file_that_names_no_users_has_no_such_column(tmp_path):
    write_tweets(tmp_path, [(polarity, "", text) for polarity, _, text in tweets()])
    assert set_up(Sentiment140(tmp_path)).columns == {}


def test_clients_batches_are_taken_by_index(tmp_path):
    write_tweets(tmp_path, tweets())
    data = FederatedDataModule(Sentiment140(tmp_path, batch_size=5), partition=IID(4))
    data.setup("fit")
    assert data.data.tensors is not None
    inputs, labels = next(iter(data.client_loader(0, 0)))
    assert inputs.shape == (5, 32)
    assert labels.shape == (5,)


def test_the_file_is_read_once_whatever_is_made_of_it(tmp_path, monkeypatch):
    path = write_tweets(tmp_path, tweets())
    first = set_up(Sentiment140(tmp_path))
    taken_apart = []
    monkeypatch.setattr(sentiment140, "tokenise", lambda text: taken_apart.append(text) or tokenise(text))
    again = set_up(Sentiment140(tmp_path))
    assert all(map(torch.equal, first.parts.train.tensors, again.parts.train.tensors))
    set_up(Sentiment140(tmp_path, vocabulary_size=6, max_length=2, train_fraction=0.5))
    assert taken_apart == []
    path.write_text(path.read_text(encoding="latin-1") * 2, encoding="latin-1")
    assert len(set_up(Sentiment140(tmp_path)).parts.train) == 64


def test_latin_1_and_quotes_are_read(tmp_path):
    write_tweets(tmp_path, [(4 * (row % 2), "x", 'caf\xe9 ""quoted"", with comma') for row in range(10)])
    source = set_up(Sentiment140(tmp_path))
    assert text_of(source, source.parts.train.tensors[0][0]) == "caf\xe9 quoted with comma"


@pytest.mark.parametrize(
    ("damage", "line"),
    [
        (lambda text: text + '"0","1","date"\n', 41),
        (lambda text: text + '"2","1","date","q","u","neutral"\n', 41),
        (lambda text: "polarity,id,date,query,user,text\n" + text, 1),
        (lambda text: text[:-9], 40),
        (lambda text: "", 1),
    ],
    ids=["too few fields", "neutral", "a header", "cut off", "empty"],
)
def test_a_broken_line_is_named(tmp_path, damage, line):
    path = write_tweets(tmp_path, tweets())
    path.write_text(damage(path.read_text()))
    with pytest.raises(MisconfigurationException) as caught:
        set_up(Sentiment140(tmp_path))
    assert str(caught.value).startswith(f"{path}, line {line}: ")
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_is_said_to_be_expected_where(tmp_path):
    with pytest.raises(MisconfigurationException, match=f"{tmp_path}/sentiment140/training.1600000"):
        set_up(Sentiment140(tmp_path))


@pytest.mark.parametrize("arguments", [{"vocabulary_size": 2}, {"max_length": 0}])
def test_arguments_that_do_not_fit_are_refused(arguments):
    (name, value), *_ = arguments.items()
    with pytest.raises(MisconfigurationException, match=f"{name}={value}"):
        Sentiment140(**arguments)
