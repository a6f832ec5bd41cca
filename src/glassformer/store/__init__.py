"""Files on disk: model directories, checkpoints, and the manifests that verify them.

The rooms below are `models`, `tokenization`, `config` and `common`. Begin with `model_directory.py`.
"""
