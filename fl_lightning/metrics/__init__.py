"""What a federation does, in numbers: norms, angles and divergences of the clients' updates.

Every class is a ``torchmetrics.Metric`` over pure functions (:mod:`fl_lightning.metrics.functional`) and gives scalars
by tag, ready for ``log_dict``. They need no federation of this package: states are ``state_dict``s, of which trainable
parameters are measured. In a distributed run each rank calls ``update`` for its own clients; ``compute`` joins them.

A round is ``update`` for each client, ``compute``, ``next_round``: the latter begins a new round and keeps what lives
on, where there is such a thing (the integral, the smoothed angles, the counts). ``reset`` forgets that too.

The tags, whose step is the round. ``<layer>`` is the path of a module such as ``net.0``, or ``convolution``,
``fully_connected``, ``normalisation`` (all layers of that kind together), or ``all``:

| tag                                           | what                                                                 |
| --------------------------------------------- | -------------------------------------------------------------------- |
| ``norms/<layer>/N``                           | norm of the clients' average update (FedNNNN, eq. 4)                 |
| ``norms/<layer>/E``                           | average of the clients' update norms (eq. 5); never below N          |
| ``norms/<layer>/N_over_E``                    | 1: all clients go the same way; near 0: they cancel each other out   |
| ``norms/<layer>/move``                        | how far the model went in this round (eq. 24)                        |
| ``norms/<layer>/integral``                    | how far it went so far: the sum of the moves                         |
| ``angles/client_007``                         | between a client's update and the average, in radians (FedAdp, eq. 7)|
| ``angles_smoothed/client_007``                | the mean over the client's rounds (eq. 8)                            |
| ``angle_weights/client_007``                  | what the client would weigh in FedAdp (eq. 10)                       |
| ``divergence/gradient``                       | mean distance of the clients' gradients from the average (FedAdp V-C)|
| ``divergence/statistics``                     | KL of BatchNorm's statistics from a reference's (FedDNA, figure 5)   |
| ``divergence/parameters``                     | the same of the parameters, as a Gaussian a layer (figure 1a)        |
| ``feddna/gamma_client_007``                   | the share of its own statistics that a client keeps (FedDNA, eq. 4)  |
| ``participation/client_007``                  | in how many rounds the client took part so far                       |
| ``participation/least``, ``most``, ``clients``| the smallest and largest of these counts; how many ever took part    |

With many clients there are no curves per client but, in their place, ``quantile_10``, ``quantile_50``, ``quantile_90``
and ``worst_1`` to ``worst_3`` (``angles/quantile_50``, ``feddna/gamma_quantile_50``).
"""

from fl_lightning.metrics.angles import UpdateAngles
from fl_lightning.metrics.divergence import GradientDivergence, StatisticsDivergence
from fl_lightning.metrics.norms import UpdateNorms
from fl_lightning.metrics.participation import ParticipationCounts

__all__ = ["GradientDivergence", "ParticipationCounts", "StatisticsDivergence", "UpdateAngles", "UpdateNorms"]
