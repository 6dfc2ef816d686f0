"""How jobs of any torch module are run, by automatic differentiation.

- `kernel`: the kernel (`TorchKernel`)
- `module`: a module's layout (`describe_layout`), losses, and dropout with hashed masks
- `optimizer`: steps of SGD, Adam and AdamW
- `replica`: one job at a time, on a CPU
- `stack`: many jobs as one batch, on a GPU
"""
