"""How a client trains: local jobs, and the kernels that run many of them at once.

Start with `job` (a client's work in a round) and `choose`, the kernel for a model and a device:
`mlp` and `cnn` are compiled for perceptrons and small convolutional networks, `autograd` takes any
torch module.  `exact_sum` has weighted means that do not depend on the order of their terms.
"""
