"""Files on disk: model directories, checkpoints, and the manifests that verify them."""
