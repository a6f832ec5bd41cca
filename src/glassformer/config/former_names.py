"""Former names of settings: files of earlier versions are read under the present names."""

KEYS = {
    "BeamConfig.finished": "early_stopping",
    "BeamConfig.normalisation": "length_penalty_type",
    "InfillingConfig.mean_length": "mean_span_length",
    "InfillingConfig.share": "noise_density",
    "MaskedConfig.share": "mask_prob",
    "MuonConfig.n_steps": "ns_steps",
    "SequenceHead.spread": "std",
    "SpansConfig.mean_length": "mean_span_length",
    "SpansConfig.share": "noise_density",
    "TextData.arrangement": "packing",
    "TokenizerConfig.dropout": "bpe_dropout",
    "TokenizerConfig.flavour": "scheme",
    "TrainConfig.accumulation": "grad_accumulation",
    "TrainConfig.on_bad_numbers": "on_nonfinite",
}
"""Class and former key → present key."""
VALUES = {
    "BeamConfig.early_stopping": {"stay": "shrink", "leave": "never"},
    "EarlyStopping.metric": {"micro_f1": "accuracy"},
    "PlateauSchedule.metric": {"micro_f1": "accuracy"},
    "LabelData.outputs": {"numbers": "regression"},
}
"""Class and present key → former value → present value."""
KINDS = {"nothing": "none"}
"""Former kind → present kind."""
