"""Hidden channels that carry position: the statistics of algorithm 1 in arXiv:2406.02536.

Input is the mean hidden state of every decoder layer at every position, over many texts, so that
what words mean has averaged out and what their position means remains. A channel that carries
position then rises or falls along the text, smoothly, in many layers.

Three rules are those of the authors' code, where the paper says less: a trend is that of the fitted
values; values are scaled to [0, 1] and smoothed with a Savitzky-Golay filter before the second
differences of equation 3, which has neither; and layers 0, 1 and the last one are left out.

All arithmetic is float64: a channel's slope can be a millionth of its size. The authors fit in
float32, where rounding may break the trend of a curve that is flat somewhere.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# As in the authors' code, which leaves out the last one too; the paper does not say so.
_FIRST_LAYER = 2
_NOISE = 1e-10  # of the scaled range: what float64 leaves of a difference that is zero


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionalChannel:
    """A channel whose mean value drifts with position.

    Attributes:
        channel: index into the hidden size.
        direction: 1 where it rises along the text in most of `layers`, -1 where it falls.
        layers: 0-based decoder layers in which it does either.
        smoothness: sum of squared second differences, pooled over `layers`; lower is smoother.
    """

    channel: int
    direction: int
    layers: tuple[int, ...]
    smoothness: float


def channel_trends(hidden: Tensor, *, skip: int = 100) -> Tensor:
    """Whether each channel rises or falls along the text.

    A channel rises in a layer where its least-squares cubic fit, read at the positions, never falls
    from one position to the next: it may turn between the last two. A fit that is flat everywhere
    neither rises nor falls.

    Args:
        hidden: mean hidden states ``[layers, n, hidden]``.
        skip: positions left out at the start, where outliers are.

    Returns:
        int8 ``[layers, hidden]``: 1 rises, -1 falls, 0 neither.

    Raises:
        ValueError: fewer than 4 positions remain.
    """
    _require_positions(hidden, skip, at_least=4)
    count = hidden.shape[1] - skip
    # From -1 to 1, because cubes of positions in the thousands ruin the fit.
    x = torch.linspace(-1, 1, count, dtype=torch.float64, device=hidden.device)
    powers = torch.stack((torch.ones_like(x), x, x**2, x**3), dim=1)
    fit, changes = torch.linalg.pinv(powers), powers.diff(dim=0)  # [4, n], [n - 1, 4]
    trends = []
    for layer in hidden:  # one at a time: float64 copies of all layers would be large
        steps = changes @ (fit @ _scaled(layer[skip:].double()))  # [n - 1, hidden]
        rises, falls = ((sign * steps >= -_NOISE).all(dim=0) for sign in (1, -1))
        trends.append(rises.to(torch.int8) - falls.to(torch.int8))  # both where it is flat
    return torch.stack(trends)


def channel_smoothness(
    hidden: Tensor, *, skip: int = 100, window: int = 10, order: int = 3
) -> Tensor:
    """Sum of squared second differences of each channel, scaled to [0, 1] and smoothed.

    The sum is equation 3; scaling and smoothing are the authors' code.

    Args:
        hidden: mean hidden states ``[layers, n, hidden]``.
        skip: positions left out at the start.
        window: positions in the smoothing window.
        order: degree of the smoothing polynomial.

    Returns:
        float64 ``[layers, hidden]``; lower is smoother. 0 for a channel that never changes.

    Raises:
        ValueError: fewer positions remain than the window is long.
    """
    _require_positions(hidden, skip, at_least=window)
    scores = []
    for layer in hidden:
        scaled = _scaled(layer[skip:].double())
        smooth = savitzky_golay(scaled.T, window=window, order=order)  # [hidden, n]
        scores.append(smooth.diff(n=2, dim=1).square().sum(dim=1))
    return torch.stack(scores)


def savitzky_golay(values: Tensor, *, window: int, order: int) -> Tensor:
    """Smooth along the last axis: each value becomes that of a polynomial fitted around it.

    Positions near an end, without a whole window around them, take the polynomial of the first or
    last window. An even window has no middle position: the polynomial is read between the two.

    Args:
        values: ``[..., n]`` with ``n >= window``.
        window: positions each fit uses.
        order: degree of the polynomials, below `window`.
    """
    half = window // 2
    x = torch.arange(window, dtype=values.dtype, device=values.device) - (window - 1) / 2
    powers = x[:, None] ** torch.arange(order + 1, device=values.device)  # [window, order + 1]
    fit = torch.linalg.pinv(powers)
    middle = fit[0]  # weights of the fitted value at x = 0
    at_positions = powers @ fit  # [window, window]: fitted values at the window's own positions
    inner = values.unfold(-1, window, 1) @ middle  # [..., n - window + 1]
    if window % 2 == 0:
        inner = inner[..., 1:]
    start = values[..., :window] @ at_positions[:half].T
    end = values[..., -window:] @ at_positions[-half:].T
    return torch.cat((start, inner, end), dim=-1)


def rank_channels(
    hidden: Tensor,
    *,
    skip_trend: int = 100,
    skip_smoothness: int = 100,
    layers: range | None = None,
    monotone: bool = True,
    reference_code: bool = False,
) -> tuple[PositionalChannel, ...]:
    """Candidates for positional channels, the smoothest first.

    A candidate has a trend, of either direction as algorithm 1 says, in more than a quarter of the
    model's layers, counted among `layers`. Its smoothness is added up over these.

    Args:
        hidden: mean hidden states ``[L, n, hidden]``, one layer per decoder layer: without the
            embeddings that transformers puts before them.
        skip_trend: positions left out at the start for the trend (authors' code: 300).
        skip_smoothness: positions left out at the start for the smoothness (authors' code: 200).
        layers: 0-based layers that are looked at; by default all but the first two and the last,
            as in the authors' code.
        monotone: False for the paper's ablation: layers count in which a channel changes at all.
        reference_code: count layers of the channel's direction only, and take the smallest
            smoothness, as the authors' code does.

    Raises:
        ValueError: too few positions remain.
    """
    num_layers = hidden.shape[0]
    used = range(_FIRST_LAYER, num_layers - 1) if layers is None else layers
    trends = channel_trends(hidden, skip=skip_trend)[used.start : used.stop].cpu()
    smoothness = channel_smoothness(hidden, skip=skip_smoothness).cpu()
    low, high = hidden[:, skip_trend:].cpu().aminmax(dim=1)
    changes = low < high  # [L, hidden]
    channels = []
    for channel in range(hidden.shape[2]):
        direction = 1 if (trends[:, channel] == 1).sum() > (trends[:, channel] == -1).sum() else -1
        counted = (direction,) if reference_code else (1, -1)
        trending = tuple(
            layer
            for layer, trend in zip(used, trends[:, channel].tolist(), strict=True)
            if (trend in counted if monotone else changes[layer, channel])
        )
        if len(trending) <= num_layers // 4:
            continue
        scores = smoothness[list(trending), channel]
        score = scores.min() if reference_code else scores.sum()
        channels.append(
            PositionalChannel(
                channel=channel, direction=direction, layers=trending, smoothness=float(score)
            )
        )
    return tuple(sorted(channels, key=lambda channel: channel.smoothness))


def _scaled(values: Tensor) -> Tensor:
    """Each channel of ``[n, hidden]`` from 0 to 1; 0 throughout where it never changes."""
    low, high = values.aminmax(dim=0, keepdim=True)
    return (values - low) / (high - low).clamp_min(torch.finfo(values.dtype).tiny)


def _require_positions(hidden: Tensor, skip: int, *, at_least: int) -> None:
    left = hidden.shape[1] - skip
    if left < at_least:
        raise ValueError(
            f"{hidden.shape[1]} positions less the first {skip} leave {left}; at least {at_least} "
            "are needed. Use longer texts."
        )
