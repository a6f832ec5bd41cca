"""Files on disk: model directories, checkpoints, and the manifests that verify them.

This folder imports only `models`, `tokenization`, `config` and `common`. Begin with `model_directory.py`.
"""
