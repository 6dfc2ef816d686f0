"""How results look: as tables, as pictures, as JSON.

- `tables`: `print_tables`; solutions of queues and horizons, and what is proven about them
- `plan_tables`: plans and fitted oracles
- `run_tables`: training runs, the demonstration and audits
- `service_tables`: the status and the versions of a running service
- `plots`: `new_figure` and `save_figure`; policies of queues and horizons; the curves of a plan
- `curves`: policy searches, trained runs and their audit
- `as_json`: solutions, plans and fits as dictionaries, as `--json` prints them

Functions called `render_...` return something to print, `plot_...` a Figure, `describe_...` a
dictionary; none of them prints or writes.
"""
