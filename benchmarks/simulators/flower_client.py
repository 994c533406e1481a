"""The client of peer_flower.py, which Ray's workers import."""

from functools import cache
from pathlib import Path

import torch
from contest import Contest
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn
from torch.nn.functional import cross_entropy

app = ClientApp()


@cache
def prepared(path: str) -> tuple[Contest, nn.Module]:
    """Return the contest and a network, once per worker."""
    torch.set_num_threads(1)
    contest = Contest.load(Path(path))
    return contest, contest.make_net()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the client that the server has planned."""
    settings = message.content["config"]
    contest, net = prepared(settings["contest"])
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(net.parameters(), lr=contest.learning_rate)
    order = contest.orders[settings["round"], settings["position"]]
    for batch in order.split(contest.batch_size):
        loss = cross_entropy(net(contest.images.index_select(0, batch)), contest.labels.index_select(0, batch))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    content = RecordDict(
        {"arrays": ArrayRecord(net.state_dict()), "metrics": MetricRecord({"num-examples": len(order)})}
    )
    return Message(content=content, reply_to=message)
