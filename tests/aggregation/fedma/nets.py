"""Small nets with the connections of large ones, and permuted copies of nets."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from fl_lightning.aggregation.fedma.plan import Plan
from fl_lightning.models import BiLSTM


class Residual(nn.Module):
    """Two blocks like ResNet's, one with a projection."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(1, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.inner, self.inner_norm = nn.Conv2d(4, 5, 3, padding=1), nn.BatchNorm2d(5)
        self.outer, self.outer_norm = nn.Conv2d(5, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.wide, self.wide_norm = nn.Conv2d(4, 6, 3, stride=2, padding=1), nn.BatchNorm2d(6)
        self.projection = nn.Conv2d(4, 6, 1, stride=2)
        self.pool, self.head = nn.AdaptiveAvgPool2d(1), nn.Linear(6, 3)

    def forward(self, images: Tensor) -> Tensor:
        start = functional.relu(self.norm(self.stem(images)))
        inner = functional.relu(self.inner_norm(self.inner(start)))
        start = functional.relu(start + self.outer_norm(self.outer(inner)))
        wide = self.wide_norm(self.wide(start))
        wide += self.projection(start)
        return self.head(torch.flatten(self.pool(wide), 1))


class Dense(nn.Module):
    """Two layers like DenseNet's, which read everything before them, and a flattened consumer."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 3, 3, padding=1)
        self.norms = nn.ModuleList([nn.BatchNorm2d(3), nn.BatchNorm2d(5)])
        self.convs = nn.ModuleList([nn.Conv2d(3, 2, 3, padding=1), nn.Conv2d(5, 2, 3, padding=1)])
        self.last, self.head = nn.BatchNorm2d(7), nn.Linear(7 * 9, 3)

    def forward(self, images: Tensor) -> Tensor:
        features = [self.stem(images)]
        for norm, conv in zip(self.norms, self.convs, strict=True):
            features.append(conv(functional.relu(norm(torch.cat(features, 1)))))
        features = functional.max_pool2d(functional.relu(self.last(torch.cat(features, 1))), 2)
        return self.head(features.view(features.size(0), -1))


class Depthwise(nn.Module):
    """A block like MobileNet's, with squeeze and excitation, and a depthwise convolution with two outputs per unit."""

    def __init__(self) -> None:
        super().__init__()
        self.expand, self.norm = nn.Conv2d(1, 6, 1), nn.BatchNorm2d(6)
        self.depthwise, self.depthwise_norm = nn.Conv2d(6, 6, 3, padding=1, groups=6), nn.BatchNorm2d(6)
        self.squeeze, self.excite = nn.Conv2d(6, 3, 1), nn.Conv2d(3, 6, 1)
        self.pairs, self.project = nn.Conv2d(6, 12, 3, groups=6), nn.Conv2d(12, 4, 1)
        self.head = nn.Linear(4, 3)

    def forward(self, images: Tensor) -> Tensor:
        inner = functional.relu6(self.norm(self.expand(images)))
        inner = self.depthwise_norm(self.depthwise(inner))
        scale = functional.adaptive_avg_pool2d(inner, 1)
        scale = torch.sigmoid(self.excite(functional.relu(self.squeeze(scale))))
        return self.head(self.project(self.pairs(scale * inner)).mean([2, 3]))


class Recurrent(nn.Module):
    """A stacked recurrent net in both directions that reads the last step, then vectors with their own parameters."""

    def __init__(self, kind: type[nn.RNNBase], **options) -> None:
        super().__init__()
        self.embedding = nn.Embedding(9, 4)
        self.rnn = kind(4, 5, num_layers=2, bidirectional=True, batch_first=True, **options)
        width = 2 * (options.get("proj_size") or 5)
        self.hidden, self.scale, self.norm = nn.Linear(width, 6), nn.Parameter(torch.ones(6)), nn.LayerNorm(6)
        self.head = nn.Linear(6, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        steps, _ = self.rnn(self.embedding(tokens))
        return self.head(self.norm(torch.tanh(self.hidden(steps[:, -1])) * self.scale))


IMAGES = torch.randn(5, 1, 6, 6, generator=torch.Generator().manual_seed(1))
TOKENS = torch.randint(1, 9, (5, 7), generator=torch.Generator().manual_seed(1))
#: name -> the net, its inputs, and the widths of the groups that its connections leave
NETS = {
    "residual": (Residual, IMAGES, [4, 5, 6]),
    "dense": (Dense, IMAGES, [3, 2, 2]),
    "depthwise": (Depthwise, IMAGES, [6, 3, 4]),
    "BiLSTM": (lambda: BiLSTM(9, 4, 5, 3), TOKENS, [4, 5, 5]),
    "GRU": (lambda: Recurrent(nn.GRU), TOKENS, [4, 5, 5, 5, 5, 6]),
    "projected LSTM": (lambda: Recurrent(nn.LSTM, proj_size=3), TOKENS, [4, 5, 3, 5, 3, 5, 3, 5, 3, 6]),
}


def randomized(model: nn.Module) -> nn.Module:
    """Draw all parameters and statistics, so that no two units are alike."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, value in [*model.named_parameters(), *model.named_buffers()]:
            if "running_var" in name:
                value.uniform_(0.5, 1.5, generator=generator)
            elif value.is_floating_point():
                value.normal_(std=max(value[0].numel(), 1) ** -0.5 if value.dim() > 1 else 1, generator=generator)
    return model.eval()


def permuted_copy(model: nn.Module, plan: Plan, seed: int) -> dict[str, Tensor]:
    """Return the state of a model with the units of each group in another order."""
    generator = torch.Generator().manual_seed(seed)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    for group, width in enumerate(plan.widths):
        places = torch.randperm(width, generator=generator)
        for name in plan.parts:
            state[name] = plan.move(name, state[name], group, places, plan.widths, width)
    return state


def outputs(model: nn.Module, state: dict[str, Tensor], inputs: Tensor) -> Tensor:
    kept = {name: value.clone() for name, value in model.state_dict().items()}
    model.load_state_dict(state)
    with torch.no_grad():
        result = model(inputs)
    model.load_state_dict(kept)
    return result
