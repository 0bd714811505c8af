"""The model: rows of tokens through its layers, on the kernels of `deepinfer.ops` (model_spec 3).

`load_model` gives a `Model`; `Model.forward` takes a `Batch` of rows and the caches, and gives logits.
"""
