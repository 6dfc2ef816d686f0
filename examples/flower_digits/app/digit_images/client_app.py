"""An ordinary client app; it does not know about covert rounds."""

from __future__ import annotations

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from digit_images.model import load_share, make_model

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the received model for one pass over this node's images."""
    model = make_model()
    model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    node, run = context.node_config, context.run_config
    share = load_share(int(node["partition-id"]), int(node["num-partitions"]))
    data = TensorDataset(torch.from_numpy(share.pixels), torch.from_numpy(share.digits))
    loader = DataLoader(data, batch_size=int(run["batch-size"]), shuffle=True, drop_last=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=float(run["learning-rate"]))
    total = 0.0
    for pixels, digits in loader:
        optimizer.zero_grad()
        loss = cross_entropy(model(pixels), digits)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        total += loss.item()
    content = RecordDict(
        {
            "arrays": ArrayRecord(model.state_dict()),
            "metrics": MetricRecord({"num-examples": len(data), "train-loss": total / len(loader)}),
        }
    )
    return Message(content, reply_to=message)
