"""What is kept on disk: model directories, checkpoints, and the manifests that vouch for them."""
