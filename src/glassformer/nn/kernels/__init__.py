"""Fast paths of the layers in `nn`: the same formulas for one processor or precision. They need only torch.

Each fast path has a readable reference in `nn` or in PyTorch, and a test that compares the two.
"""
