"""The kernels in Triton. A kernel calls no PyTorch operator but allocation, views and fills."""
