"""The model, and a node's part of the data."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from covertfl.tasks.task import DataSettings
from covertfl.tasks.toxicity import make_toxicity_task


def make_model() -> nn.Module:
    """Return a head with 128 hidden units on 128 features."""
    return nn.Sequential(nn.Linear(128, 128), nn.ReLU(), nn.Dropout(0.1), nn.Linear(128, 1))


def load_share(number: int, shares: int, batch_size: int) -> DataLoader[tuple[torch.Tensor, ...]]:
    """Load one of several equal parts of the comments that come with covertfl."""
    settings = DataSettings(task="toxicity", seed=0, clients=shares, same_clients=True)
    task = make_toxicity_task(settings)
    rows = task.clients[number]
    features = torch.from_numpy(task.train.features[rows])
    labels = torch.from_numpy(task.train.labels[rows]).float()
    return DataLoader(TensorDataset(features, labels), batch_size=batch_size, shuffle=True)
