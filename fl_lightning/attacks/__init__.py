"""Attacks: clients that are bad on purpose, to see which algorithms withstand them."""

from fl_lightning.attacks.alie import ALittleIsEnough
from fl_lightning.attacks.base import Attack
from fl_lightning.attacks.label_flip import LabelFlip
from fl_lightning.attacks.updates import GaussianNoise, ScaledUpdate, SignFlip, UpdateAttack

__all__ = ["ALittleIsEnough", "Attack", "GaussianNoise", "LabelFlip", "ScaledUpdate", "SignFlip", "UpdateAttack"]
