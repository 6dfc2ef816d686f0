"""What a Python user calls, and the results it returns; `import covertfl as cf` offers all of it.

- `problem`: `load_problem`, and every form in which functions take a problem
- `solve`: `solve`
- `solution`: `Solution`
- `plan`: `plan` and `Plan`
- `fit`: `fit` and `Fit`
- `run`: `Run`, its keyword arguments, and `TrainingResult`
- `audit`: `audit` and `AuditReport`
- `result`: how results print, in a terminal and in a notebook
"""
