"""Sentiment140: tweets, labelled as negative or positive."""

import csv
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import TensorDataset
from tqdm import tqdm

from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.core.limits import check_number
from fl_lightning.data.sources._cache import Tensors, cached, fingerprint_of
from fl_lightning.data.sources._text import RESERVED, TokenisedTexts, tokenise
from fl_lightning.data.sources.base import Parts, TensorSource, stratified_split

_FILE = "training.1600000.processed.noemoticon.csv"
_FIELDS = 6
_CLASSES = {"0": 0, "4": 1}
_TEST_FRACTION = 0.2


class Sentiment140(TensorSource):
    """1,600,000 tweets, negative (0) or positive (1). A stratified fifth of them is the test set.

    Go, Bhayani, Huang. Twitter Sentiment Classification using Distant Supervision. 2009.

    A tweet is a row of ``max_length`` word numbers. 0 is padding at its end, and 1 is a word outside the vocabulary.
    Every tweet has at least one word, so that it can be packed. ``columns["user"]`` holds the number of each training
    tweet's author, if the file names authors.

    Args:
        root: folder that holds the folder ``sentiment140`` with the CSV file.
        batch_size: samples per training batch.
        vocabulary_size: size of the vocabulary, including padding and unknown words. The most frequent words of the
            training part fill the rest.
        max_length: maximum number of words per tweet; further words are dropped.
        train_fraction: fraction of the training samples to use; they are four fifths of all tweets.
        validation_fraction: fraction of those samples to hold out for validation, before the rest is divided among the
            clients; 0 validates on the test set.
        evaluation_batch_size: samples per batch of validation, test and prediction.
    """

    #: The word that each number stands for.
    vocabulary: list[str]

    def __init__(
        self,
        root: str | Path = "data",
        batch_size: int = 32,
        vocabulary_size: int = 10_000,
        max_length: int = 32,
        train_fraction: float = 1.0,
        validation_fraction: float = 0.0,
        evaluation_batch_size: int = 512,
    ) -> None:
        super().__init__(batch_size, train_fraction, validation_fraction, evaluation_batch_size)
        check_number(
            "vocabulary_size",
            vocabulary_size,
            at_least=len(RESERVED) + 1,
            reason=f"padding and unknown words take {len(RESERVED)} entries",
            setting="data.source.init_args.vocabulary_size",
        )
        check_number("max_length", max_length, at_least=1, setting="data.source.init_args.max_length")
        self.root = Path(root).expanduser().absolute()
        self.vocabulary_size = vocabulary_size
        self.max_length = max_length

    @property
    def file(self) -> Path:
        """The CSV file."""
        return self.root / "sentiment140" / _FILE

    def prepare_data(self) -> None:
        """Tokenise the tweets into the cache. Lightning calls this in one process; the others read the cache."""
        self.setup("fit")

    def load(self) -> Parts:
        """Split the tweets and encode them. Only words of the training part enter the vocabulary."""
        if not self.file.is_file():
            raise MisconfigurationError(
                f"there is no file {self.file}: set data.source.init_args.root to the folder above sentiment140,"
                " or put the CSV file from http://help.sentiment140.com (on Kaggle: kazanova/sentiment140) there"
            )
        content = cached(
            self.file.parent, "tweets", fingerprint_of("tweets 1", [str(self.file)], self.file.parent), self._tokenised
        )
        labels = content["labels"].numpy()
        texts = TokenisedTexts.from_tensors(content)
        test, rest = stratified_split(
            np.arange(len(labels)), labels, _TEST_FRACTION, "test_fraction", f"put more tweets in {self.file}"
        )
        train, validation = (rest[part] for part in self.split(labels[rest]))
        vocabulary = texts.most_frequent(train, self.vocabulary_size - len(RESERVED))
        self.vocabulary = [*RESERVED, *(texts.words[word] for word in vocabulary)]
        users = content["users"].numpy()
        self.columns = {"user": users[train]} if users.any() else {}

        def part(rows: np.ndarray) -> TensorDataset:
            return TensorDataset(
                torch.from_numpy(texts.encoded(rows, vocabulary, self.max_length)), content["labels"][rows]
            )

        return Parts(part(train), part(validation) if len(validation) else None, part(test))

    def _tokenised(self) -> Tensors:
        """Return the words, the label and the author of every tweet in the file."""
        labels: list[int] = []
        users: dict[str, int] = {"": 0}
        writers: list[int] = []

        def texts() -> Iterator[list[str]]:
            for polarity, _, _, _, user, text in tqdm(self._rows(), "Reading tweets", leave=False, delay=2):
                labels.append(_CLASSES[polarity])
                writers.append(users.setdefault(user, len(users)))
                yield tokenise(text)

        tokens = TokenisedTexts.from_words(texts()).tensors()
        return {**tokens, "labels": torch.tensor(labels), "users": torch.tensor(writers)}

    def _rows(self) -> Iterator[list[str]]:
        """Yield the fields of every line, or raise an error at the first broken line."""
        with self.file.open(encoding="latin-1", newline="") as file:
            rows = csv.reader(file)
            try:
                for row in rows:
                    if len(row) != _FIELDS or row[0] not in _CLASSES:
                        raise self._broken(rows.line_num, f"{','.join(row)[:60]!r}")
                    yield row
            except csv.Error as error:
                raise self._broken(rows.line_num, str(error)) from error
        if rows.line_num == 0:
            raise self._broken(1, "the file is empty")
        with self.file.open("rb") as file_end:
            file_end.seek(-1, os.SEEK_END)
            if file_end.read() not in b'"\r\n':
                raise self._broken(rows.line_num, "the file is truncated")

    def _broken(self, line: int, why: str) -> MisconfigurationError:
        """Return the error for a broken line."""
        return MisconfigurationError(
            f"{self.file}, line {line}: {why}, but a line has six fields (polarity 0 or 4, id, date, query, user,"
            " text): correct the line, or download the file again"
        )
