"""Sentiment140: tweets, and whether they are happy."""

import csv
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from pytorch_lightning.utilities.exceptions import MisconfigurationException
from torch.utils.data import TensorDataset
from tqdm import tqdm

from fl_lightning.data.cache import Tensors, cached, fingerprint_of
from fl_lightning.data.source import Parts, TensorSource, stratified_split
from fl_lightning.data.text import RESERVED, TokenisedTexts, tokenise

_FILE = "training.1600000.processed.noemoticon.csv"
_FIELDS = 6
_CLASSES = {"0": 0, "4": 1}
_TEST_FRACTION = 0.2


class Sentiment140(TensorSource):
    """1,600,000 tweets, negative (0) or positive (1); a fifth of them, stratified, is the test set.

    Go, Bhayani, Huang. Twitter Sentiment Classification using Distant Supervision. 2009.

    A tweet is a row of ``max_length`` word numbers: 0 pads it at the end, 1 is a word outside the vocabulary. It has at
    least one word, so it can be packed. ``columns["user"]`` is who wrote each training tweet, if the file says so.

    Args:
        root: the folder above ``sentiment140``, which holds the CSV file.
        batch_size: samples a training batch.
        vocabulary_size: how many numbers there are, with padding and unknown; the most frequent words of the training
            part get them.
        max_length: further words of a tweet are left out.
        train_fraction: share of the four fifths for training that is used at all.
        validation_fraction: share of those which is split off, before clients share the rest, and watched from round
            to round. 0 watches the test set.
    """

    #: the word of every number
    vocabulary: list[str]

    def __init__(
        self,
        root: str | Path = "data",
        batch_size: int = 32,
        vocabulary_size: int = 10_000,
        max_length: int = 32,
        train_fraction: float = 1.0,
        validation_fraction: float = 0.0,
    ) -> None:
        super().__init__(batch_size, train_fraction, validation_fraction)
        if vocabulary_size <= len(RESERVED):
            raise MisconfigurationException(
                f"vocabulary_size={vocabulary_size}, but padding and unknown take {len(RESERVED)} of them:"
                f" set data.source.init_args.vocabulary_size to {len(RESERVED) + 1} or more"
            )
        if max_length < 1:
            raise MisconfigurationException(
                f"max_length={max_length}: set data.source.init_args.max_length to 1 or more"
            )
        self.file = Path(root).expanduser().absolute() / "sentiment140" / _FILE
        self.vocabulary_size = vocabulary_size
        self.max_length = max_length

    def prepare_data(self) -> None:
        """Called in one process only: that one takes the tweets apart, the others find its cache."""
        self.setup("fit")

    def load(self) -> Parts:
        """The words and the splits; the vocabulary is made of the training part alone."""
        if not self.file.is_file():
            raise MisconfigurationException(
                f"Sentiment140 is not there as {self.file}: set data.source.init_args.root to the folder above"
                " sentiment140, or put the CSV file of http://help.sentiment140.com (on Kaggle: kazanova/sentiment140)"
                " there"
            )
        content = cached(
            self.file.parent, "tweets", fingerprint_of("tweets 1", [str(self.file)], self.file.parent), self._tokenised
        )
        labels = content["labels"].numpy()
        texts = TokenisedTexts.from_tensors(content)
        test, rest = stratified_split(np.arange(len(labels)), labels, _TEST_FRACTION, "the test part")
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
        """The file's lines, field by field."""
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
            raise self._broken(1, "it is missing")
        with self.file.open("rb") as file_end:
            file_end.seek(-1, os.SEEK_END)
            if file_end.read() not in b'"\r\n':
                raise self._broken(rows.line_num, "it is cut off")

    def _broken(self, line: int, why: str) -> MisconfigurationException:
        return MisconfigurationException(
            f"{self.file}, line {line}: {why}, but a line has six fields, polarity (0 or 4), id, date, query, user and"
            " text: correct the line, or get the file again"
        )
