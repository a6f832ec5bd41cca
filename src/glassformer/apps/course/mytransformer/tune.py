"""A model that answers: labels, LoRA, preferences and rewards.

Hu et al. 2021 (LoRA); Rafailov et al. 2023 (DPO); Shao et al. 2024 (GRPO).
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def answer_labels(ids: Tensor, is_assistant: Tensor) -> Tensor:
    """Return the labels (B, T - 1) for the inputs ids[:, :-1]: the next id where it is
    scored, otherwise -100.

    `is_assistant` (B, T) is True for the tokens that the assistant wrote, but not for
    the end token, which follows the last of these tokens; no answer is empty. The
    tokens of the assistant and the end token of each answer are scored, so that a model
    learns to stop. All other tokens, which the user or the template wrote, are not
    scored.
    """
    is_scored = is_assistant[:, 1:] | is_assistant[:, :-1]
    return ids[:, 1:].masked_fill(~is_scored, -100)


def lora(x: Tensor, weight: Tensor, a: Tensor, b: Tensor, alpha: float) -> Tensor:
    """Return the output of a linear layer with LoRA, x Wᵀ + (α / R) x Aᵀ Bᵀ: (…, O).

    `x` (…, I), `weight` W (O, I), `a` (R, I) and `b` (O, R), where R is the rank.
    Matrix W is frozen: no gradient reaches it.
    """
    return x @ weight.detach().mT + alpha / len(a) * (x @ a.mT @ b.mT)


def merged_lora(weight: Tensor, a: Tensor, b: Tensor, alpha: float) -> Tensor:
    """Return the matrix (O, I) of the plain linear layer that gives the same outputs as
    `lora`.

    `weight` (O, I), `a` (R, I) and `b` (O, R), where R is the rank.
    """
    return weight + alpha / len(a) * (b @ a)


def dpo_loss(
    policy_chosen: Tensor,
    policy_rejected: Tensor,
    reference_chosen: Tensor,
    reference_rejected: Tensor,
    beta: float,
) -> Tensor:
    """Return the mean loss of direct preference optimization, -log σ(β h), a tensor
    without axes.

    The arguments are log-probabilities (B,) of whole answers: of the chosen one and of
    the rejected one, by the model that is trained (the policy) and by the reference. h
    is log p(chosen) - log p(rejected) of the policy, minus the same difference of the
    reference. The loss is finite for large h of both signs.
    """
    h = (policy_chosen - policy_rejected) - (reference_chosen - reference_rejected)
    return -F.logsigmoid(beta * h).mean()


def group_advantages(rewards: Tensor) -> Tensor:
    """Return the advantage of each answer in its group: the reward minus the mean,
    divided by the standard deviation.

    `rewards` (P, G) are of G answers to each of P prompts; a row is a group. The
    squared differences are divided by G - 1 in the standard deviation, and 0.0001 is
    added to it, so that equal rewards have the advantage 0.
    """
    centred = rewards - rewards.mean(dim=1, keepdim=True)
    return centred / (rewards.std(dim=1, keepdim=True) + 1e-4)


def template(messages: list[tuple[str, str]], *, ask: bool = False) -> str:
    """Return a conversation as one text, in the form of ChatML.

    Each message is a role and a text: <|im_start|>role, a new line, the text,
    <|im_end|> and a new line. With `ask`, <|im_start|>assistant and a new line follow,
    so that the model continues with its answer.
    """
    texts = [f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in messages]
    return "".join(texts) + ("<|im_start|>assistant\n" if ask else "")


def log_p_of_labels(model: nn.Module, ids: Tensor, labels: Tensor) -> Tensor:
    """Return the log-probability of each label (B, T); 0 where the label is -100."""
    log_p = model(ids).log_softmax(dim=-1)
    of_label = log_p.gather(-1, labels.clamp(min=0)[..., None])[..., 0]
    return of_label.masked_fill(labels == -100, 0.0)


def grpo_loss(
    log_p: Tensor, old_log_p: Tensor, advantages: Tensor, is_scored: Tensor, clip: float
) -> Tensor:
    """Return the clipped loss of GRPO without a reference model, a tensor without axes.

    `log_p` and `old_log_p` (B, T) are log-probabilities of the tokens by the model now
    and by the model that wrote them; only `log_p` gets a gradient. r is the quotient of
    the probabilities. A token gives -min(r A, clip(r, 1 - c, 1 + c) A), with the
    advantage A of its answer, `advantages` (B,). The loss is the mean over the tokens
    of an answer that are scored, `is_scored` (B, T), at least one, and then over the
    answers (Shao et al., equation 3).
    """
    ratio = (log_p - old_log_p.detach()).exp()
    a = advantages[:, None]
    losses = -torch.minimum(ratio * a, ratio.clamp(1 - clip, 1 + clip) * a)
    of_answers = (losses * is_scored).sum(dim=1) / is_scored.sum(dim=1)
    return of_answers.mean()


class LoRA(nn.Module):
    """A frozen linear layer with a trained addition of rank R: `lora` with its weights.

    Parameters: `layer`, the linear layer, without gradients; `a` (R, I), drawn with the
    standard deviation 1 / √I; `b` (O, R), zeros, so that nothing changes at first.
    """

    def __init__(self, layer: nn.Linear, rank: int, alpha: float) -> None:
        super().__init__()
        self.layer, self.alpha = layer.requires_grad_(False), alpha
        self.a = nn.Parameter(
            torch.randn(rank, layer.in_features) / layer.in_features**0.5
        )
        self.b = nn.Parameter(torch.zeros(layer.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + self.alpha / len(self.a) * (x @ self.a.T @ self.b.T)

    def merged(self) -> nn.Linear:
        """Return a linear layer that gives the same outputs."""
        out, into = self.layer.weight.shape
        new = nn.Linear(into, out, bias=self.layer.bias is not None)
        weight = merged_lora(self.layer.weight, self.a, self.b, self.alpha)
        new.load_state_dict(self.layer.state_dict() | {"weight": weight.detach()})
        return new
