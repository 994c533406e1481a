"""Turning texts into rows of word numbers, all of the same length."""

import html
import re
from array import array
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch

from fl_lightning.data.sources._cache import Tensors

PADDING, UNKNOWN = 0, 1
#: The words that the first numbers stand for.
RESERVED = ("<padding>", "<unknown>")

_URL = re.compile(r"(?:https?://|www\.)\S+")
_USER = re.compile(r"@\w+")
_LENGTHENED = re.compile(r"([a-z])\1{2,}")
_WORD = re.compile(r"<user>|<url>|[^\W_]+(?:'[^\W_]+)*|[!?]")
_ROWS_AT_ONCE = 100_000


def tokenise(text: str) -> list[str]:
    """Split a tweet into words, in lower case.

    As in section 2.2 of Go, Bhayani and Huang, every user name becomes the same word, as does every URL, and a letter
    that occurs more than twice in a row is reduced to two. Numbers, exclamation marks and question marks are words;
    other punctuation is dropped.
    """
    text = html.unescape(text).lower()
    text = _USER.sub(" <user> ", _URL.sub(" <url> ", text))
    return _WORD.findall(_LENGTHENED.sub(r"\1\1", text))


@dataclass
class TokenisedTexts:
    """Texts as indices into one list of words, which can be encoded quickly for any vocabulary and length.

    Args:
        words: all words, in the order of their first occurrence.
        numbers: numbers of the words of all texts, concatenated.
        ends: position in ``numbers`` after the last word of each text.
    """

    words: list[str]
    numbers: np.ndarray
    ends: np.ndarray

    @classmethod
    def from_words(cls, texts: Iterable[list[str]]) -> "TokenisedTexts":
        """Number the words of texts."""
        known: dict[str, int] = {}
        numbers = array("i")
        ends = array("q")
        for text in texts:
            numbers.extend(known.setdefault(word, len(known)) for word in text)
            ends.append(len(numbers))
        return cls(list(known), np.array(numbers), np.array(ends))

    @classmethod
    def from_tensors(cls, tensors: Tensors) -> "TokenisedTexts":
        """Restore texts from the result of :meth:`tensors`."""
        words = tensors["words"].numpy().tobytes().decode().split("\n")
        return cls(words, tensors["numbers"].numpy(), tensors["ends"].numpy())

    def tensors(self) -> Tensors:
        """Return the texts as tensors, which can be saved to a file."""
        words = np.frombuffer("\n".join(self.words).encode(), dtype=np.uint8).copy()
        return {
            "words": torch.from_numpy(words),
            "numbers": torch.from_numpy(self.numbers),
            "ends": torch.from_numpy(self.ends),
        }

    def most_frequent(self, rows: np.ndarray, count: int) -> np.ndarray:
        """Return the ``count`` most frequent words of the given texts. Ties go to the word that occurs first."""
        chosen = np.zeros(len(self.ends), dtype=bool)
        chosen[rows] = True
        counts = np.bincount(self.numbers[np.repeat(chosen, self._lengths())], minlength=len(self.words))
        order = np.argsort(-counts, kind="stable")[:count]
        return order[counts[order] > 0]

    def encoded(self, rows: np.ndarray, vocabulary: np.ndarray, length: int) -> np.ndarray:
        """Return the given texts as rows of ``length`` int64 numbers, padded or truncated at the end.

        An empty text becomes one unknown word.
        """
        table = np.full(len(self.words) + 1, UNKNOWN)
        table[vocabulary] = np.arange(len(RESERVED), len(RESERVED) + len(vocabulary))
        lengths = self._lengths()
        encoded = np.full((len(rows), length), PADDING)
        for first in range(0, len(rows), _ROWS_AT_ONCE):
            chunk = rows[first : first + _ROWS_AT_ONCE]
            filled = np.arange(length) < lengths[chunk, None]
            positions = (self.ends[chunk] - lengths[chunk])[:, None] + np.arange(length)
            encoded[first : first + _ROWS_AT_ONCE][filled] = table[self.numbers[positions[filled]]]
        encoded[lengths[rows] == 0, 0] = UNKNOWN
        return encoded

    def _lengths(self) -> np.ndarray:
        return np.diff(self.ends, prepend=0)
