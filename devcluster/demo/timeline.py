"""What Prometheus saw of one LLMDeployment over time, thinned to the moments at which something changed."""

import dataclasses

from rich.table import Table

from devcluster.demo.cluster import Cluster

STEP_S = 2


@dataclasses.dataclass(frozen=True)
class Moment:
    """One scrape. `kv` is the live share of the fullest worker, 0 to 1; the batch limit is the lowest of a worker."""

    seconds: float
    desired: int
    ready: int
    batch_limit: int
    kv: float
    waiting: int

    @property
    def decided(self) -> tuple[int, int, int]:
        """What the operator steers, without what merely flows."""
        return self.desired, self.ready, self.batch_limit


def read(cluster: Cluster, namespace: str, name: str, start: float, end: float) -> list[Moment]:
    """The moments between two Unix times at which the operator and the workers were scraped."""
    resource = f'{{namespace="{namespace}",name="{name}"}}'
    worker = f'{{namespace="{namespace}",llmdeployment="{name}"}}'
    series = {
        key: cluster.query_range(expression, start, end, STEP_S)
        for key, expression in {
            "desired": f"max(kvtide_llmdeployment_desired_replicas{resource})",
            "ready": f"max(kvtide_llmdeployment_ready_replicas{resource})",
            "limit": f"min(kvtide_batch_limit{worker})",
            "kv": f"max(vllm:kv_cache_usage_perc{worker})",
            "waiting": f"sum(vllm:num_requests_waiting{worker})",
        }.items()
    }
    return [
        Moment(
            seconds=max(0.0, at - start),
            desired=int(desired),
            ready=int(series["ready"].get(at, 0)),
            batch_limit=int(series["limit"].get(at, 0)),
            kv=series["kv"].get(at, 0.0),
            waiting=int(series["waiting"].get(at, 0)),
        )
        for at, desired in sorted(series["desired"].items())
    ]


def thin(moments: list[Moment], every_s: float = 20) -> list[Moment]:
    """Keep the first and last moment, each at which something was decided, and one every `every_s` seconds."""
    kept: list[Moment] = []
    for moment in moments:
        if not kept or moment.decided != kept[-1].decided or moment.seconds - kept[-1].seconds >= every_s:
            kept.append(moment)
    if moments and kept[-1] is not moments[-1]:
        kept.append(moments[-1])
    return kept


def table(moments: list[Moment]) -> Table:
    """The moments as a table, with a bar for the KV memory in use."""
    drawn = Table(title="What Prometheus saw", title_justify="left", box=None, padding=(0, 2, 0, 0))
    for heading in ("time", "desired", "ready", "batch limit", "waiting"):
        drawn.add_column(heading, justify="right")
    drawn.add_column("KV in use, fullest worker")
    for moment in moments:
        bar = "█" * round(moment.kv * 20)
        drawn.add_row(
            f"{moment.seconds:.0f} s", str(moment.desired), str(moment.ready), str(moment.batch_limit),
            str(moment.waiting), f"{moment.kv:4.0%} {bar}",
        )  # fmt: skip
    return drawn
