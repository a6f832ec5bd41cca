"""The benchmark of answers: a model, transformers and the server write the same, and another model does not."""

import copy
from dataclasses import replace
from pathlib import Path

import torch

from benchmark_files import load
from glassformer import api
from glassformer.apps.serving.application import application
from glassformer.apps.serving.settings import Limits
from interop.family_configs import FAMILY_CONFIGS
from runs import conversation_run
from serving.served import RunningServer


def test_answers_of_one_model_are_equal_and_those_of_another_are_not(tmp_path: Path) -> None:
    run = conversation_run(tmp_path, max_steps=40, eval_every=40)
    run = replace(run, model=replace(FAMILY_CONFIGS["Llama"], max_len=128, vocab_size=0))
    model, answers, limits = api.train(run, tmp_path / "run").model, load("answers"), Limits(grace=1)
    other = replace(model, folder=None, network=copy.deepcopy(model.network))
    noise = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in other.network.parameters():
            parameter += torch.randn(parameter.shape, generator=noise)
    asked = [("red dog", "blue cat"), ("the house", "two trees")]
    server = RunningServer(application({"m": model}, limits), limits)
    try:
        same = answers.compared(model, f"{server.address}/v1", asked, 6)
        of_another_server = answers.compared(other, f"{server.address}/v1", asked, 6)
    finally:
        server.close()
    assert same == [(True,) * len(answers.COLUMNS)] * 4 and len(answers.ASKED) == 50
    assert all(all(row[:3]) for row in of_another_server) and not all(row[3] for row in of_another_server)
