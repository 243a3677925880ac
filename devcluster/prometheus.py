"""Prometheus beside the cluster: it finds the operator and the workers as the pods that say they are part of KVTide.

Debian builds Prometheus without its discovery of Kubernetes. The same code is therefore built into our own binary,
and hands over what it finds as a file: the labels and their meaning are those of `kubernetes_sd_configs`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from devcluster.paths import RUN

PORT = 9090
SCRAPE_INTERVAL = "2s"
FILE = RUN / "prometheus.yaml"
# Pages that Prometheus serves under /consoles/.
CONSOLES = Path(__file__).resolve().parent / "consoles"
TARGETS = RUN / "targets.json"


def render() -> str:
    """Its configuration: every pod of KVTide at its port named `http` or `metrics`, every two seconds."""
    pod = "__meta_kubernetes_pod"
    relabel: list[dict[str, Any]] = [
        {"source_labels": [f"{pod}_label_app_kubernetes_io_part_of"], "regex": "kvtide", "action": "keep"},
        {"source_labels": [f"{pod}_container_port_name"], "regex": "http|metrics", "action": "keep"},
        {"source_labels": [f"{pod}_phase"], "regex": "Pending|Succeeded|Failed", "action": "drop"},
        {"source_labels": ["__meta_kubernetes_namespace"], "target_label": "namespace"},
        {"source_labels": [f"{pod}_name"], "target_label": "pod"},
        {"source_labels": [f"{pod}_label_serving_kvtide_dev_name"], "target_label": "llmdeployment"},
    ]
    config = {
        "global": {"scrape_interval": SCRAPE_INTERVAL, "scrape_timeout": SCRAPE_INTERVAL},
        "scrape_configs": [
            {
                "job_name": "kvtide",
                # The operator's label `namespace` is the LLMDeployment's, not its own.
                "honor_labels": True,
                "file_sd_configs": [{"files": [str(TARGETS)]}],
                "relabel_configs": relabel,
            }
        ],
    }
    return yaml.safe_dump(config, sort_keys=False)
