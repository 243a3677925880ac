"""Rendered configuration: each file is well-formed, and the files agree with each other."""

import ipaddress
import json
import re
import tomllib

import pytest
import yaml

from devcluster import addons, binaries, config, netns, prometheus


def test_containerd_and_kubelet_meet_at_one_socket() -> None:
    runtime = tomllib.loads(config.containerd())
    kubelet = yaml.safe_load(config.kubelet())
    assert kubelet["containerRuntimeEndpoint"] == "unix://" + runtime["grpc"]["address"]


def test_containerd_finds_the_pods_network() -> None:
    cri = tomllib.loads(config.containerd())["plugins"]["io.containerd.grpc.v1.cri"]
    assert cri["cni"]["conf_dir"] == str(config.CNI_FILE.parent)
    assert [plugin["type"] for plugin in json.loads(config.cni())["plugins"]] == ["ptp", "portmap"]


@pytest.mark.parametrize(
    ("address", "network"),
    [
        (netns.API_SERVICE_ADDRESS, netns.SERVICE_CIDR),
        (netns.DNS_SERVICE_ADDRESS, netns.SERVICE_CIDR),
        (yaml.safe_load(config.kubelet())["clusterDNS"][0], netns.SERVICE_CIDR),
    ],
)
def test_service_addresses_lie_in_the_services_network(address: str, network: str) -> None:
    assert ipaddress.ip_address(address) in ipaddress.ip_network(network)


def test_images_and_pods_are_not_removed_for_a_full_disk() -> None:
    kubelet = yaml.safe_load(config.kubelet())
    assert kubelet["imageGCHighThresholdPercent"] == 100
    full = {signal for signal, threshold in kubelet["evictionHard"].items() if threshold != "0%"}
    assert full == {"memory.available"}


def test_dns_runs_the_node_s_own_program_at_the_address_that_pods_are_told() -> None:
    objects = {(entry["kind"], entry["metadata"]["name"]): entry for entry in yaml.safe_load_all(addons.render())}
    service = objects["Service", "kube-dns"]
    pod = objects["Deployment", "coredns"]["spec"]["template"]
    assert service["spec"]["clusterIP"] in yaml.safe_load(config.kubelet())["clusterDNS"]
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    assert pod["spec"]["volumes"][0]["hostPath"]["path"] == str(binaries.folder())
    assert pod["spec"]["containers"][0]["command"][0].removeprefix("/cluster/") in binaries.LINKS


@pytest.mark.parametrize(
    ("labels", "kept"),
    [
        ({"label_app_kubernetes_io_part_of": "kvtide", "container_port_name": "http", "phase": "Running"}, True),
        ({"label_app_kubernetes_io_part_of": "kvtide", "container_port_name": "metrics", "phase": "Running"}, True),
        ({"label_app_kubernetes_io_part_of": "kvtide", "container_port_name": "admin", "phase": "Running"}, False),
        ({"label_app_kubernetes_io_part_of": "other", "container_port_name": "http", "phase": "Running"}, False),
        ({"container_port_name": "http", "phase": "Running"}, False),
        ({"label_app_kubernetes_io_part_of": "kvtide", "container_port_name": "http", "phase": "Pending"}, False),
        ({"label_app_kubernetes_io_part_of": "kvtide", "container_port_name": "http", "phase": "Failed"}, False),
    ],
)
def test_prometheus_scrapes_the_named_ports_of_running_kvtide_pods(labels: dict[str, str], kept: bool) -> None:
    # prometheus.io/docs, relabel_config: the values joined by ";", the expression anchored at both ends.
    [job] = yaml.safe_load(prometheus.render())["scrape_configs"]
    decided = True
    for rule in job["relabel_configs"]:
        value = ";".join(labels.get(name.removeprefix("__meta_kubernetes_pod_"), "") for name in rule["source_labels"])
        if rule.get("action") in ("keep", "drop"):
            decided = decided and bool(re.fullmatch(rule["regex"], value)) == (rule["action"] == "keep")
    assert decided is kept
