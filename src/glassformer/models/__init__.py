"""Models made of `nn`'s layers. `build.build_model` is the only constructor."""
