"""How stacked convolutional networks are computed on a GPU, in Triton.

- `passes`: forward and backward passes (`TritonPasses`)
- `products`: their convolutions
- `pooling`: their pooling and dropout
- `adam`: steps of Adam and AdamW (`step_adam`)
"""
