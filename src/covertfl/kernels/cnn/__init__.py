"""How small convolutional networks are trained: in stacks on a GPU, one by one on a CPU.

- `kernel`: the kernel (`CnnKernel`), and the modules it can run (`fits_cnn_kernel`)
- `cpu`: the compiled kernel for a CPU (`CnnCpuKernel`), and the modules it can run
- `blocks`: a network as blocks, and where its weights lie
- `steps`: which jobs run together, and the rows of each step
- `memory`: weights and examples on the device
- `trainer`: gradients, optimizer and predictions of a stack
- `passes`: the passes of a block, in plain torch
- `gpu`: the same passes, and Adam, on a GPU
- `gpu_kernels`: their kernels in Triton
"""
