"""How jobs of any torch module are run, by automatic differentiation.

- `kernel`: the kernel (`TorchKernel`), and one job at a time on a CPU
- `module`: a module's layout (`describe_layout`), losses, dropout with hashed masks, optimizer
- `traits`: what a module does besides computing outputs
- `stack`: many jobs as one batch, on a GPU
"""
