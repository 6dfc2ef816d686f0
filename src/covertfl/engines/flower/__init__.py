"""How the rounds of a run are carried over Flower's messages, nodes and apps.

The only package that imports flwr.  `covertfl.flower` is its front for users.

- `array_form`: `ArrayForm`, how a model's arrays travel.
- `carrier`: `Carrier`, which carries out the work of one run over a grid, on a clock, and keeps the
  metrics of clients.
- `client_app`: the client app of a run file.
- `deployment`: a federation of real processes on this machine.
- `eavesdropper_app`: a client app that records what it is sent.
- `exchange`: queries are pushed together, and answers pulled one by one, within limits.
- `gathering`: what is kept of the replies of a round: their mean, or all of them; how many examples
  a client may claim.
- `grid`: `InProcessGrid`, whose nodes work in this process; one that only reports nodes.
- `inner_strategies`: wrapped strategies, one for each trajectory.
- `messages`: queries and replies as Flower messages.
- `node_numbers`: client numbers of nodes.
- `privacy_wrappers`: which of Flower's wrappers for differential privacy can be made covert.
- `responder`: `GridResponder`, the clients behind a grid and the work of a round.
- `run_folder`: settings, secret seed and folder of a run, and the state in which it starts.
- `server_app`: runs with simulated clients, in this process.
- `silence`: what a user's own code prints on the server is discarded.
- `simulation`: runs on Flower's simulation runtime.
- `steady_folder`: a run's folder that takes the same work in every round.
- `strategy`: `CovertStrategy`, which makes any Flower strategy covert.
- `strategy_settings`: the arguments of `CovertStrategy`, checked.
- `strategy_state`: what a wrapped strategy remembers.
"""

import os
from importlib.util import find_spec

from covertfl.errors import Missing

# Nothing is reported to anybody, unless the user has set it so.  Before flwr is imported.
for _switch, _value in (
    ("FLWR_TELEMETRY_ENABLED", "0"),
    ("FLWR_DISABLE_UPDATE_CHECK", "1"),
    ("RAY_USAGE_STATS_ENABLED", "0"),
):
    os.environ.setdefault(_switch, _value)

if find_spec("flwr") is None:
    raise Missing("Flower is not installed: pip install 'covertfl[flower]'")
