"""What runs add up to: a table, and a plot of requests in target against replica-hours."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from statistics import fmean

from bench.autoscale.cluster import Run


@dataclass(frozen=True)
class Target:
    """When a request counts as served well: its first token and the mean of the others, in seconds."""

    time_to_first_token_s: float
    time_per_output_token_s: float


@dataclass(frozen=True)
class Row:
    """One policy on one trace. in_target: share of the requests; the percentile in seconds."""

    trace: str
    policy: str
    requests: float
    in_target: float
    replica_hours: float
    reversals: float
    highest: float
    first_token_p95_s: float
    resent: float
    preemptions: float

    @classmethod
    def of(cls, trace: str, policy: str, run: Run, target: Target) -> Row:
        """The row of a run; every request has ended."""
        good = sum(
            job.time_to_first_token_s <= target.time_to_first_token_s
            and job.time_per_output_token_s <= target.time_per_output_token_s
            for job in run.jobs
        )
        first = sorted(job.time_to_first_token_s for job in run.jobs)
        return cls(
            trace=trace,
            policy=policy,
            requests=len(run.jobs),
            in_target=good / len(run.jobs),
            replica_hours=run.replica_s / 3600,
            reversals=run.reversals,
            highest=max(count for _, count in run.replicas),
            first_token_p95_s=first[int(0.95 * (len(first) - 1))],
            resent=sum(job.attempts > 1 for job in run.jobs),
            preemptions=run.preemptions,
        )

    @classmethod
    def mean(cls, rows: list[Row]) -> Row:
        """The mean of several runs of one policy on one trace."""
        values = {
            field.name: fmean(getattr(row, field.name) for row in rows)
            for field in fields(cls)
            if field.name not in ("trace", "policy")
        }
        return cls(rows[0].trace, rows[0].policy, **values)

    def beats(self, other: Row) -> bool:
        """Whether it has more requests in target for fewer replica-hours."""
        return self.in_target > other.in_target and self.replica_hours < other.replica_hours


def beaten(rows: list[Row], policy: str) -> list[tuple[Row, Row]]:
    """The policy's rows that another policy's row on the same trace beats, and that one."""
    own = [row for row in rows if row.policy == policy]
    return [(row, other) for row in own for other in rows if other.trace == row.trace and other.beats(row)]


def table(rows: list[Row]) -> str:
    """The rows in Markdown."""
    lines = [
        "| trace | policy | in target | replica-hours | reversals | most | TTFT p95 | preemptions | sent again |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row.trace} | {row.policy} | {100 * row.in_target:.1f} % | {row.replica_hours:.2f} "
        f"| {row.reversals:.1f} | {row.highest:.1f} | {row.first_token_p95_s:.2f} s | {row.preemptions:.0f} "
        f"| {row.resent:.0f} |"
        for row in rows
    ]
    return "\n".join(lines)


def plot(rows: list[Row], path: Path) -> None:
    """One panel for each trace: up and to the left is better. Needs matplotlib, of the extra `dev`."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    matplotlib.rcParams["svg.hashsalt"] = "kvtide"
    traces = list(dict.fromkeys(row.trace for row in rows))
    policies = list(dict.fromkeys(row.policy for row in rows))
    across = min(4, len(traces))
    down = -(-len(traces) // across)
    figure, panels = plt.subplots(down, across, figsize=(4 * across, 3.2 * down), squeeze=False)
    for panel in panels.flat[len(traces) :]:
        panel.axis("off")
    for panel, trace in zip(panels.flat, traces, strict=False):
        for number, policy in enumerate(policies):
            of = next(row for row in rows if (row.trace, row.policy) == (trace, policy))
            panel.plot(of.replica_hours, 100 * of.in_target, "os^Dv*P"[number % 7], color=f"C{number}", label=policy)
        panel.set_title(trace)
        panel.set_xlabel("replica-hours")
        panel.set_ylabel("requests in target, %")
        panel.grid(alpha=0.3)
    figure.legend(*panels[0][0].get_legend_handles_labels(), loc="lower center", ncol=len(policies))
    figure.tight_layout(rect=(0, 0.06, 1, 1))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    plt.close(figure)
