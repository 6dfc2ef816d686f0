"""How results look: as tables, as pictures, as JSON.

- `tables`: `print_tables`; solutions of queues and horizons, and what is proven about them
- `plan_tables`: what a problem allows, the setting for an exposure, updates needed
- `fit_tables`: fitted oracles
- `run_tables`: training runs and the demonstration
- `audit_tables`: audits
- `plots`: `new_figure` and `save_figure`; policies of queues and horizons
- `plan_plots`: the curves of a plan
- `curves`: trained runs and their audit by round and by eavesdropper
- `spga_plots`: the progress of a policy search
- `as_json`: solutions, plans and fits as dictionaries, as `--json` prints them
- `names`: names of oracle states, shared by tables and pictures

Functions called `render_...` return something to print, `plot_...` a Figure, `describe_...` a
dictionary; none of them prints or writes.
"""
