"""Mistakes that are known without torch: each verb names them in one sentence before torch is imported."""

import json
import os
import shutil
import subprocess
import sys
from importlib import import_module
from typing import Any

import pytest

from configs import CONFIGS, RECURRENT
from glassformer.apps.cli.arguments import Group
from glassformer.apps.cli.main import VERBS
from glassformer.config.recurrent import ModelConfig
from glassformer.config.run import (
    ClassificationConfig,
    LabelData,
    MaskedConfig,
    NoObjective,
    PairData,
    Seq2SeqConfig,
)
from glassformer.store.lock import locked
from glassformer.tasks.reporting import Outcome
from interop.checkpoints import model_directory

PROGRAM = """
import io, json, sys, traceback
from contextlib import redirect_stderr, redirect_stdout


class Refused:
    names = ["torch", "numpy", "tokenizers", "rich", "transformers", "matplotlib"]

    def find_spec(self, name, path=None, target=None):
        if name in self.names:
            raise RuntimeError(f"{name} is imported")


sys.meta_path.insert(0, Refused())
from glassformer.apps.cli.main import run

results = []
for line in sys.stdin.read().splitlines():
    if line.startswith("TRAINS ") and "rich" in Refused.names:
        Refused.names.remove("rich")  # the reporter of a training
    line = line.removeprefix("TRAINS ")
    out, err = io.StringIO(), io.StringIO()
    stdin, sys.stdin = sys.stdin, io.StringIO()
    try:
        with redirect_stdout(out), redirect_stderr(err):
            code = run(line.split())
    except RuntimeError:
        code = traceback.format_exc()
    sys.stdin = stdin
    results.append([code, out.getvalue(), err.getvalue()])
print(json.dumps(results))
"""
"""Run command lines, one per line, in a process that cannot import torch and other large libraries."""

LINES = {
    "demo x.txt": "demo takes no file",
    "demo --train.max-stes 5": "did you mean train.max_steps?",
    "train": "no data is given: give a recipe, a file, data",
    "train nothing": "no recipe or file is called 'nothing'",
    "train none.txt": "no such file: none.txt",
    "train empty.txt": "empty.txt is empty; use a file with text",
    "train blank.txt": "contains only white space",
    "train short.txt": "fewer than one window of 65 (data.context 64",
    "train latin.txt": "is not UTF-8: byte 0xe9 at offset 3 (line 1); convert it",
    "train records.jsonl": "records.jsonl has the columns txt: name those to read",
    "train folder": "folder has 1 .dat file and no .txt, .md or .jsonl file: glassformer train 'folder/**/*.dat'",
    "train half.jsonl": "is not JSON",
    "train broken.toml": "broken.toml is not valid TOML",
    "train preset.toml": "did you mean gpt2?",
    "train heads.toml": "d_model 512 is not divisible by model.decoder.n_heads 7",
    "train shakespear-char": "no recipe or file is called 'shakespear-char': did you mean shakespeare-char?",
    "train tiny.toml": "has no data.path: give a text with --data.path FILE",
    "train wrong.toml": "unknown key train.max_stes: did you mean train.max_steps?",
    "train tiny.toml --data.path text.txt --data.valid-path none.txt": "no such file: none.txt",
    "train tiny.toml --data.path builtin:python-doc": "did you mean builtin:python-docs?",
    "train tiny.toml --data.path text.txt --tokenizer.path none.json": "no such file: none.json",
    "train tiny.toml --data.path text.txt --init nowhere": "no such model directory: nowhere",
    "train tiny.toml --data.path text.txt --init folder": "folder is not a model directory: it has no manifest.json",
    "train text.txt --teacher nowhere": "no such model directory: nowhere",
    "train text.txt --teacher cut": "cut is damaged: model.safetensors is not the file that was written",
    "train text.txt --teacher masked": "the teacher masked has objective.kind masked, and the run causal: use equal",
    "train text.txt --teacher model": "model.max_len is 64, and that of the teacher model 32: set it to 32",
    "train text.txt --teacher.weight 0.3": "[teacher] has no effect without teacher.path: set it to",
    "train text.txt --teacher model --teacher.weight 1.5": "teacher.weight is 1.5 and must be from 0 to 1",
    "train text.txt --teacher model --tokenizer.path none.json": "no such file: none.json",
    "train text.txt --teacher.temperature 0": "teacher.temperature is 0.0 and must be a positive",
    "train text.txt --teacher model --model.max-len 32 --out model/checkpoints/new": "inside model/checkpoints, ",
    "train text.txt --out model": "model already contains a run: continue it with `glassformer resume",
    "train text.txt --out locked": "locked is being trained by process",
    "train text.txt --out text.txt/run": "cannot write text.txt/run: ",
    "train text.txt --out text.txt/a/b/c": "cannot write text.txt/a/b",
    "train text.txt --out /dev/null/out": "cannot write /dev/null",
    "train text.txt --out /proc/nothing/out": "cannot write /proc/nothing",
    "train texts --out texts/run": "would become part of the data",
    "train text.txt --data.context 5000": "data.context: expected at most model.max_len (64), got 5000",
    "train text.txt --model.head.kind labels": "model.head.kind 'labels' is unknown",
    "train text.txt --model.head.kind sequence": "with only [model.decoder] and a head of kind tokens",
    "train text.txt --model.encoder.n-layers 1": "language modelling needs a Transformer with only [model.decoder]",
    "train text.txt --model.decoder.n-heads 7": "is not divisible by model.decoder.n_heads 7",
    "train text.txt --objective.kind masked": "masked language modelling needs a Transformer with only [model.encoder]",
    "train text.txt --objective.kind seq2seq": "data.kind: expected pairs for objective.kind seq2seq, got text",
    "train text.txt --train.device gpu": "train.device is gpu and must be auto, cpu, cuda, cuda:N or mps",
    "train text.txt --train.early-stopping.metric los": "train.early_stopping.metric: 'los' is not available for causal"
    "; choose one of loss, perplexity, bits_per_byte",
    "train text.txt --train.schedule.kind plateau --train.schedule.metric bleu": "train.schedule.metric: 'bleu' is not",
    "train pairs.tsv --train.early-stopping.metric wer": "'wer' is not available for sentences; choose one of loss",
    "train labels.tsv --train.early-stopping.metric bleu": "for classes; choose one of loss, accuracy, macro_f1, calib",
    "train text.txt --init model --model.head.kind sequence": "with only [model.decoder] and a head of kind tokens",
    "train text.txt --init model --data.context 5000": "data.context: expected at most model.max_len (32), got 5000",
    "train text.txt --init changed": "changed is damaged: config.json is not the file that was written",
    "train pairs.tsv --model.head.kind sequence": "model.head.kind: expected tokens for seq2seq, got sequence",
    "train pairs.tsv --out model": "model already contains a run: continue it with `glassformer resume",
    "train labels.tsv --train.batch-size 8": "train.batch_size does not apply to labelled texts",
    "train labels.tsv --out model": "model already contains a run: continue it with `glassformer resume",
    "train pairs.toml --data.source text.txt": "the target side is missing; set --data.target FILE",
    "train pairs.toml --data.source text.txt --data.target short.txt": "line i of one file must be the other side",
    "train pairs.toml --data.path none.tsv": "no such file: none.tsv",
    "train labels.toml --data.path none.tsv": "no such file: none.tsv",
    "train labels.toml --data.path table.tsv": "expected the columns text and label, got a, b, c",
    "train labels.toml": "data.path is missing",
    "train preferences.toml": "no preferences are given; set --data.path FILE",
    "train preferences.toml --data.path records.jsonl": "records.jsonl:1 has no field 'chosen'; it has 'txt'",
    "train preferences.toml --data.path x.jsonl --init.model recipe": "set init.path to its directory, and leave out",
    "train prompts.toml --data.path records.jsonl": "records.jsonl:1 has no field 'prompt'; it has 'txt'",
    "train prompts.toml --data.path x.jsonl --objective.rewards no_such:f": "of an installed package, got 'no_such:f'",
    "resume": "missing arguments of glassformer resume: DIR",
    "resume nowhere": "no such run: nowhere",
    "resume folder": "folder has no intact checkpoint to resume from",
    "resume torn": "torn has no intact checkpoint to resume from: torn/checkpoints/step-20 is damaged: model.safe",
    "train text.txt --data.valid-fraction 1.5": "data.valid_fraction: expected a number above 0 and below 1, got 1.5",
    "train text.txt --data.valid-fraction 0.99999": "too few to hold out a fraction of 0.99999",
    "train text.txt --tokenizer.scheme byte --tokenizer.vocab-size 100": "tokenizer.vocab_size is 100 and must be at",
    "translate model a": "model learned to continue a text: use it with generate, not translate",
    "fill model [MASK]": "use it with generate, not fill",
    "classify model a": "use it with generate, not classify",
    "tag model a": "use it with generate, not tag",
    "score masked a": "masked learned to fill masks: use it with fill, not score",
    "evaluate model vectors": "vectors learned to compute text vectors: use it with embed, not evaluate",
    "evaluate model model": "an ensemble can only translate; model learned to continue a text",
    "score model model a": "an ensemble can only translate; model learned to continue a text",
    "compare model vectors": "vectors learned to compute text vectors: use it with embed, not compare",
    "embed pairs a --query b": "pairs is an encoder-decoder, which has no text vectors: use a model of one stack",
    "generate model a --draft masked": "masked learned to fill masks: use it with fill, not generate",
    "plot attention model --source a": "model has no source side: give one text (--text)",
    "plot attention pairs a": "pairs is a sequence-to-sequence model: give a source text (--source)",
    "plot alignment masked --source a": "masked has no source side: give one text (--text)",
    "plot positions recurrent": "a recurrent model has no positions: it reads tokens in order",
    "plot positions model --stack encoder": "this model has no encoder",
    "plot positions unordered": "this model has no positions: its mask alone gives the order",
    "plot confusion model": "model predicts no classes or tags; a confusion matrix needs a classifier or a tagger",
    "plot confusion numbers": "numbers predicts no classes or tags; a confusion matrix needs a classifier or a tagger",
    "plot positions model --device gpu": "device is gpu and must be",
    "inspect model --source a": "model has no source side: give one text (--text)",
    "inspect pairs --text a": "pairs is a sequence-to-sequence model: give a source text (--source)",
    "resume locked": "locked is being trained by process",
    "resume locked --verify": "locked is being trained by process",
    "resume model --train.max-time soon": "train.max_time must be a number, not 'soon'",
    "resume model --train.seed 1": "resume cannot change train.seed",
    "checkpoint list nowhere": "no such run: nowhere",
    "course start text.txt": "text.txt is not a folder: choose another name",
    "course check nowhere": "no such folder: nowhere; glassformer course start nowhere writes the stubs",
    "course grade nowhere": "no such folder: nowhere; glassformer course start nowhere writes the stubs",
    "course break 9 broken": "the broken models have the numbers 1 to 8, not 9",
    "course case atention": "the workshop has no exercise 'atention': did you mean attention?",
    "course story 0": "the broken models have the numbers 1 to 8, not 0",
    "course hint atention": "the workshop has no exercise 'atention': did you mean attention?",
    "course check folder attentoin.py": "the workshop has no exercise 'attentoin.py': did you mean attention.py?",
    "course solution atention": "the workshop has no exercise 'atention': did you mean attention?",
    "checkpoint verify nowhere": "no such run: nowhere",
    "checkpoint prune folder": "folder has no checkpoints",
    "checkpoint prune locked": "locked is being trained by process",
    "chat": "missing arguments of glassformer chat: DIR",
    "chat nowhere hi": "no such model directory: nowhere",
    "chat model": "no message given: give one, or --input FILE",
    "chat model hi --input text.txt": "give a message or --input FILE, not both",
    "chat masked hi": "masked learned to fill masks: use it with fill, not chat",
    "chat model --input text.txt --output text.txt": "which is an input: choose another place",
    "chat model hi --draft nowhere": "no such model directory: nowhere",
    "chat model hi --temperature -1": "temperature is -1.0 and must not be negative",
    "generate model a --chat --special-tokens": "--chat reads a prompt as a message: remove --special-tokens",
    "generate": "missing arguments of glassformer generate: DIR",
    "generate model": "no prompt given: give a text or --input FILE",
    "generate nowhere --prompt a": "no such model directory: nowhere",
    "generate text.txt --prompt a": "text.txt is a file: give a model directory",
    "generate folder --prompt a": "folder is not a model directory: it has no manifest.json",
    "generate model --prompt a --checkpoint 3": "has no checkpoint of step 3; existing steps: 10, 20",
    "generate model --prompt a --draft nowhere": "no such model directory: nowhere",
    "generate model --prompt a --temperature -1": "temperature is -1.0 and must not be negative",
    "generate model --prompt a --dtype int4": "--dtype must be fp32 | bf16 | fp16, not 'int4'",
    "generate model a --prompt b": "give the text or --prompt, not both",
    "generate model a --input text.txt": "'a' is read as a text: give a text or --input FILE, not both",
    "generate model a --device cuda:x": "device is cuda:x and must be auto, cpu, cuda, cuda:N or mps",
    "generate cut a": "cut is damaged: model.safetensors is not the file that was written",
    "generate model a --draft cut": "cut is damaged: model.safetensors is not the file that was written",
    "generate less a": "less is damaged: tokenizer.json is missing",
    "generate changed a": "changed is damaged: config.json is not the file that was written",
    "generate broken a": "manifest.json is not valid JSON",
    "generate model a --top-p 0": "top_p is 0.0",
    "generate model a --max-new-tokens 0": "max_new_tokens is 0",
    "generate model --input none.jsonl": "no such file: none.jsonl",
    "generate model --input -": "- has no prompt",
    "generate model --input text.txt --output /dev/null/x": "cannot write",
    "generate model --input none.txt": "no such file: none.txt",
    "generate model --input latin.txt": "is not UTF-8",
    "generate model --input blank.txt": "blank.txt has no prompt",
    "generate model --input text.txt --output text.txt": "which is an input: choose another place",
    "generate model --input text.txt --output text.txt/out": "cannot write text.txt",
    "generate model --input text.txt --output folder": "folder is a folder: give the name of a file to write",
    "translate nowhere --input text.txt": "no such model directory: nowhere",
    "translate model nowhere --input text.txt": "'nowhere' is read as a text: give a text or --input FILE, not both",
    "translate model nowhere a": "no such model directory: nowhere; put a text of several words in quotes",
    "translate model a --device gpu": "device is gpu and must be",
    "translate less a": "less is damaged: tokenizer.json is missing",
    "translate model less a": "less is damaged: tokenizer.json is missing",
    "translate model --input none.txt": "no such file: none.txt",
    "translate model --input latin.txt": "is not UTF-8",
    "translate model --input text.txt --beam 0": "beam is 0 and must be from 1",
    "score model": "no target given: give a text or --target FILE",
    "score model a --target text.txt": "'a' is read as a text: give a text or --target FILE, not both",
    "score model a --source text.txt": "the target side is missing: give --target FILE",
    "score cut a": "cut is damaged",
    "score model --target none.txt": "no such file: none.txt",
    "score nowhere --target text.txt": "no such model directory: nowhere",
    "score model --source short.txt --target text.txt": "line i of one file must be the other side",
    "fill nowhere [MASK]": "no such model directory: nowhere",
    "fill model a --input text.txt": "'a' is read as a text: give a text or --input FILE, not both",
    "fill less [MASK]": "less is damaged: tokenizer.json is missing",
    "fill model --input none.txt": "no such file: none.txt",
    "classify nowhere --input text.txt": "no such model directory: nowhere",
    "classify changed a": "changed is damaged: config.json",
    "classify model a --input text.txt": "'a' is read as a text: give a text or --input FILE, not both",
    "classify model a good film": "unexpected arguments: 'good', 'film'; remove them, or put a text of several",
    "classify model --input latin.txt": "is not UTF-8",
    "classify model --input text.txt --second a": "--second needs a text on the command line",
    "tag nowhere --input text.txt": "no such model directory: nowhere",
    "tag changed a": "changed is damaged: config.json",
    "tag model a --input text.txt": "'a' is read as a text: give a text or --input FILE, not both",
    "tag model --input none.txt": "no such file: none.txt",
    "embed model": "no output requested",
    "embed model a --input text.txt --query b": "'a' is read as a text: give a text or --input FILE, not both",
    "embed cut a --query b": "cut is damaged",
    "embed nowhere --query a --input text.txt": "no such model directory: nowhere",
    "embed model --input text.txt --output text.txt": "which is an input",
    "evaluate": "give at least one model directory",
    "evaluate nowhere": "no such model directory: nowhere",
    "evaluate cut": "cut is damaged: model.safetensors is not the file that was written",
    "evaluate model less": "less is damaged: tokenizer.json is missing",
    "evaluate model --data.path none.txt": "no such file: none.txt",
    "evaluate model --data.path latin.txt": "is not UTF-8",
    "evaluate model --data.path folder": "no .txt, .md or .jsonl file",
    "evaluate model --checkpoint 3": "has no checkpoint of step 3",
    "evaluate nowhere --json": "no such model directory: nowhere",
    "evaluate model --num-beams 3": "did you mean --beam?",
    "average --out new": "average needs at least two model directories",
    "average model less --out new": "less is damaged: tokenizer.json is missing",
    "average model --out model": "model already exists: name another folder",
    "average model nowhere --out new": "no such model directory: nowhere",
    "average model --out text.txt/new": "cannot write text.txt/new",
    "merge nowhere --out new": "no such model directory: nowhere",
    "merge cut --out new": "cut is damaged",
    "merge model --out model": "model already exists: name another folder",
    "import nowhere new": "no such folder: nowhere",
    "import folder new": "is not a checkpoint of transformers: it has no config.json",
    "import folder model": "model already exists: name another folder",
    "import text.gguf new": "text.gguf cannot be imported: it is not a GGUF file",
    "export nowhere new": "no such model directory: nowhere",
    "export cut new": "cut is damaged",
    "export model model": "model already exists: name another folder",
    "export model new --to nothing": "--to must be hf | onnx | gguf | ct2 | web, not 'nothing'",
    "export model new --dtype float16": "dtype: expected float32 for the target hf, got float16",
    "export model new --to web": "expected the name of an HTML file",
    "export model new.html --to web --dtype float16": "dtype: expected float32 or bfloat16 or int8 for the target web",
    "export model new --license x/y": "license: expected an identifier such as mit or apache-2.0, got 'x/y'",
    "export model new.html --to web --license mit": "the target web writes one file",
    "compare": "give at least one model directory",
    "compare model nowhere": "no such model directory: nowhere",
    "compare model cut": "cut is damaged",
    "compare model --data.path none.txt": "no such file: none.txt",
    "sweep": "give",
    "sweep text.txt --seeds x": "seeds",
    "sweep text.txt --plot out.txt": "expected .png or .svg, got .txt",
    "sweep text.txt --vary d_model": "--vary d_model: expected a key and its values",
    "sweep text.txt --vary d_model=64": "only one variant, d_model=64",
    "sweep text.txt --vary d_model=64,65": "model.d_model 65 is not divisible",
    "sweep text.txt --vary d_modl=64,65": "unknown key d_modl",
    "sweep text.txt --vary d_model=64,96 --seeds 0": "seeds: expected a whole number from 1",
    "sweep text.txt --vary d_model=64,96 --budget many": "budget: expected a number of steps, tokens, seconds",
    "sweep text.txt --vary d_model=64,96 --metric blue": "metric: did you mean bleu",
    "sweep text.txt --vary d_model=64,96 --against d_model=3": "no variant and no folder is 'd_model=3'",
    "sweep text.txt --vary d_model=64,96 --until-decided 2": "until_decided: expected more than the 3 seeds",
    "sweep text.txt --vary learning_rate=0.001,1e-3": "are the same run: leave one out",
    "sweep text.txt --vary d_model=64,": "--vary d_model=64,: expected a key and its values",
    "sweep text.txt --vary d_model=64,96 --vary d_model=3": "--vary d_model is given twice",
    "sweep text.txt --vary d_model=64,96 --train.max-time 5": "train.max_time would stop the runs",
    "sweep nowhere.txt --vary d_model=64,96": "nowhere.txt",
    "inspect nowhere": "no such model directory: nowhere",
    "inspect less": "less is damaged: tokenizer.json is missing",
    "inspect model model": "unexpected arguments: 'model'",
    "inspect model --checkpoint 3": "has no checkpoint of step 3",
    "serve": "give at least one model directory",
    "serve nowhere": "no such model directory: nowhere",
    "serve cut": "cut is damaged",
    "serve model model": "two models have the name model: give one of them another name",
    "serve model --host 0.0.0.0": "other computers reach 0.0.0.0, and the server has no key",
    "serve model --key-file nowhere": "no such file: nowhere",
    "serve model --max-rows 0": "max_rows is 0 and must be at least 1",
    "plot alignment nowhere --source a": "no such model directory: nowhere",
    "plot attention nowhere --text a": "no such model directory: nowhere",
    "plot attention model": "model has no source side: give one text (--text)",
    "plot attention model a --text b": "give the text or --text, not both",
    "plot attention model a --source b": "model has no source side: give one text (--text)",
    "plot attention less a": "less is damaged: tokenizer.json is missing",
    "plot alignment cut --source a": "cut is damaged",
    "plot positions cut": "cut is damaged",
    "plot confusion cut": "cut is damaged",
    "plot positions nowhere": "no such model directory: nowhere",
    "plot positions model --out out.txt": "expected .png or .svg, got .txt",
    "plot curves nowhere": "no such run: nowhere",
    "plot confusion classes --data.path none.tsv": "no such file: none.tsv",
    "tokenizer tran": "unknown verb `tokenizer tran`",
    "tokenizer train --vocab-size 300 --out t.json": "give at least one text file",
    "tokenizer train none.txt --vocab-size 300 --out t.json": "no such file: none.txt",
    "tokenizer train latin.txt --vocab-size 300 --out t.json": "is not UTF-8",
    "tokenizer train text.txt --vocab-size 300 --out text.txt": "which is an input",
    "tokenizer encode none.json a": "no such file: none.json",
    "tokenizer encode folder a --merges": "no such file: folder/tokenizer.json",
    "tokenizer encode model a --merges --tokens": "--merges prints the merges of a text: remove --tokens,",
    "tokenizer report none.json text.txt": "no such file: none.json",
    "tokenizer reprt x": "unknown verb `tokenizer reprt`: expected one of train, encode",
    "data": "no data is given: give a recipe, a file, data",
    "data none.txt": "no such file: none.txt",
    "data latin.txt": "is not UTF-8",
    "data text.txt --tokenizer none.json": "no such file: none.json",
    "data text.txt --kind pairs": "text.txt is not records: expected JSON, or rows of equally many columns",
    "data sums-preference": "no report on preferences: it is for texts, pairs, labelled texts and conversations",
    "data multi30k-de-en --tokenizer model": "--tokenizer is for texts and conversations, and this data has pairs",
    "doctor nowhere": "no such model directory: nowhere",
    "doctor cut": "cut is damaged: model.safetensors is not the file that was written",
    "doctor model --device gpu": "device is gpu and must be",
    "doctor folder": "folder is not a model directory",
    "reproduce": "missing arguments of glassformer reproduce: RECIPE",
    "reproduce python-doc": "did you mean python-docs?",
    "reproduce tiny.toml --data.path text.txt": "has no [result] to compare with",
    "reproduce copy-task --out model": "model already contains a run",
    "plan": "missing arguments of glassformer plan: CONFIG",
    "plan nothing": "no preset, recipe, file or model directory is named 'nothing'",
    "plan folder": "folder is not a model directory: it has no run.toml, and no text",
    "plan gpt2 --gpu h2000": "did you mean h200?",
    "plan gpt2 --mfu 40": "--mfu is 40.0 and must be above 0 and at most 1",
    "presets gtp2": "did you mean gpt2?",
    "presets a b": "unexpected arguments: 'b'",
    "recipes python-doc": "did you mean python-docs?",
    "recipes nothing.toml": "no recipe",
    "trian x": "unknown verb 'trian': did you mean train?",
    "xyzzy": "unknown verb 'xyzzy': expected one of demo, train",
}
"""Command line → a part of the sentence on standard error."""
FLAGS = {
    "--train.max-stes 5": "unknown key train.max_stes: did you mean train.max_steps?",
    "--max-stes 5": "unknown option --max-stes: did you mean --train.max-steps?",
    "--ot x": "unknown option --ot: did you mean --out?",
    "--train.max-steps x": "train.max_steps must be an integer, not 'x' (in the command line)",
    "--train.max-steps": "--train.max-steps needs a value",
    "--out": "--out needs a value",
    "--objective.kind masks": "objective.kind 'masks' is unknown",
    "--model.decoder.n-kv-heads -1": "n_kv_heads is -1 and must not be negative",
    "--train.schedule.final-ratio -5": "train.schedule.final_ratio is -5.0 and must be from 0 to 1",
    "--train.max-steps 0": "train.max_steps is 0 and must be at least 1",
    "--train.optimizer.learning-rate=-1": "train.optimizer.learning_rate is -1.0",
    "more.txt": "two sources are the text files of pairs, and ",
    "--train.batch-size 100000000": "train.batch_size is 100,000,000 and must be at most 16,777,216",
    "--train.grad-accumulation 2147483648": "train.grad_accumulation is 2,147,483,648 and must be at most 1,048,576",
}
"""Words after `train tiny.toml --data.path text.txt` → a part of the sentence."""
OPTIONS = {
    "train labels.tsv --label x": "unknown option --label: did you mean --data.label-field?",
    "generate model --promt x": "unknown option --promt: did you mean --prompt?",
    "generate model --top-k x": "--top-k must be an integer, not 'x'",
    "generate model --context drop": "--context must be refuse | slide, not 'drop'",
    "generate model x y z": "unexpected arguments: 'y', 'z'; remove them, or put a text of several words in quotes",
    "embed model --n 1.5": "--n must be an integer, not '1.5'",
    "embed model --input": "--input needs a value: --input VALUE",
    "evaluate model --jsn": "did you mean --json?",
    "evaluate model --length-penalty x": "--length-penalty must be a number, not 'x'",
    "export model": "missing arguments of glassformer export: PATH",
    "plot attention model --stack x": "--stack must be encoder | decoder | cross, not 'x'",
    "tokenizer train text.txt --out t.json": "missing arguments of glassformer tokenizer train: --vocab-size",
    "data x.txt --tokeniser t": "did you mean --tokenizer?",
}
"""Command line that the parser refuses → a part of the sentence, before the name of the help."""
LINES |= {f"train tiny.toml --data.path text.txt {words}": sentence for words, sentence in FLAGS.items()}
for line, sentence in OPTIONS.items():
    verb = " ".join(line.split()[: 1 + line.startswith(("tokenizer ", "plot "))])
    LINES[line] = f"{sentence} (see glassformer {verb} --help)"


KINDS: dict[str, tuple[ModelConfig, dict[str, Any]]] = {
    "masked": (CONFIGS["bert"], {"objective": MaskedConfig()}),
    "vectors": (CONFIGS["vectors_mean"], {"objective": NoObjective()}),
    "classes": (CONFIGS["classifier_first"], {"objective": ClassificationConfig(), "data": LabelData()}),
    "numbers": (
        CONFIGS["classifier_max"],
        {"objective": ClassificationConfig(), "data": LabelData(outputs="regression")},
    ),
    "pairs": (CONFIGS["paper"], {"objective": Seq2SeqConfig(), "data": PairData()}),
    "recurrent": (RECURRENT["bahdanau"], {"objective": Seq2SeqConfig(), "data": PairData()}),
    "unordered": (CONFIGS["no_positions"], {}),
}
"""Model directory → its configuration, and the rest of its run."""
TRAIN = ("demo ", "train ", "resume ", "reproduce ")

FILES = {
    "text.txt": b"some words and others\n" * 100,
    "texts/text.txt": b"some words and others\n" * 100,
    "empty.txt": b"",
    "blank.txt": b" \n\n ",
    "short.txt": b"only a few words here",
    "latin.txt": b"caf\xe9 au lait\n" * 100,
    "records.jsonl": b'{"txt": "a"}\n',
    "pairs.tsv": b"source\ttarget\na\tb\n",
    "labels.tsv": b"text\tlabel\na\tb\n",
    "table.tsv": b"a\tb\tc\n1\t2\t3\n",
    "folder/file.dat": b"x",
    "tiny.toml": b"[train]\nmax_steps = 1",
    "half.jsonl": b'{"text": \n',
    "text.gguf": b"text",
    "broken.toml": b"[train\n",
    "preset.toml": b'[model]\npreset = "gtp2"',
    "heads.toml": b"[model.decoder]\nn_heads = 7",
    "wrong.toml": b"[train]\nmax_stes = 1",
    "pairs.toml": b'[data]\nkind = "pairs"\n[objective]\nkind = "seq2seq"\n[model.encoder]\n[model.decoder]',
    "preferences.toml": b'[data]\nkind = "preferences"\n[objective]\nkind = "preference"\n[init]\npath = "model"',
    "prompts.toml": b'[data]\nkind = "prompts"\n[objective]\nkind = "group_policy"\n[init]\npath = "model"',
    "labels.toml": b'[data]\nkind = "labels"\n[objective]\nkind = "classification"\n'
    b'[model]\nencoder = {}\nhead = {kind = "sequence"}',
}


@pytest.fixture(scope="module")
def results(trained: Outcome, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int | str, str, str]]:
    """Exit code, output and errors of each line. All lines run in one other process, and write no file."""
    folder = tmp_path_factory.mktemp("early")
    for name, content in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)
    for name, (config, run) in KINDS.items():
        model_directory(config, folder / name, **run)
    for name in ("model", "locked"):
        shutil.copytree(trained.folder, folder / name)
    order = sorted(LINES, key=lambda line: line.startswith(TRAIN))  # those that may import rich are last
    lines = ["TRAINS " * line.startswith(TRAIN) + line for line in order]
    for name in ("cut", "less", "changed", "broken"):
        shutil.copytree(trained.folder, folder / name, ignore=shutil.ignore_patterns("checkpoints"))
    os.truncate(folder / "cut" / "model.safetensors", 1000)
    (folder / "less" / "tokenizer.json").unlink()
    text = (folder / "changed" / "config.json").read_text()
    (folder / "changed" / "config.json").write_text(text.replace("{", "[", 1))
    (folder / "broken" / "manifest.json").write_text("{")
    shutil.copytree(trained.folder, folder / "torn")
    for weights in (folder / "torn").glob("checkpoints/*/model.safetensors"):
        os.truncate(weights, 1000)
    with locked(folder / "locked"):
        before = set(folder.rglob("*"))
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            input="\n".join(lines),
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert set(folder.rglob("*")) == before
    assert done.returncode == 0, done.stderr
    return dict(zip(order, map(tuple, json.loads(done.stdout)), strict=True))


def test_a_mistake_is_named_before_torch_is_imported(
    results: dict[str, tuple[int | str, str, str]], subtests: pytest.Subtests
) -> None:
    for line, words in LINES.items():
        with subtests.test(line):
            code, out, err = results[line]
            assert (code, out) == (2, "") and err.startswith("glassformer: ") and err.count("\n") == 1, (code, out, err)
            assert words in err


def test_the_table_has_every_verb() -> None:
    for verb in VERBS:
        main = import_module(f"glassformer.apps.cli.{verb}").main
        for name in [f"{verb} {inner}" for inner in main.verbs] if isinstance(main, Group) else [verb]:
            assert any(f"{line} ".startswith(f"{name} ") for line in LINES), name
