"""Models with buffers: a residual network with BatchNorm, and a transformer with constants."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

TOKENS, WORDS, WIDTH = 8, 30, 16


class BasicBlock(nn.Module):
    """Two convolutions with BatchNorm and a shortcut, as in torchvision's resnet18."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = nn.Sequential()
        if stride != 1 or inputs != outputs:
            shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.downsample = nn.Sequential(shortcut, nn.BatchNorm2d(outputs))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Add the convolutions to the shortcut."""
        inner = functional.relu(self.bn1(self.conv1(values)))
        return functional.relu(self.bn2(self.conv2(inner)) + self.downsample(values))


class ResNet18(nn.Module):
    """The layers and names of torchvision's resnet18, `width` channels instead of 64."""

    def __init__(self, width: int = 4, classes: int = 3) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        inputs = width
        for number in range(1, 5):
            outputs, stride = width * 2 ** (number - 1), 1 if number == 1 else 2
            blocks = BasicBlock(inputs, outputs, stride), BasicBlock(outputs, outputs, 1)
            setattr(self, f"layer{number}", nn.Sequential(*blocks))
            inputs = outputs
        self.fc = nn.Linear(inputs, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the logits of (n, 3, height, width) images."""
        values = self.maxpool(functional.relu(self.bn1(self.conv1(images))))
        for number in range(1, 5):
            values = self.get_submodule(f"layer{number}")(values)
        logits: torch.Tensor = self.fc(values.mean(dim=(2, 3)))
        return logits


class TinyTransformer(nn.Module):
    """A classifier of token numbers with the buffers of Hugging Face's models.

    `position_ids` is a constant in `state_dict`, `token_type_ids` one that is not, `mask` one that
    is not finite, and `scale` a constant of floats.
    """

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.positions = nn.Embedding(TOKENS, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 2 * WIDTH, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, 1)
        self.register_buffer("position_ids", torch.arange(TOKENS)[None])
        self.register_buffer("token_type_ids", torch.zeros(1, TOKENS).long(), persistent=False)
        mask = torch.full((TOKENS, TOKENS), -torch.inf).triu(1)
        self.register_buffer("mask", mask)
        self.register_buffer("scale", torch.tensor(1.5))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return one logit for each row of token numbers, which may be floats."""
        ids, mask, scale = (self.get_buffer(name) for name in ("position_ids", "mask", "scale"))
        embedded = scale * self.words(tokens.long()) + self.positions(ids)
        logits: torch.Tensor = self.head(self.encoder(embedded, mask=mask).mean(dim=1))
        return logits
