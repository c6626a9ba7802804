"""The papers' guarantees as numbers: one function a theorem, its constants as keywords.

[FedRes] Agarwal, Langford and Wei 2020, "Federated Residual Learning".
[FedOMD] Mitra, Hassani and Pappas, "Online Federated Learning".
[FedSEA] Sahu, Jawanpuria and Sharma 2026, "FedSEA: Achieving Benefit of Parallelization in Federated Online
Learning".
[OFedIQ] Kwon, Park and Hong, "Tighter Regret Analysis and Optimization of Online Federated Learning".
[DynFed] Rizk, Vlaski and Sayed, "Dynamic Federated Learning".
† marks constants worked out here where the paper hides them in O(·). All models start at 0: otherwise a norm
‖w*‖ is the distance ‖w_1 − w*‖. A step that breaks a theorem's condition is refused.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fedres import checks
from fedres.checks import Array


def fedres_sgd(
    *,
    n_rounds: int,
    global_norm: float,
    local_norms: Array,
    step_size: float,
    local_step_sizes: float | Array,
    variances: float | Array,
    delays: float | Array,
    smoothness: float,
    gradient_bound: float,
    radius: float,
    batch: int = 1,
) -> float:
    """Return † the bound of [FedRes, theorem 2] on the average regret.

    ‖w_g*‖ ``global_norm``; one entry a client or one for all: ‖w_i*‖ ``local_norms`` (its length is P), η_i
    ``local_step_sizes``, σ_i² ``variances``, τ_i ``delays``; η ``step_size``, γ ``smoothness``,
    G ``gradient_bound``, D ``radius``. With mini-batches of b ``batch`` rounds it is that of T/b rounds with gradients
    of variance σ²/b and delays ⌈τ/b⌉ + 1 [FedRes, section 4].
    """
    checks.whole("n_rounds", n_rounds)
    checks.whole("batch", batch)
    checks.positive("step_size", step_size)
    norms = checks.array("local_norms", local_norms, (None,))
    P = len(norms)
    own, var, tau = (np.broadcast_to(value, P) for value in (local_step_sizes, variances, delays))
    if batch > 1:
        n_rounds, var, tau = n_rounds // batch, var / batch, np.ceil(tau / batch) + 1
    start = global_norm**2 / (2 * step_size) + (norms**2 / (2 * own)).sum()
    noise = n_rounds * ((step_size + own) * var).sum()
    moves = (step_size * P * gradient_bound) ** 2 + (own * gradient_bound) ** 2
    drift = smoothness / 2 * n_rounds * (moves * (1 + tau**2)).sum()
    ends = 15 * radius * gradient_bound * (tau + 1).sum()
    return float((start + noise + drift + ends) / (P * n_rounds))


def fedres_erm_rate(
    *,
    n_rounds: int,
    global_dim: int,
    local_dims: Array,
    variance: float,
    delay: float,
    smoothness: float,
    radius: float,
) -> float:
    """Return the rate of [FedRes, theorem 1, eq. 21] on the average regret: its three terms, hidden factors left out.

    That leaves out constants and powers of log T, so it says how the bound scales, not what it is.
    d ``global_dim``, d_i ``local_dims`` (its length is P), σ² ``variance`` of the losses, τ ``delay``,
    γ ``smoothness``, D ``radius``.
    """
    checks.whole("n_rounds", n_rounds)
    dims = checks.array("local_dims", local_dims, (None,))
    total, bent = global_dim + float(dims.sum()), 1 + radius**2 * smoothness
    noise = math.sqrt(total * variance / (len(dims) * n_rounds))
    return float(noise + bent * (delay / n_rounds) ** 0.75 + (bent * delay + total) / n_rounds)


def fedres_bandit(*, n_rounds: int, n_actions: int, period: int, delays: float | Array, **sgd: Any) -> float:
    """Return † the bound of [FedRes, theorem 3] on the average regret of exploring in every B-th round.

    1/B + 2K√R, where R is the bound of theorem 2 on T/B rounds with delays ⌈τ_i/B⌉ [FedRes, appendix D]. K
    ``n_actions``, B ``period``; ``sgd`` is what ``fedres_sgd`` takes besides. ``step_sizes.fedres_bandit_period`` is
    the paper's B.
    """
    checks.whole("n_actions", n_actions)
    checks.whole("period", period)
    waits = np.ceil(np.asarray(delays) / period)
    error = fedres_sgd(n_rounds=max(n_rounds // period, 1), delays=waits, **sgd)
    return 1 / period + 2 * n_actions * math.sqrt(error)


def fedogd(
    *,
    n_rounds: int,
    n_clients: int,
    comparator_norm: float,
    sigma_diff2: float,
    smoothness: float,
    step_size: float,
) -> float:
    """Return the bound of [OFedIQ, theorem 1 with p = 1] on the sum regret, for η < 1/(2β).

    ‖w*‖ ``comparator_norm``, σ²_diff ``sigma_diff2``, β ``smoothness``, η ``step_size``.
    """
    return ofedavg(
        n_rounds=n_rounds,
        n_clients=n_clients,
        comparator_norm=comparator_norm,
        sigma_diff2=sigma_diff2,
        smoothness=smoothness,
        p_min=1.0,
        step_size=step_size,
    )


def ofedavg(
    *,
    n_rounds: int,
    n_clients: int,
    comparator_norm: float,
    sigma_diff2: float,
    smoothness: float,
    p_min: float,
    step_size: float,
) -> float:
    """Return the bound of [OFedIQ, theorem 1] on the expected sum regret, for η < p_min/(2β).

    ‖w*‖ ``comparator_norm``, σ²_diff ``sigma_diff2``, β ``smoothness``, η ``step_size``.
    """
    checks.probability("p_min", p_min)
    _below(step_size, p_min / (2 * smoothness), "p_min/(2β)")
    return n_clients * (comparator_norm**2 / (2 * step_size) + step_size * n_rounds * sigma_diff2 / p_min)


def ofediq(
    *,
    n_rounds: int,
    n_clients: int,
    comparator_norm: float,
    sigma_diff2: float,
    smoothness: float,
    period: int,
    p_min: float,
    p_sum: float,
    quantizer_variance: float,
    step_size: float,
) -> float:
    """Return the bound of [OFedIQ, theorem 2] on the expected sum regret, for η < p_min/(4βLR).

    ‖w*‖ ``comparator_norm``, σ²_diff ``sigma_diff2``, β ``smoothness``, L ``period``,
    σ_q² ``quantizer_variance``, η ``step_size``. The printed condition lacks L; at L > 1 a heuristic.
    """
    R = ofediq_spread(n_clients=n_clients, p_min=p_min, p_sum=p_sum, quantizer_variance=quantizer_variance)
    _below(step_size, p_min / (4 * smoothness * period * R), "p_min/(4βLR)")
    noise = 2 * step_size * period * R / p_min + 3 * smoothness * step_size**2 * period * (period - 1)
    return n_clients * (comparator_norm**2 / (2 * step_size) + noise * n_rounds * sigma_diff2)


def ofediq_spread(*, n_clients: int, p_min: float, p_sum: float, quantizer_variance: float) -> float:
    """Return R = 1 + σ_q²(p_sum − p_min + 1)/K: what quantizing multiplies the noise by [OFedIQ, eq. 40]."""
    checks.whole("n_clients", n_clients)
    checks.probability("p_min", p_min)
    checks.not_negative("quantizer_variance", quantizer_variance)
    if not n_clients * p_min * (1 - 1e-12) <= p_sum <= n_clients:
        raise ValueError(f"p_sum must be from n_clients * p_min to n_clients, got {p_sum}")
    return 1 + quantizer_variance * (p_sum - p_min + 1) / n_clients


def fedomd_convex(*, n_rounds: int, diameter: float, lipschitz: float, period: int, step_size: float) -> float:
    """Return the bound of [FedOMD, theorem 1] on the mean regret: D²/η + 5ηL²τT.

    D ``diameter`` with D² = sup_u B_ψ(u, x_1), L ``lipschitz``, τ ``period``, η ``step_size``.
    """
    checks.positive("step_size", step_size)
    return diameter**2 / step_size + 5 * step_size * lipschitz**2 * period * n_rounds


def fedomd_strongly_convex(*, n_rounds: int, lipschitz: float, period: int, strong_convexity: float) -> float:
    """Return † (9 + 8τ)L²(1 + ln T)/σ, from the proof of [FedOMD, theorem 2], which prints 17τ for 9 + 8τ.

    L ``lipschitz``, τ ``period``, σ ``strong_convexity`` relative to ψ: 2μ when ψ = ½‖·‖².
    """
    checks.positive("strong_convexity", strong_convexity)
    checks.whole("period", period)
    return (9 + 8 * period) * lipschitz**2 * (1 + math.log(n_rounds)) / strong_convexity


def fedomd_excess_risk(
    *,
    n_rounds: int,
    n_clients: int,
    diameter: float,
    lipschitz: float,
    period: int,
    loss_bound: float,
    failure: float,
) -> float:
    """Return the bound of [FedOMD, theorem 3] on L(x̂_T) − min L, for the η of theorem 1 and with probability 1 − δ.

    5LD√(τ/T) + 2B√(2 ln(2m/δ)/T), where x̂_T is ``regret.AverageIterate``. m ``n_clients``, B ``loss_bound``, the
    largest loss, δ ``failure``.
    """
    checks.whole("n_rounds", n_rounds)
    checks.probability("failure", failure)
    learning = 5 * lipschitz * diameter * math.sqrt(period / n_rounds)
    return learning + 2 * loss_bound * math.sqrt(2 / n_rounds * math.log(2 * n_clients / failure))


def fedsea_convex(
    *,
    n_rounds: int,
    n_clients: int,
    distance: float,
    smoothness: float,
    variance: float,
    spatial: float,
    temporal: float,
    period: int,
    step_size: float,
) -> float:
    """Return † the bound of [FedSEA, theorem 1] on the expected mean regret, under lemma 4's condition on η.

    D ``distance`` ‖x_1 − x*‖, L ``smoothness``, σ̄² ``variance``, ζ̄² ``spatial``, K̄² ``temporal``,
    τ ``period``, η ``step_size``.
    """
    checks.positive("step_size", step_size)
    L, eta, T, local = smoothness, step_size, n_rounds, period - 1
    limit = min(1 / (8 * L), 1 / (4 * math.sqrt(6) * L * local) if local else math.inf)
    if eta > limit * (1 + 1e-12):
        raise ValueError(f"step_size must be at most min(1/(8L), 1/(4√6 L(τ-1))) = {limit:g}, got {eta}")
    wide = 1 + 2 * eta * L
    a = 2 * eta * L + 12 * eta**2 * L**2 * wide * local**2
    noise = (eta / (2 * n_clients) + 2 * eta**2 * L * wide * local) * T * variance
    apart = 6 * eta**2 * L * wide * local**2 * T * spatial
    virtual = (distance**2 / (2 * eta) + noise + apart + a * T * temporal) / (1 - a)  # S, of the mean model
    lag = 2 * eta**2 * local * T * variance
    lag += 6 * eta**2 * local**2 * (T * spatial + 2 * L * (virtual + T * temporal))
    return virtual + L / 2 * lag / (1 - 6 * eta**2 * local**2 * L**2)  # [FedSEA, lemmas 1 and 3]


def fedsea_strongly_convex(
    *,
    n_rounds: int,
    n_clients: int,
    distance: float,
    mu: float,
    smoothness: float,
    variance: float,
    spatial: float,
    temporal: float,
    period: int,
) -> float:
    """Return † the bound of [FedSEA, theorem 2] on the expected mean regret, for ``step_sizes.fedsea_strongly_convex``.

    D ``distance`` ‖x_1 − x*‖, μ ``mu``, L ``smoothness``, and the largest values over time of σ² ``variance``,
    ζ² ``spatial`` and K² ``temporal``; τ ``period``. The shift t_s of the steps takes the place of the error up to t_0:
    the paper's sum (23) then starts with μ t_s D²/4. The terms with f_t(x_t) − f_t(x*) on the right of (24) have
    coefficients that fall with t, and (24) holds for every horizon: they cost a factor 1/(1 − a), a the first of them.
    """
    checks.whole("n_rounds", n_rounds)
    checks.positive("mu", mu)
    L, local = smoothness, period - 1
    kappa = L / mu
    shift = max(16 * kappa, 8 * kappa * local, 18.6 * kappa**1.5 * local)  # t_s
    eta = 2 / (mu * (np.arange(1, n_rounds + 1) + shift))
    q = 6 * local**2 * float(eta[0]) ** 2 * L**2
    lag = (L**2 / mu + L**2 * eta) * eta**2 / (1 - q)  # cost of V_t [FedSEA, eq. 23 and lemma 5]
    apart = 2 * local * variance + 6 * local**2 * (spatial + 2 * L * temporal)
    a = float(2 * L * eta[0] + 12 * L * local**2 * lag[0])
    noise = float((eta / 2).sum()) * (variance / n_clients + 4 * L * temporal)
    virtual = (mu * shift * distance**2 / 4 + noise + float(lag.sum()) * apart) / (1 - a)  # of the mean model
    consensus = (float((eta**2).sum()) * apart + 12 * L * local**2 * float(eta[0]) ** 2 * virtual) / (1 - q)
    return float(virtual + L / 2 * consensus)  # [FedSEA, lemma 1]


def dynamic_fedavg_noise(
    *,
    gradients: Array,
    variances: Array,
    participants: int,
    samples: int | Array,
    batch: int | Array,
    epochs: int | Array = 1,
) -> float:
    """Return † the exact E‖s‖² of the gradient noise [DynFed, eq. 20].

    ∇P_k ``gradients`` (K, D); Var_k ``variances`` (K,), the mean of ‖∇Q_k − ∇P_k‖² over the buffer; L
    ``participants``; N_k ``samples``, B_k ``batch``, E_k ``epochs``, for all clients or one each.
    """
    gradients = checks.array("gradients", gradients, (None, None))
    K = len(gradients)
    variances = checks.array("variances", variances, (K,))
    if not 1 <= participants <= K:
        raise ValueError(f"participants must be from 1 to {K}, got {participants}")
    N, B, E = (np.broadcast_to(value, K) for value in (samples, batch, epochs))
    if (B < 1).any() or (B > N).any() or (E < 1).any():
        raise ValueError(f"batch must be from 1 to samples and epochs at least 1, got {batch}, {samples}, {epochs}")
    model = ((gradients - gradients.mean(axis=0)) ** 2).sum(axis=1).mean()
    tau = (N - B) / (np.maximum(N - 1, 1) * B * E)  # τ_{s,k}
    return float(((K - participants) / max(K - 1, 1) * model + (tau * variances).mean()) / participants)


def dynamic_fedavg_msd(*, step_size: float, noise: float, drift: float) -> float:
    """Return † the exact limit of E‖w_i − w_i°‖² for P_k = ½‖w − w_k°‖² and E = 1 ([DynFed, theorem 1]).

    μ ``step_size`` in (0, 2), S ``noise``, Q = E‖q‖² ``drift``.
    """
    if not 0 < step_size < 2:
        raise ValueError(f"step_size must be in (0, 2), got {step_size}")
    return (step_size**2 * noise + drift * (1 - step_size) ** 2) / (2 * step_size - step_size**2)


def _below(step_size: float, limit: float, rule: str) -> None:
    checks.positive("step_size", step_size)
    if step_size >= limit:
        raise ValueError(f"step_size must be below {rule} = {limit:g}, got {step_size}")
