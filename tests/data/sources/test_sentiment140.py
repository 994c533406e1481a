import numpy as np
import pytest
import torch

from fl_lightning import FederatedDataModule
from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.data import IID, Sentiment140
from fl_lightning.data.sources import sentiment140
from fl_lightning.data.sources._text import PADDING, UNKNOWN, tokenise
from tests.data.files import set_up, write_tweets

WORDS = ("good", "bad", "day", "work", "sun", "rain", "sleep")


def tweets(count: int = 40) -> list[tuple[int, str, str]]:
    generator = np.random.default_rng(3)
    return [
        (4 * (row % 2), f"user{row % 7}", " ".join([*generator.choice(WORDS, size=row % 9), f"only{row}"]))
        for row in range(count)
    ]


def text_of(source: Sentiment140, row: torch.Tensor) -> str:
    return " ".join(source.vocabulary[word] for word in row if word != PADDING)


def test_tweets_keep_their_words_and_their_polarity(tmp_path):
    rows = tweets()
    write_tweets(tmp_path, rows)
    source = set_up(Sentiment140(tmp_path))
    by_text = {text: polarity // 4 for polarity, _, text in rows}
    inputs, labels = source.parts.train.tensors
    assert [by_text[text_of(source, row)] for row in inputs] == labels.tolist()
    assert [inputs.dtype, labels.dtype] == [torch.int64, torch.int64]
    assert inputs.shape[1] == 32


def test_a_stratified_fifth_is_the_test_part(tmp_path):
    write_tweets(tmp_path, tweets(100))
    train, validation, test = set_up(Sentiment140(tmp_path, validation_fraction=0.25)).parts
    assert (len(train), len(validation), len(test)) == (60, 20, 20)
    assert [part.tensors[1].bincount().tolist() for part in (train, validation, test)] == [[30, 30], [10, 10], [10, 10]]


def test_the_vocabulary_contains_only_words_of_the_training_part(tmp_path):
    write_tweets(tmp_path, tweets(100))
    source = set_up(Sentiment140(tmp_path, train_fraction=0.5, validation_fraction=0.25))
    known = {word for word in source.vocabulary if word.startswith("only")}
    assert len(known) == len(source.parts.train) == 30
    for part in (source.parts.validation, source.parts.test):
        assert ((part.tensors[0] == UNKNOWN).sum(1) == 1).all()


def test_the_vocabulary_has_the_requested_size(tmp_path):
    write_tweets(tmp_path, tweets())
    source = set_up(Sentiment140(tmp_path, vocabulary_size=5, max_length=3))
    assert len(source.vocabulary) == 5
    assert source.vocabulary[:2] == ["<padding>", "<unknown>"]
    assert set(source.vocabulary[2:]) < set(WORDS)
    inputs = torch.cat([source.parts.train.tensors[0], source.parts.test.tensors[0]])
    assert inputs.shape == (40, 3)
    assert inputs.max() == 4


def test_a_tweet_without_words_becomes_one_unknown_word(tmp_path):
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


def test_a_file_without_users_has_no_user_column(tmp_path):
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


def test_the_file_is_tokenised_once_for_any_vocabulary_and_length(tmp_path, monkeypatch):
    path = write_tweets(tmp_path, tweets())
    first = set_up(Sentiment140(tmp_path))
    tokenised = []
    monkeypatch.setattr(sentiment140, "tokenise", lambda text: tokenised.append(text) or tokenise(text))
    again = set_up(Sentiment140(tmp_path))
    assert all(map(torch.equal, first.parts.train.tensors, again.parts.train.tensors))
    set_up(Sentiment140(tmp_path, vocabulary_size=6, max_length=2, train_fraction=0.5))
    assert tokenised == []
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
    with pytest.raises(MisconfigurationError) as caught:
        set_up(Sentiment140(tmp_path))
    assert str(caught.value).startswith(f"{path}, line {line}: ")
    assert "\n" not in str(caught.value)


def test_an_error_says_where_a_missing_file_is_expected(tmp_path):
    with pytest.raises(MisconfigurationError, match=f"{tmp_path}/sentiment140/training.1600000"):
        set_up(Sentiment140(tmp_path))


@pytest.mark.parametrize("arguments", [{"vocabulary_size": 2}, {"max_length": 0}])
def test_bad_arguments_are_refused(arguments):
    (name, value), *_ = arguments.items()
    with pytest.raises(MisconfigurationError, match=f"{name}={value}"):
        Sentiment140(**arguments)
