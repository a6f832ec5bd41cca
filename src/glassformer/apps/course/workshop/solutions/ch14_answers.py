"""Models that answer: labels of conversations, LoRA, preferences and rewards.

Hu et al. 2021 (LoRA); Rafailov et al. 2023 (DPO); Shao et al. 2024 (GRPO).
"""

from torch import Tensor
from torch.nn import functional as F


def answer_labels(ids: Tensor, is_assistant: Tensor) -> Tensor:
    """Return the labels (B, T - 1) for the inputs ids[:, :-1]: the next id where it is scored, otherwise -100.

    `is_assistant` (B, T) is True for the tokens that the assistant wrote, but not for the end token, which follows the
    last of these tokens. The tokens of the assistant and the end token of each answer are scored, so that a model
    learns to stop. All other tokens, which the user or the template wrote, are not scored.
    """
    is_scored = is_assistant[:, 1:] | is_assistant[:, :-1]
    return ids[:, 1:].masked_fill(~is_scored, -100)


def lora(x: Tensor, weight: Tensor, a: Tensor, b: Tensor, alpha: float) -> Tensor:
    """Return the output of a linear layer with LoRA, x Wᵀ + (α / R) x Aᵀ Bᵀ: (…, O).

    `x` (…, I), `weight` W (O, I), `a` (R, I) and `b` (O, R), where R is the rank. Matrix W is frozen: no gradient
    reaches it.
    """
    return x @ weight.detach().mT + alpha / len(a) * (x @ a.mT @ b.mT)


def merged_lora(weight: Tensor, a: Tensor, b: Tensor, alpha: float) -> Tensor:
    """Return the matrix (O, I) of the plain linear layer that gives the same outputs as `lora`.

    `weight` (O, I), `a` (R, I) and `b` (O, R), where R is the rank.
    """
    return weight + alpha / len(a) * (b @ a)


def dpo_loss(
    policy_chosen: Tensor, policy_rejected: Tensor, reference_chosen: Tensor, reference_rejected: Tensor, beta: float
) -> Tensor:
    """Return the mean loss of direct preference optimization, -log σ(β h), a tensor without axes.

    The arguments are log-probabilities (B,) of whole answers: of the chosen one and of the rejected one, by the model
    that is trained (the policy) and by the reference. h is log p(chosen) - log p(rejected) of the policy, minus the
    same difference of the reference. The loss is finite for large h of both signs.
    """
    h = (policy_chosen - policy_rejected) - (reference_chosen - reference_rejected)
    return -F.logsigmoid(beta * h).mean()


def group_advantages(rewards: Tensor) -> Tensor:
    """Return the advantage of each answer in its group: the reward minus the mean, divided by the standard deviation.

    `rewards` (P, G) are of G answers to each of P prompts; a row is a group. The squared differences are divided by
    G - 1 in the standard deviation, and 0.0001 is added to it, so that equal rewards have the advantage 0.
    """
    centred = rewards - rewards.mean(dim=1, keepdim=True)
    return centred / (rewards.std(dim=1, keepdim=True) + 1e-4)
