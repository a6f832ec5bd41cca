"""What a configuration costs before anything is built: parameters, FLOPs, bytes, time, and the layout that fits."""
