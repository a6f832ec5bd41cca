"""Trial of a device: does it compute a step of this kind of model right, and how fast?

Begin with `choice.py`.
"""
