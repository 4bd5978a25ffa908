"""The Helm chart, linted and rendered by Helm itself, and what it renders held against Kubernetes's own schemas."""

import os
import subprocess
from pathlib import Path

import helm_python
import kubernetes_validate
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "packaging/helm/redoubt"
SERVER = os.environ.get("REDOUBT", str(ROOT / "target/debug/redoubt"))

VARIANTS = {
    "as it comes": {},
    "all of it": {
        "masters": 5,
        "replicasPerMaster": 2,
        "passwordSecret": "shop",
        "image": {"tag": "9", "pullSecrets": [{"name": "registry"}]},
        "storage": {"className": "fast"},
        "nodeSelector": {"disk": "ssd"},
        "tolerations": [{"key": "data", "operator": "Exists"}],
    },
    "masters alone": {"replicasPerMaster": 0},
}


def rendered(values):
    """What is made, by kind: lists, as there may be several of a kind."""
    with helm_python.Chart.load(str(CHART)) as chart:
        texts = chart.render(values, name="shop", namespace="prod")
    found = {}
    for name, text in texts.items():
        if name.endswith(".yaml"):
            for document in yaml.safe_load_all(text):
                if document is not None:
                    found.setdefault(document["kind"], []).append(document)
    return found


def only(found, kind):
    (one,) = found[kind]
    return one


def test_the_chart_is_linted_without_a_complaint():
    result = helm_python.lint(str(CHART))
    findings = result["messages"] + result["errors"]
    worse = [finding for finding in findings if "icon is recommended" not in str(finding)]
    assert not worse, worse


@pytest.mark.parametrize("variant", VARIANTS)
def test_kubernetes_takes_whatever_is_rendered(variant):
    found = rendered(VARIANTS[variant])
    assert set(found) == {"ConfigMap", "Service", "PodDisruptionBudget", "StatefulSet", "Job"}
    for documents in found.values():
        for document in documents:
            kubernetes_validate.validate(document, "1.30", strict=True)


@pytest.mark.parametrize("values, nodes", [({}, 6), (VARIANTS["all of it"], 15), (VARIANTS["masters alone"], 3)])
def test_there_are_as_many_nodes_as_masters_and_their_replicas(values, nodes):
    found = rendered(values)
    assert only(found, "StatefulSet")["spec"]["replicas"] == nodes
    script = only(found, "Job")["spec"]["template"]["spec"]["containers"][0]["args"][0]
    assert f'-lt {nodes} ]' in script
    subprocess.run(["sh", "-n", "-c", script], check=True)


def test_a_node_is_stopped_gracefully_and_one_at_a_time():
    found = rendered({})
    pod = only(found, "StatefulSet")["spec"]["template"]["spec"]
    conf = only(found, "ConfigMap")["data"]["redoubt.conf"]
    assert "shutdown-on-sigterm failover" in conf
    (timeout,) = [line.split()[1] for line in conf.splitlines() if line.startswith("shutdown-timeout ")]
    assert pod["terminationGracePeriodSeconds"] > int(timeout)
    assert only(found, "PodDisruptionBudget")["spec"]["maxUnavailable"] == 1
    (container,) = pod["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    for probe, path in [("startupProbe", "/healthz"), ("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")]:
        assert container[probe]["httpGet"] == {"path": path, "port": "metrics"}
    assert f"metrics-port {ports['metrics']}" in conf


def test_the_selectors_find_the_nodes_and_not_the_job():
    found = rendered({})
    labels = only(found, "StatefulSet")["spec"]["template"]["metadata"]["labels"]
    selectors = [service["spec"]["selector"] for service in found["Service"]]
    selectors.append(only(found, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"])
    selectors.append(only(found, "StatefulSet")["spec"]["selector"]["matchLabels"])
    job = only(found, "Job")["spec"]["template"]["metadata"]["labels"]
    for selector in selectors:
        assert selector.items() <= labels.items() and not selector.items() <= job.items()


def test_nothing_in_the_container_is_roots():
    pod = only(rendered({}), "StatefulSet")["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] and not pod["automountServiceAccountToken"]
    context = pod["containers"][0]["securityContext"]
    assert context["readOnlyRootFilesystem"] and not context["allowPrivilegeEscalation"]
    assert context["capabilities"] == {"drop": ["ALL"]}


def test_a_password_comes_from_its_secret_alone():
    found = rendered(VARIANTS["all of it"])
    container = only(found, "StatefulSet")["spec"]["template"]["spec"]["containers"][0]
    (password,) = [entry for entry in container["env"] if entry["name"] == "PASSWORD"]
    assert password["valueFrom"]["secretKeyRef"] == {"name": "shop", "key": "password"}
    assert container["args"][-4:] == ["--requirepass", "$(PASSWORD)", "--masterauth", "$(PASSWORD)"]


def test_the_server_knows_every_line_of_the_configuration():
    conf = only(rendered({}), "ConfigMap")["data"]["redoubt.conf"]
    assert "\nmetrics-port " in conf
    said = subprocess.run([SERVER, "convert", "-"], input=conf, capture_output=True, text=True, check=False)
    assert said.returncode == 0 and "NO EFFECT" not in said.stdout, said.stdout


@pytest.mark.parametrize("name", ["compose-cluster", "compose-sentinel"])
def test_a_compose_file_names_what_is_there(name):
    file = ROOT / f"packaging/docker/{name}.yaml"
    compose = yaml.safe_load(file.read_text())
    services, volumes = compose["services"], compose["volumes"]
    for service in services.values():
        for volume in service.get("volumes", []):
            assert volume.split(":")[0] in volumes
        for other in service.get("depends_on", {}):
            assert other in services
        if "build" in service:
            context = (file.parent / service["build"]["context"]).resolve()
            assert (context / service["build"]["dockerfile"]).is_file()
        if service["image"] == "redoubt":
            command = service["command"]
            assert command[0] in ("server", "sentinel")
