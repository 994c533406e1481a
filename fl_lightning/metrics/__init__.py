"""Metrics of a federation: norms, angles and divergences of the clients' updates, and how often clients took part.

Every class is a ``torchmetrics.Metric`` over pure functions (:mod:`fl_lightning.metrics.functional`). They also work
without the rest of this package: a state is a ``state_dict``, and its trainable parameters are measured. In a
distributed run, each rank calls ``update`` for its own clients, and ``compute`` combines the ranks.

In a round, call ``update`` for each client, then ``compute``, then ``next_round``. ``next_round`` keeps what
carries over from round to round (the integral, the smoothed angles, the counts); ``reset`` clears that too.
``StatisticsDivergence`` compares one model at a time and has only ``reset``.

| metric                   | what ``compute`` returns                                                          |
| ------------------------ | --------------------------------------------------------------------------------- |
| ``UpdateNorms``          | ``<layer>/N``, and likewise ``E``, ``N_over_E``, ``move`` and ``integral``        |
| ``UpdateAngles``         | ``angle``, ``smoothed`` and ``weight``, each a dict keyed by client               |
| ``GradientDivergence``   | ``gradient``                                                                      |
| ``StatisticsDivergence`` | ``statistics`` and ``parameters``                                                 |
| ``ParticipationCounts``  | ``counts`` (one entry per client), ``least``, ``most`` and ``clients``            |

``<layer>`` is the path of a module such as ``net.0``, a kind of layer (``convolution``, ``fully_connected``,
``normalisation``), or ``all``. These names are not logging tags: the callbacks that log them add a prefix, such as
``norms/`` (``fl_lightning.callbacks.diagnostics``).
"""

from fl_lightning.metrics.angles import UpdateAngles
from fl_lightning.metrics.divergence import GradientDivergence, StatisticsDivergence
from fl_lightning.metrics.norms import UpdateNorms
from fl_lightning.metrics.participation import ParticipationCounts

__all__ = ["GradientDivergence", "ParticipationCounts", "StatisticsDivergence", "UpdateAngles", "UpdateNorms"]
