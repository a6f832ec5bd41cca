"""Every recurrent variant against its paper's equations, for one row, token and source position at a time."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from configs import RECURRENT, Recorder, random_inputs, random_model
from glassformer.config.recurrent import AttendAfter, AttendBefore, NoAttention
from glassformer.models.recurrent import RecurrentModel
from tolerances import assert_close

Weights = dict[str, Tensor]


def close(ours: Tensor, expected: Tensor) -> None:
    """Check that two tensors are equal up to the rounding of float64."""
    assert_close(ours, expected)


def cell(kind: str, p: Weights, at: str, x: Tensor, state: list[Tensor]) -> list[Tensor]:
    a = p[at.format("weight_ih")] @ x + p[at.format("bias_ih")]
    b = p[at.format("weight_hh")] @ state[0] + p[at.format("bias_hh")]
    d = len(state[0])
    if kind == "rnn":
        return [torch.tanh(a + b)]
    if kind == "gru":
        r, z = torch.sigmoid(a[:d] + b[:d]), torch.sigmoid(a[d : 2 * d] + b[d : 2 * d])
        return [(1 - z) * torch.tanh(a[2 * d :] + r * b[2 * d :]) + z * state[0]]
    i, f, g, o = (a + b)[:d], (a + b)[d : 2 * d], (a + b)[2 * d : 3 * d], (a + b)[3 * d :]
    c = torch.sigmoid(f) * state[1] + torch.sigmoid(i) * torch.tanh(g)
    return [torch.sigmoid(o) * torch.tanh(c), c]


def encoded(model: RecurrentModel, p: Weights, source: list[int]) -> tuple[list[Tensor], list[list[Tensor]]]:
    """Return the encoder's output at each source position, and the last state of each layer."""
    config, ends = model.config, []
    xs = [p["encoder.tokens.weight"][token] for token in source]
    xs = xs[::-1] if config.reverse_source else xs
    for layer in range(config.n_layers):
        both, last = [], []
        for way in ("", "_reverse")[: 2 if config.bidirectional else 1]:
            state = [torch.zeros(config.d_encoder).double() for _ in range(2 if config.cell == "lstm" else 1)]
            outputs = []
            for x in xs[::-1] if way else xs:
                state = cell(config.cell, p, f"encoder.cells.{{}}_l{layer}{way}", x, state)
                outputs.append(state[0])
            both.append(outputs[::-1] if way else outputs)
            last.append(state)
        xs = [torch.cat(at) for at in zip(*both, strict=True)]
        ends.append([torch.cat(parts) for parts in zip(*last, strict=True)])
    return (xs[::-1] if config.reverse_source else xs), ends


def begun(p: Weights, ends: list[list[Tensor]]) -> list[list[Tensor]]:
    """Return the decoder's first states: the encoder's last states, or the output of the bridge."""
    if "bridge.hidden.0.weight" not in p:
        return ends
    states = []
    for i, (h, *c) in enumerate(ends):
        states.append([torch.tanh(p[f"bridge.hidden.{i}.weight"] @ h + p[f"bridge.hidden.{i}.bias"])])
        states[-1] += [p[f"bridge.cell.{i}.weight"] @ part + p[f"bridge.cell.{i}.bias"] for part in c]
    return states


def seen(model: RecurrentModel, p: Weights, h: Tensor, memory: list[Tensor]) -> Tensor:
    w = {name.removeprefix("decoder.cross_attn."): x for name, x in p.items() if "cross_attn" in name}
    match model.config.attention.score:
        case "additive":
            scores = [w["vector"] @ torch.tanh(w["q_proj.weight"] @ h + w["k_proj.weight"] @ s) for s in memory]
        case "dot":
            scores = [h @ s for s in memory]
        case "general":
            scores = [h @ w["k_proj.weight"] @ s for s in memory]
        case "scaled_dot":
            q = w["q_proj.weight"] @ h
            scores = [q @ (w["k_proj.weight"] @ s) / len(q) ** 0.5 for s in memory]
            memory = [w["v_proj.weight"] @ s for s in memory]
    return sum(share * s for share, s in zip(torch.stack(scores).softmax(0), memory, strict=True))


def by_hand(model: RecurrentModel, source: list[int], target: list[int]) -> Tensor:
    """Compute logits (T, V) by Sutskever and Cho, Bahdanau, or Luong, as `attention` selects."""
    p, attention = dict(model.state_dict()), model.config.attention
    memory, ends = encoded(model, p, source)
    states, summary = begun(p, ends), ends[-1][0]
    h_tilde, logits = torch.zeros(model.config.d_decoder).double(), []
    for token in target:
        y = x = p["decoder.tokens.weight"][token]
        context = summary
        if isinstance(attention, AttendBefore):
            context = seen(model, p, states[-1][0], memory)
            x = torch.cat((y, context))
        elif isinstance(attention, NoAttention) and attention.context_every_step:
            x = torch.cat((y, summary))
        elif isinstance(attention, AttendAfter) and attention.input_feeding:
            x = torch.cat((y, h_tilde))
        for layer in range(model.config.n_layers):
            states[layer] = cell(model.config.cell, p, f"decoder.cells.{{}}_l{layer}", x, states[layer])
            x = states[layer][0]
        s = read = states[-1][0]
        if isinstance(attention, AttendAfter):
            context = seen(model, p, s, memory)
            w, b = p["decoder.combine.weight"], p["decoder.combine.bias"]
            read = h_tilde = torch.tanh(w @ torch.cat((context, s)) + b)
        elif attention.deep_output:
            u, v, c = (p[f"decoder.deep_output.{part}_proj.weight"] for part in ("state", "token", "context"))
            t = u @ s + p["decoder.deep_output.state_proj.bias"] + v @ y + c @ context
            read = torch.stack([torch.max(t[j], t[j + len(t) // 2]) for j in range(len(t) // 2)])
        logits.append(p["output.proj.weight"] @ read)
    return torch.stack(logits)


@pytest.mark.parametrize("name", RECURRENT)
def test_logits_follow_the_equations(name: str) -> None:
    model = random_model(name)
    inputs = random_inputs(model, 2, 5, 4)
    logits = model(inputs.token_ids, **inputs.others)
    assert logits.shape == (2, 5, 19)
    for row in range(2):
        expected = by_hand(model, inputs.others["source_ids"][row].tolist(), inputs.token_ids[row].tolist())
        close(logits[row], expected)


@pytest.mark.parametrize(("kind", "module"), [("rnn", nn.RNN), ("gru", nn.GRU), ("lstm", nn.LSTM)])
def test_a_model_without_attention_equals_two_pytorch_modules(kind: str, module: type[nn.RNNBase]) -> None:
    """The encoder's last state is the decoder's first; the loop with a tap gives the same."""
    model = random_model(replace(RECURRENT["sutskever"], cell=kind, reverse_source=False))
    encoder, decoder = (module(6, 16, 2, batch_first=True).double() for _ in range(2))
    encoder.load_state_dict(model.encoder.cells.state_dict())
    decoder.load_state_dict(model.decoder.cells.state_dict())
    inputs = random_inputs(model)
    _, last = encoder(model.encoder.tokens(inputs.others["source_ids"]))
    expected = model.head(decoder(model.decoder.tokens(inputs.token_ids), last)[0])
    for tap in (None, Recorder()):
        close(model(inputs.token_ids, **inputs.others, tap=tap), expected)
