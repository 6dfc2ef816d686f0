"""How a client trains: local jobs, and the kernels that run many of them at once.

- `job`: a client's work in a round (`LocalJob`, `Examples`, `LocalOptimizer`, `LocalKernel`)
- `weights`: a model's weights as one vector and as tensors (`Layout`, `Vector`)
- `choose`: the kernel for a model and a device, and initial weights
- `mlp`: the compiled kernel of perceptrons
- `autograd`: the kernel of any torch module
- `cnn`: the kernels of small convolutional networks, stacked on a GPU and compiled for a CPU
- `compiled`: what the compiled kernels share
- `exact_sum`: weighted means that do not depend on the order of their terms (`ExactSum`)
- `generator`: torch's generator, used by one thread at a time
- `dropout`: dropout masks that all kernels share
"""
