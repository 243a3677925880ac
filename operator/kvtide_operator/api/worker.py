"""What a user may add to the worker's pods. Free-form parts are Kubernetes' own, and checked by it."""

from pydantic import Field

from kvtide_operator.api.fields import Api, LocalRef, PodField, Resources


class WorkerSpec(Api):
    """Additions to the worker's pod template; a change restarts the workers, one at a time.

    So does another content of a Secret or a ConfigMap that env and volumes name.
    """

    image: str | None = Field(
        default=None,
        min_length=1,
        max_length=1024,
        description="Image of the worker. Default: the operator's --worker-image when the plan was made.",
    )
    resources: Resources | None = Field(default=None, description="Requests and limits of the worker's container.")
    env: list[PodField] | None = Field(
        default=None,
        max_length=100,
        description=(
            "Environment variables, as in a container's env. Another content of a Secret or a ConfigMap that they name"
            " restarts the workers, too."
        ),
    )
    node_selector: dict[str, str] | None = Field(default=None, description="Labels that a node must have.")
    tolerations: list[PodField] | None = Field(
        default=None, max_length=100, description="Taints that the pods tolerate, as in a pod."
    )
    affinity: PodField | None = Field(default=None, description="Affinity of the pods, as in a pod.")
    topology_spread_constraints: list[PodField] | None = Field(
        default=None, max_length=20, description="How the pods spread, as in a pod."
    )
    runtime_class_name: str | None = Field(
        default=None, min_length=1, max_length=253, description="Runtime class of the pods, such as nvidia."
    )
    priority_class_name: str | None = Field(
        default=None, min_length=1, max_length=253, description="Priority class of the pods."
    )
    volumes: list[PodField] | None = Field(
        default=None,
        max_length=50,
        description=(
            "More volumes, as in a pod. Another content of a Secret or a ConfigMap that they name restarts the workers,"
            " too."
        ),
    )
    volume_mounts: list[PodField] | None = Field(
        default=None, max_length=50, description="Where they are mounted, as in a container."
    )
    image_pull_secrets: list[LocalRef] | None = Field(
        default=None, max_length=20, description="Secrets that the image is pulled with."
    )
    labels: dict[str, str] | None = Field(
        default=None, description="More labels of the pods; the operator's own are kept."
    )
    annotations: dict[str, str] | None = Field(default=None, description="More annotations of the pods.")
