"""The chart installs the very CRD of crds/, in a way that upgrades it and never deletes it."""

import yaml

from tests.chart.conftest import CHART, ROOT, Render, of_kind

GENERATED = ROOT / "crds" / "llmdeployments.yaml"


def test_the_charts_copy_is_the_generated_crd() -> None:
    copy = CHART / "files" / "llmdeployments.yaml"
    assert copy.read_text() == GENERATED.read_text(), "run `make crds`"


def test_it_is_rendered_unchanged_and_kept_on_uninstall(render: Render) -> None:
    (crd,) = of_kind(render(), "CustomResourceDefinition")
    generated = yaml.safe_load(GENERATED.read_text())
    assert crd["spec"] == generated["spec"]
    assert crd["metadata"]["name"] == generated["metadata"]["name"]
    assert crd["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}


def test_it_can_be_left_to_somebody_else(render: Render) -> None:
    assert of_kind(render("crd.install=false"), "CustomResourceDefinition") == []
