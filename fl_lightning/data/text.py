"""Texts as numbers: words, a vocabulary, rows of one length."""

import html
import re
from array import array
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch

from fl_lightning.data.cache import Tensors

PADDING, UNKNOWN = 0, 1
#: what the first numbers stand for
RESERVED = ("<padding>", "<unknown>")

_URL = re.compile(r"(?:https?://|www\.)\S+")
_USER = re.compile(r"@\w+")
_LENGTHENED = re.compile(r"([a-z])\1{2,}")
_WORD = re.compile(r"<user>|<url>|[^\W_]+(?:'[^\W_]+)*|[!?]")
_ROWS_AT_ONCE = 100_000


def tokenise(text: str) -> list[str]:
    """The words of a tweet.

    In lower case; user names and addresses are each one word, and a letter more than twice in a row is there twice, as
    in section 2.2 of Go, Bhayani and Huang. Numbers, exclamation and question marks are words, other marks are not.
    """
    text = html.unescape(text).lower()
    text = _USER.sub(" <user> ", _URL.sub(" <url> ", text))
    return _WORD.findall(_LENGTHENED.sub(r"\1\1", text))


@dataclass
class TokenisedTexts:
    """Texts, each word as its number in the list of all words: what any vocabulary and length can be made from fast.

    Args:
        words: all words, in the order in which they first occur.
        numbers: the texts' words, one text after the other.
        ends: where each text ends.
    """

    words: list[str]
    numbers: np.ndarray
    ends: np.ndarray

    @classmethod
    def from_words(cls, texts: Iterable[list[str]]) -> "TokenisedTexts":
        """Numbers the words."""
        known: dict[str, int] = {}
        numbers = array("i")
        ends = array("q")
        for text in texts:
            numbers.extend(known.setdefault(word, len(known)) for word in text)
            ends.append(len(numbers))
        return cls(list(known), np.array(numbers), np.array(ends))

    @classmethod
    def from_tensors(cls, tensors: Tensors) -> "TokenisedTexts":
        """From what :meth:`tensors` gave."""
        words = tensors["words"].numpy().tobytes().decode().split("\n")
        return cls(words, tensors["numbers"].numpy(), tensors["ends"].numpy())

    def tensors(self) -> Tensors:
        """The same as tensors, to be kept in a file."""
        words = np.frombuffer("\n".join(self.words).encode(), dtype=np.uint8).copy()
        return {
            "words": torch.from_numpy(words),
            "numbers": torch.from_numpy(self.numbers),
            "ends": torch.from_numpy(self.ends),
        }

    def most_frequent(self, rows: np.ndarray, count: int) -> np.ndarray:
        """The ``count`` words that are most frequent in some of the texts; of equals, the first to occur."""
        chosen = np.zeros(len(self.ends), dtype=bool)
        chosen[rows] = True
        counts = np.bincount(self.numbers[np.repeat(chosen, self._lengths())], minlength=len(self.words))
        order = np.argsort(-counts, kind="stable")[:count]
        return order[counts[order] > 0]

    def encoded(self, rows: np.ndarray, vocabulary: np.ndarray, length: int) -> np.ndarray:
        """Some of the texts as rows of ``length`` int64 numbers, padded at the end or cut; an empty text is unknown."""
        table = np.full(len(self.words) + 1, UNKNOWN)
        table[vocabulary] = np.arange(len(RESERVED), len(RESERVED) + len(vocabulary))
        lengths = self._lengths()
        encoded = np.full((len(rows), length), PADDING)
        for first in range(0, len(rows), _ROWS_AT_ONCE):
            some = rows[first : first + _ROWS_AT_ONCE]
            filled = np.arange(length) < lengths[some, None]
            positions = (self.ends[some] - lengths[some])[:, None] + np.arange(length)
            encoded[first : first + _ROWS_AT_ONCE][filled] = table[self.numbers[positions[filled]]]
        encoded[lengths[rows] == 0, 0] = UNKNOWN
        return encoded

    def _lengths(self) -> np.ndarray:
        return np.diff(self.ends, prepend=0)
