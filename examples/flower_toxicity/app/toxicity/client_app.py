"""An ordinary client app; it does not know about covert rounds."""

from __future__ import annotations

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch.nn.functional import binary_cross_entropy_with_logits

from toxicity.model import load_share, make_model

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the received model for one pass over this node's data."""
    model = make_model()
    arrays = message.content.array_records["arrays"]
    model.load_state_dict(arrays.to_torch_state_dict())
    node, run = context.node_config, context.run_config
    share = load_share(
        int(node["partition-id"]), int(node["num-partitions"]), int(run["batch-size"])
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=float(run["learning-rate"]))
    examples = 0
    for features, labels in share:
        optimizer.zero_grad()
        loss = binary_cross_entropy_with_logits(model(features)[:, 0], labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        examples += len(labels)
    content = RecordDict(
        {
            "arrays": ArrayRecord(model.state_dict()),
            "metrics": MetricRecord({"num-examples": examples}),
        }
    )
    return Message(content, reply_to=message)
