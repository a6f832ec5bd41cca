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

OUTPUT = ("o", "out", "out_file", "out_dir", "output", "output_file", "output_dir", "save_dir")
OPTIONS = {
    **dict.fromkeys(("text", "texts", "prompt"), ("prompt", "text", "input", "data.path")),
    **dict.fromkeys(("file", "input", "in_file", "input_file", "prompts", "path"), ("input", "data.path")),
    **dict.fromkeys(("data", "dataset", "data_path", "test", "train"), ("data.path", "input")),
    **dict.fromkeys(("val", "valid", "validation", "eval_data"), ("data.valid_path", "data.path")),
    **dict.fromkeys(OUTPUT, ("output", "out", "html")),
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
    "name": ("out",),
}
"""Other names of options of the command line → the options, of which the first that the verb has is suggested."""

PLACES = {
    **dict.fromkeys(OUTPUT, "out"),
    **dict.fromkeys(("model", "model_dir", "model_path", "dir", "folder", "checkpoint_dir"), "DIR"),
    **dict.fromkeys(("config", "config_file", "recipe"), "TOML"),
    "tokenizer": "TOKENIZER",
}
"""Names of options → the name of an argument without an option, or a part of its placeholder, that has this value."""
WRITES_NOTHING = ("demo", "resume", "checkpoint verify", "checkpoint prune", "serve", "course")
"""Verbs that print no result which a file could keep."""

NO_KEY = {
    "task": "the recipe decides the task (see `glassformer recipes`): train a recipe, and give your data as data.path",
    "resume": "continue a run with `glassformer resume FOLDER`, in Python glassformer.resume(FOLDER)",
    **dict.fromkeys(("out_dir", "output_dir", "save_dir"), "the run folder is `out`"),
    **dict.fromkeys(("epochs", "num_epochs", "num_train_epochs"), "a run counts optimizer steps: train.max_steps"),
    "size": "a preset is a size (see `glassformer presets`): model.preset",
}
"""Names that are no key of a run, and what to do instead."""
