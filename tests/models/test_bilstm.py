import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_lightning.models import BiLSTM


def net() -> BiLSTM:
    torch.manual_seed(3)
    return BiLSTM(vocabulary_size=12, embedding=4, hidden=3, num_classes=2).double()


def sigmoid(values: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-values))


def last_state(vectors: np.ndarray, lstm: torch.nn.LSTM, suffix: str) -> np.ndarray:
    """Return the last state of an LSTM with a forget gate, step by step. The gates are in PyTorch's order."""
    names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
    of_input, of_state, *biases = (getattr(lstm, name + suffix).detach().numpy() for name in names)
    state = cell = np.zeros(lstm.hidden_size)
    for vector in vectors:
        entry, forget, candidate, output = np.split(of_input @ vector + of_state @ state + sum(biases), 4)
        cell = sigmoid(forget) * cell + sigmoid(entry) * np.tanh(candidate)
        state = sigmoid(output) * np.tanh(cell)
    return state


def expected_logits(model: BiLSTM, tokens: list[int]) -> np.ndarray:
    vectors = model.embedding.weight.detach().numpy()[tokens]
    ends = np.concatenate([last_state(vectors, model.lstm, ""), last_state(vectors[::-1], model.lstm, "_reverse")])
    normalised = (ends - ends.mean()) / np.sqrt(ends.var() + 1e-5)
    return model.head.weight.detach().numpy() @ normalised + model.head.bias.detach().numpy()


TEXT = st.lists(st.integers(1, 11), min_size=1, max_size=7)


@settings(max_examples=25, deadline=None)
@given(texts=st.lists(TEXT, min_size=1, max_size=4), extra=st.integers(0, 3))
def test_every_text_of_a_padded_batch_is_read_from_its_first_token_to_its_last(texts, extra):
    model = net()
    length = max(map(len, texts)) + extra
    batch = torch.tensor([text + [0] * (length - len(text)) for text in texts])
    with torch.no_grad():
        logits = model(batch).numpy()
    np.testing.assert_allclose(logits, [expected_logits(model, text) for text in texts], atol=1e-12)


def test_padding_changes_no_gradient():
    gradients = []
    for batch in ([[5, 2, 9]], [[5, 2, 9, 0, 0]]):
        model = net()
        model(torch.tensor(batch))[0, 0].backward()
        gradients.append([value.grad for value in model.parameters()])
    for alone, padded in zip(*gradients, strict=True):
        torch.testing.assert_close(alone, padded, rtol=0, atol=1e-14)
    assert not gradients[1][0][0].any()  # the gradient of the padding vector


def test_an_empty_text_gets_logits_and_does_not_change_the_others():
    model = net()
    logits = model(torch.tensor([[0, 0, 0], [4, 7, 0]]))
    assert logits.isfinite().all()
    torch.testing.assert_close(logits[1:], model(torch.tensor([[4, 7]])))
