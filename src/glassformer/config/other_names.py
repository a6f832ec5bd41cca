"""Names that other toolkits give to settings: error messages answer them with the names used here."""

SAME = {
    **dict.fromkeys(("steps", "num_steps", "iters", "max_iters", "max_update", "iterations"), "max_steps"),
    **dict.fromkeys(("lr", "rate"), "learning_rate"),
    **dict.fromkeys(("bs", "batch", "micro_batch_size", "per_device_train_batch_size"), "batch_size"),
    **dict.fromkeys(("accumulation_steps", "gradient_accumulation_steps", "update_freq"), "grad_accumulation"),
    **dict.fromkeys(("warmup", "warmup_iters", "warmup_updates"), "warmup_steps"),
    **dict.fromkeys(("n_layer", "num_layers", "layers", "num_hidden_layers", "depth"), "n_layers"),
    **dict.fromkeys(("n_head", "num_heads", "heads", "num_attention_heads"), "n_heads"),
    **dict.fromkeys(("n_embd", "dim", "d_embd", "embed_dim", "hidden_size"), "d_model"),
    **dict.fromkeys(("block_size", "seq_len", "sequence_length", "context_length"), "context"),
    **dict.fromkeys(("beam_size", "beams", "num_beams"), "beam"),
    **dict.fromkeys(("max_length", "max_tokens", "max_new"), "max_new_tokens"),
}
"""Name in another toolkit → the last part of the key here."""

OPTIONS = {
    **dict.fromkeys(("text", "texts", "prompt"), ("prompt", "text", "input", "data.path")),
    **dict.fromkeys(("file", "input", "in_file", "input_file", "prompts", "path"), ("input", "data.path")),
    **dict.fromkeys(("data", "dataset", "data_path", "test", "train"), ("data.path", "input")),
    **dict.fromkeys(("val", "valid", "validation", "eval_data"), ("data.valid_path", "data.path")),
    **dict.fromkeys(("o", "out", "out_file", "output", "output_file", "output_dir"), ("output", "out")),
    **dict.fromkeys(("num_samples", "n_samples", "samples", "num_return_sequences", "top", "k", "top_k"), ("n",)),
    **dict.fromkeys(("length", "n_tokens", "num_tokens", "tokens"), ("max_new_tokens",)),
    **dict.fromkeys(("temp", "t", "greedy", "do_sample"), ("temperature",)),
    **dict.fromkeys(("src", "source", "source_file"), ("source", "data.source", "input")),
    **dict.fromkeys(("tgt", "targets", "target_file"), ("target", "data.target")),
    **dict.fromkeys(("ckpt", "step"), ("checkpoint",)),
    **dict.fromkeys(("gpu", "cuda", "cpu"), ("device",)),
    **dict.fromkeys(("metric", "metrics"), ("score",)),
    **dict.fromkeys(("label", "labels", "label_column"), ("data.label_field",)),
    **dict.fromkeys(("size", "vocab"), ("vocab_size",)),
    "format": ("to",),
}
"""Other names of options of the command line → the options, of which the first that the verb has is suggested."""

NO_OPTION = {
    **dict.fromkeys(("model", "model_dir", "dir", "folder"), "give the folder without an option"),
    **dict.fromkeys(("o", "out", "out_file", "output", "output_file"), "results are printed: add > FILE"),
    "config": "give the TOML file without an option",
    "name": "the run has the name of its folder, --out",
}
"""Names that are no option of a verb, and what to do instead."""

NO_KEY = {
    "task": "the recipe decides the task (see `glassformer recipes`): train a recipe, and give your data as data.path",
    "resume": "continue a run with `glassformer resume FOLDER`, in Python glassformer.resume(FOLDER)",
    **dict.fromkeys(("out_dir", "output_dir", "save_dir"), "the run folder is `out`"),
    **dict.fromkeys(("epochs", "num_epochs", "num_train_epochs"), "a run counts optimizer steps: train.max_steps"),
    "size": "a preset is a size (see `glassformer presets`): model.preset",
}
"""Names that are no key of a run, and what to do instead."""
