"""Up, down, and what is between: every step looks first whether it is done, so that `up` also repairs."""

from __future__ import annotations

import shutil
import time
from contextlib import suppress
from pathlib import Path

from devcluster import (
    addons,
    binaries,
    buildah,
    certificates,
    cgroups,
    config,
    containerd,
    forwarder,
    kubeconfig,
    mounts,
    netns,
    packages,
    pause,
    process,
    prometheus,
    sysctls,
)
from devcluster.components import Component, all_components
from devcluster.kubectl import kubectl
from devcluster.paths import HOME, LOGS, RUN
from devcluster.state import State, locked
from devcluster.steps import step

API_FORWARD = "kube-apiserver"
PROMETHEUS_FORWARD = "prometheus"
API_PORT = 16443
PROMETHEUS_PORT = 19090

START_TIMEOUT_S = 90.0
# A component that runs and does not answer may only be slow, on a machine under load.
PATIENCE_S = 8.0
CNI_RESULTS = Path("/var/lib/cni/results")
# Made by CNI and by containerd's shims wherever they run: ours to remove only when empty.
SHARED_FOLDERS = (CNI_RESULTS, CNI_RESULTS.parent, Path("/run/containerd/s"), Path("/run/containerd"))


def install() -> None:
    """Everything that is dear and stays: Debian's packages and the built binaries."""
    if missing := packages.missing(packages.NODE):
        with step(f"installing {', '.join(missing)}"):
            packages.install(packages.NODE)
    if not binaries.built():
        with step(f"building Kubernetes {binaries.KUBERNETES_VERSION}, etcd, CoreDNS and helm with Go (minutes)"):
            binaries.build()


def up() -> State:
    """Bring the cluster up, or bring back what of it is not well. Raises RuntimeError with the log of what failed."""
    with locked():
        install()
        state = State.load()
        if state and not state.from_this_boot:
            _down(state)
            state = None
        if state is None:
            state = State.new()
            state.sysctls = sysctls.read()
            state.save()
        with step("network, control groups, certificates"):
            netns.create()
            cgroups.create()
            certificates.issue_all()
            _forward(state)
            _write_configuration(state)
        for component in all_components():
            with step(component.name):
                _start(state, component)
            if component.name == "containerd":
                _prepare_containerd(state)
        with step("cluster DNS, models' volume"):
            addons.apply()
        with step("node and DNS ready"):
            _wait_ready()
        return state


def down() -> None:
    """Take everything down that `up` or a broken `up` made; caches stay."""
    with locked():
        _down(State.load())


def purge() -> None:
    """Take it down and drop the caches too: binaries, images, everything but the models."""
    with locked():
        _down(State.load())
        shutil.rmtree(HOME)


def healthy(state: State, component: Component) -> bool:
    """Whether a component runs as it would be started now, and answers."""
    return _runs(state, component) and component.answers()


def _runs(state: State, component: Component) -> bool:
    running = state.processes.get(component.name)
    return bool(running and running.alive and running.command == component.command)


def _forward(state: State) -> None:
    forwarder.ensure(state, API_FORWARD, f"{netns.NODE_ADDRESS}:{kubeconfig.API_PORT}", API_PORT)
    forwarder.ensure(state, PROMETHEUS_FORWARD, f"127.0.0.1:{prometheus.PORT}", PROMETHEUS_PORT)


def _write_configuration(state: State) -> None:
    """Write the files that are not as they should be, and stop the components that were started with them."""
    files = {
        **kubeconfig.files(state.forwards[API_FORWARD].port),
        **config.files(),
        prometheus.FILE: prometheus.render(),
    }
    changed = [path for path, text in files.items() if not path.exists() or path.read_text() != text]
    for path in changed:
        path.parent.mkdir(parents=True, exist_ok=True)
        # There are private keys in some of them.
        path.touch(mode=0o600)
        path.write_text(files[path])
    process.stop(
        running
        for running in state.processes.values()
        if any(str(path) in argument for argument in running.command for path in changed)
    )


def _start(state: State, component: Component) -> None:
    if _runs(state, component) and _answers_within(state, component, PATIENCE_S):
        return
    if before := state.processes.get(component.name):
        process.stop([before])
    state.processes[component.name] = process.start(component.name, component.command)
    state.save()
    if not _answers_within(state, component, START_TIMEOUT_S):
        what = "did not become well" if _runs(state, component) else "ended"
        raise RuntimeError(f"{component.name} {what}; its log ends with:\n{process.log_tail(component.name)}")


def _answers_within(state: State, component: Component, timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while not component.answers():
        if not _runs(state, component) or time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    # Without a probe, running is all there is to see.
    return _runs(state, component)


def _prepare_containerd(state: State) -> None:
    """What a crash or a reboot left in its store belongs to a cluster that is gone: the new one starts without."""
    if "kubelet" not in state.processes:
        containerd.remove_containers()
    pause.load()


def _wait_ready() -> None:
    kubectl("wait", "--for=create", f"node/{certificates.NODE}", "--timeout=60s")
    kubectl("wait", "--for=condition=Ready", f"node/{certificates.NODE}", "--timeout=60s")
    kubectl("--namespace=kube-system", "rollout", "status", "deployment/coredns", "--timeout=60s")


def _down(state: State | None) -> None:
    if state and state.from_this_boot:
        runtime = state.processes.pop("containerd", None)
        forwards = [forward.process for forward in state.forwards.values()]
        with step("stopping the components"):
            # Nothing of theirs is kept, so nobody needs time to finish.
            process.stop([*state.processes.values(), *forwards], timeout_s=1.0)
        with step("removing the containers"):
            if runtime and runtime.alive:
                containerd.remove_containers()
                process.stop([runtime])
            containerd.kill_shims()
            cgroups.kill_all()
        sysctls.write(state.sysctls)
    with step("removing mounts, control groups, network, files"):
        mounts.unmount_below(HOME)
        mounts.unmount_below(buildah.RUNTIME_FOLDER)
        shutil.rmtree(buildah.RUNTIME_FOLDER, ignore_errors=True)
        cgroups.delete()
        netns.delete()
        if RUN.exists():
            shutil.rmtree(RUN)
        for result in CNI_RESULTS.glob("*"):
            # A result names the pod's namespace, and that of one of ours is a path in our folder.
            if str(RUN) in result.read_text():
                result.unlink()
        for folder in SHARED_FOLDERS:
            with suppress(OSError):
                folder.rmdir()


def logs() -> list[str]:
    """The names of the components that have a log."""
    return sorted(path.stem for path in LOGS.glob("*.log"))
