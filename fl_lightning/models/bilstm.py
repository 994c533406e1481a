"""A network for texts."""

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

PADDING = 0


class BiLSTM(nn.Module):
    """A bidirectional LSTM with LayerNorm, as FedDNA's for Sentiment140: reads numbered tokens, gives logits.

    A text is represented by where the LSTM ends in either direction. Texts are packed, so that one that is padded to
    the length of another gives the same as alone.

    Args:
        vocabulary_size: how many tokens there are, with number 0, which pads a text at its end.
        embedding: width of a token's vector.
        hidden: width of the LSTM, in each direction.
        num_classes: width of the last layer.
    """

    def __init__(
        self, vocabulary_size: int = 10_000, embedding: int = 100, hidden: int = 128, num_classes: int = 2
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary_size, embedding, padding_idx=PADDING)
        self.lstm = nn.LSTM(embedding, hidden, batch_first=True, bidirectional=True)
        self.norm = nn.LayerNorm(2 * hidden)
        self.head = nn.Linear(2 * hidden, num_classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of a (batch, length) tensor of token numbers."""
        packed = pack_padded_sequence(
            self.embedding(tokens), _lengths(tokens).cpu(), batch_first=True, enforce_sorted=False
        )
        _, (ends, _) = self.lstm(packed)
        logits: Tensor = self.head(self.norm(torch.cat([ends[0], ends[1]], dim=1)))
        return logits


def _lengths(tokens: Tensor) -> Tensor:
    """Up to the last token that is no padding. Of an empty text one position is read, for an LSTM needs a step."""
    positions = torch.arange(1, tokens.shape[1] + 1, device=tokens.device)
    return ((tokens != PADDING) * positions).amax(dim=1).clamp(min=1)
