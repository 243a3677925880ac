"""The alerts fire when they have to, by Prometheus's own judgement, and on series that somebody exports."""

import re
import subprocess

import pytest
import yaml

from devcluster import packages
from kvtide_operator.edge.metrics import Metrics
from tests.chart.conftest import CHART, ROOT, Render, of_kind

ALERTS = CHART / "files" / "alerts.yaml"
# Of the worker, in docs/architecture.md's terms: present wherever one serves.
WORKER_SERIES = {"kvtide_kv_capacity_tokens"}


def test_every_series_is_one_that_is_exported() -> None:
    families = list(Metrics().registry.collect())
    exported = {f"{family.name}_total" if family.type == "counter" else family.name for family in families}
    asked = set(re.findall(r"\bkvtide_\w+", ALERTS.read_text()))
    assert asked
    assert asked <= exported | WORKER_SERIES


@pytest.mark.cluster
def test_each_fires_when_it_has_to_and_only_then() -> None:
    packages.install({"promtool": "prometheus"})
    done = subprocess.run(
        ["promtool", "test", "rules", "tests/chart/alerts.test.yaml"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_chart_carries_them_unchanged(render: Render) -> None:
    (rule,) = of_kind(render("prometheusRule.enabled=true"), "PrometheusRule")
    assert rule["spec"] == yaml.safe_load(ALERTS.read_text())
