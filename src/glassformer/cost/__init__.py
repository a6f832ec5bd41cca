"""Cost of a configuration before it is built: parameters, FLOPs, bytes, time, and the layout that fits."""
