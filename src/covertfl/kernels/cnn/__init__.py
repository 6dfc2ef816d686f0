"""How small convolutional networks are trained: in stacks on a GPU, one by one on a CPU.

Start with `kernel` (GPU) or `cpu`.  `blocks` describes a network, `steps` the rows of each step,
`trainer` one step of a stack, in plain torch (`passes`) or by Triton (`gpu`, `gpu_kernels`).
"""
