"""One of several options for each of many sides, so that the sum of what they lose is least within a sum of bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

# Sums of the same losses in another order differ by less than this part of them.
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Option:
    """What a choice takes, in bytes, and what is lost by it."""

    size: int
    loss: float


def least_loss(sides: Sequence[Sequence[Option]], budget: int) -> list[int]:
    """Which option each side takes: of all choices within the budget one that loses least, exactly.

    At a price for each byte, an option's regret is what its loss and price exceed those of the side's best by. A choice
    of `used` bytes, of all sides or of the first ones, loses

        Σ (loss + price · size of the best) - price · used + Σ regret

    so that what is better than a choice that is known has little regret. At the price at which the best options no
    longer fit (the dual of the linear relaxation; Sinha and Zoltners, Operations Research 27, 1979) hardly any choices
    have so little, and those are all looked at.

    Raises ValueError where even the smallest options are more than the budget.
    """
    known, price = _known(sides, budget)
    best = [min(option.loss + price * option.size for option in side) for side in sides]
    allowed = (known + price * budget) * (1 + _ROUNDING) - sum(best)
    least_sizes = [min(option.size for option in side) for side in sides]
    left, behind = sum(least_sizes), 0.0
    # By the bytes of the sides so far: the least loss of those, and of each side which option brought it there.
    losses = {0: 0.0}
    steps: list[dict[int, int]] = []
    for side, side_best, least in zip(sides, best, least_sizes, strict=True):
        left -= least
        behind += side_best
        found: dict[int, float] = {}
        step: dict[int, int] = {}
        for used, lost in losses.items():
            for index, option in enumerate(side):
                size, loss = used + option.size, lost + option.loss
                regret = loss + price * size - behind
                if size + left <= budget and regret <= allowed and loss < found.get(size, loss + 1):
                    found[size], step[size] = loss, index
        losses = found
        steps.append(step)
    used = min(losses, key=losses.__getitem__)
    chosen = []
    for side, step in zip(reversed(sides), reversed(steps), strict=True):
        chosen.append(step[used])
        used -= side[chosen[-1]].size
    return chosen[::-1]


def _known(sides: Sequence[Sequence[Option]], budget: int) -> tuple[float, float]:
    """What a good choice loses, and the price of a byte: what the first step saves by it that no longer fits.

    Steps lead from each side's smallest option to larger ones, those that save most for each byte first.
    """
    starts = [min(side, key=lambda option: (option.size, option.loss)) for side in sides]
    room, price = budget - sum(start.size for start in starts), 0.0
    if room < 0:
        raise ValueError(f"{budget} bytes are {-room} less than the smallest choice takes")
    steps = [
        (saved, index, option)
        for index, (side, start) in enumerate(zip(sides, starts, strict=True))
        for saved, option in _steps(side, start)
    ]
    at, full = list(starts), set[int]()
    for saved, index, option in sorted(steps, key=lambda step: -step[0]):
        more = option.size - at[index].size
        if index in full or more > room:
            price = price or saved
            full.add(index)
            continue
        room, at[index] = room - more, option
    return sum(option.loss for option in at), price


def _steps(side: Sequence[Option], start: Option) -> Iterator[tuple[float, Option]]:
    """What each step of a side saves for each byte, falling, and the option that it leads to."""
    at = start
    while larger := [option for option in side if option.size > at.size and option.loss < at.loss]:
        saved, at = max(
            (((at.loss - option.loss) / (option.size - at.size), option) for option in larger),
            key=lambda step: (step[0], step[1].size),
        )
        yield saved, at
