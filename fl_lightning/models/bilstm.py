"""A network that classifies texts."""

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

PADDING = 0


class BiLSTM(nn.Module):
    """FedDNA's bidirectional LSTM with LayerNorm for Sentiment140, which maps token numbers to logits.

    A text is represented by the LSTM's final states in both directions. Texts are packed, so padding does not change
    the logits.

    Args:
        vocabulary_size: number of tokens, including 0, which pads texts at their end.
        embedding: width of a token's vector.
        hidden: width of the LSTM in each direction.
        num_classes: width of the last layer.
    """

    def __init__(
        self, vocabulary_size: int = 10_000, embedding: int = 100, hidden: int = 128, num_classes: int = 2
    ) -> None:
        super().__init__()
        self.vocabulary_size = vocabulary_size
        self.hidden = hidden
        self.num_classes = num_classes
        self.embedding = nn.Embedding(vocabulary_size, embedding, padding_idx=PADDING)
        self.lstm = nn.LSTM(embedding, hidden, batch_first=True, bidirectional=True)
        self.norm = nn.LayerNorm(2 * hidden)
        self.head = nn.Linear(2 * hidden, num_classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits for token numbers of shape (batch, length)."""
        packed = pack_padded_sequence(
            self.embedding(tokens), _lengths(tokens).cpu(), batch_first=True, enforce_sorted=False
        )
        _, (ends, _) = self.lstm(packed)
        logits: Tensor = self.head(self.norm(torch.cat([ends[0], ends[1]], dim=1)))
        return logits


def _lengths(tokens: Tensor) -> Tensor:
    """Return the length of each text without its padding; 1 for an empty text, because an LSTM needs a step."""
    positions = torch.arange(1, tokens.shape[1] + 1, device=tokens.device)
    return ((tokens != PADDING) * positions).amax(dim=1).clamp(min=1)
