"""The host handle in layers, each a class that adds its verbs: NumPy in, NumPy out, errors raised."""
