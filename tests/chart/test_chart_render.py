"""What the chart renders."""

import pytest

from kvbudget import crd
from kvbudget.contract import GROUP
from kvbudget_operator import rbac, settings, webhooks
from support.helmchart import NAMESPACE, RELEASE, Chart, Object, pod_specs

ADMISSION = f"{RELEASE}-admission"
OPERATOR = f"{RELEASE}-operator"
CLUSTER_KINDS = {"ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition", "ValidatingWebhookConfiguration"}


def container(objects: list[Object], name: str) -> Object:
    (found,) = pod_specs(objects)[f"Deployment/{name}"]["containers"]
    return dict(found)


def environment(objects: list[Object], name: str) -> dict[str, str]:
    return {entry["name"]: entry.get("value", "from the pod") for entry in container(objects, name)["env"]}


def permissions(rules: list[Object]) -> set[tuple[str, str, str, str]]:
    """Rules as single permissions: group, resource, object's name or "*", verb."""
    return {
        (group, resource, name, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for name in rule.get("resourceNames", ["*"])
        for verb in rule["verbs"]
    }


def test_two_deployments_run_one_image(rendered: list[Object]) -> None:
    deployments = {o["metadata"]["name"]: o["spec"] for o in rendered if o["kind"] == "Deployment"}
    assert set(deployments) == {OPERATOR, ADMISSION}
    assert deployments[OPERATOR]["replicas"] == 1
    assert deployments[OPERATOR]["strategy"] == {"type": "Recreate"}
    assert deployments[ADMISSION]["replicas"] == 2
    assert container(rendered, OPERATOR)["image"] == container(rendered, ADMISSION)["image"]
    assert container(rendered, OPERATOR)["args"] == ["operator"]
    assert container(rendered, ADMISSION)["args"] == ["admission"]


def test_selectors_name_the_pods_of_their_own_component_only(rendered: list[Object]) -> None:
    labels = {
        o["metadata"]["name"]: o["spec"]["template"]["metadata"]["labels"]
        for o in rendered
        if o["kind"] == "Deployment"
    }
    for each in rendered:
        if each["kind"] == "Deployment":
            selector = each["spec"]["selector"]["matchLabels"]
            owner = each["metadata"]["name"]
        elif each["kind"] == "Service":
            selector, owner = each["spec"]["selector"], ADMISSION
        elif each["kind"] == "PodDisruptionBudget":
            selector, owner = each["spec"]["selector"]["matchLabels"], ADMISSION
        else:
            continue
        matched = {name for name, has in labels.items() if selector.items() <= has.items()}
        assert matched == {owner}


def test_the_webhook_is_for_our_group_alone_and_has_no_ca_bundle(rendered: list[Object]) -> None:
    (configuration,) = (o for o in rendered if o["kind"] == "ValidatingWebhookConfiguration")
    (service,) = (o for o in rendered if o["kind"] == "Service")
    paths = [webhook["clientConfig"]["service"]["path"] for webhook in configuration["webhooks"]]
    assert sorted(paths) == sorted(webhooks.PATHS)
    for webhook in configuration["webhooks"]:
        assert webhook["failurePolicy"] == "Fail"
        assert webhook["timeoutSeconds"] == 5
        assert webhook["matchPolicy"] == "Equivalent"
        assert webhook["sideEffects"] == "None"
        assert "caBundle" not in webhook["clientConfig"]
        assert webhook["clientConfig"]["service"]["name"] == service["metadata"]["name"]
        assert [rule["apiGroups"] for rule in webhook["rules"]] == [[GROUP]]
        assert all(rule["operations"] == ["CREATE", "UPDATE"] for rule in webhook["rules"])


def test_the_certificate_secret_is_made_without_data_so_that_an_upgrade_keeps_it(chart: Chart) -> None:
    (secret,) = chart.objects("Secret").values()
    assert "data" not in secret
    assert "stringData" not in secret
    assert chart.objects("Secret", {"webhook": {"certificateSecret": "mine"}}) == {}


def test_roles_equal_the_operators_table(chart: Chart) -> None:
    roles = chart.objects("ClusterRole") | {f"role/{k}": v for k, v in chart.objects("Role").items()}
    wanted = {
        OPERATOR: (*rbac.OPERATOR, *rbac.OPERATOR_CLUSTER, *rbac.OPERATOR_SCAN),
        ADMISSION: rbac.admission_cluster(RELEASE),
        f"role/{ADMISSION}": rbac.admission_namespace(f"{RELEASE}-webhook-cert"),
        f"role/{RELEASE}-verify": rbac.VERIFY,
    }
    for name, rules in wanted.items():
        assert permissions(roles.pop(name)["rules"]) == permissions(rbac.manifest(rules)), name
    assert set(roles) == {f"{RELEASE}-view", f"{RELEASE}-edit", f"{RELEASE}-admin"}


def test_named_namespaces_restrict_the_operator_to_roles_there(chart: Chart) -> None:
    objects = chart.render({"namespaces": ["a", "b"]})
    (cluster_role,) = (o for o in objects if o["kind"] == "ClusterRole" and o["metadata"]["name"] == OPERATOR)
    assert permissions(cluster_role["rules"]) == permissions(rbac.manifest(rbac.OPERATOR_CLUSTER))
    roles = {
        o["metadata"]["namespace"]: o for o in objects if o["kind"] == "Role" and o["metadata"]["name"] == OPERATOR
    }
    assert set(roles) == {"a", "b"}
    for role in roles.values():
        assert permissions(role["rules"]) == permissions(rbac.manifest(rbac.OPERATOR))
    assert environment(objects, OPERATOR)[settings.ENV_NAMESPACES] == "a,b"


@pytest.mark.parametrize("values", [{}, {"namespaces": ["a"]}, {"fullnameOverride": "x"}])
def test_every_binding_binds_a_role_and_an_account_that_exist(chart: Chart, values: Object) -> None:
    objects = chart.render(values)
    names = {(o["kind"], o["metadata"].get("namespace"), o["metadata"]["name"]) for o in objects}
    for each in objects:
        if each["kind"] in ("RoleBinding", "ClusterRoleBinding"):
            role = each["roleRef"]
            where = each["metadata"]["namespace"] if role["kind"] == "Role" else None
            assert (role["kind"], where, role["name"]) in names
            for subject in each["subjects"]:
                assert (subject["kind"], subject["namespace"], subject["name"]) in names
    for pod in pod_specs(objects).values():
        assert ("ServiceAccount", NAMESPACE, pod["serviceAccountName"]) in names


def test_the_processes_understand_their_environment(rendered: list[Object]) -> None:
    known = {value for name, value in vars(settings).items() if name.startswith("ENV_")}
    operator, admission = environment(rendered, OPERATOR), environment(rendered, ADMISSION)
    assert set(operator) | set(admission) <= known
    assert settings.OperatorSettings.from_env(operator).worker.image == "kvbudget/worker:0.1.0"
    read = settings.AdmissionSettings.from_env(admission)
    assert (read.service, read.config) == (f"{RELEASE}-webhook", RELEASE)
    assert read.certificate == f"{RELEASE}-webhook-cert"
    ports = {port["name"]: port["containerPort"] for port in container(rendered, ADMISSION)["ports"]}
    assert ports == {"webhook": read.port, "health": read.health_port}


def test_no_pod_gets_the_services_of_its_namespace_as_environment(rendered: list[Object]) -> None:
    """The Service kvbudget-webhook would else set KVBUDGET_WEBHOOK_PORT to a URL."""
    for name, pod in pod_specs(rendered).items():
        assert pod["enableServiceLinks"] is False, name


def test_crds_are_the_generated_ones_and_stay_at_uninstall(chart: Chart) -> None:
    rendered = chart.objects("CustomResourceDefinition")
    generated = {each["metadata"]["name"]: each for each in crd.crds()}
    assert set(rendered) == set(generated)
    for name, each in rendered.items():
        assert each["spec"] == generated[name]["spec"]
        assert each["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    assert chart.objects("CustomResourceDefinition", {"crds": {"enabled": False}}) == {}
    for each in chart.objects("CustomResourceDefinition", {"crds": {"keep": False}}).values():
        assert "helm.sh/resource-policy" not in each["metadata"].get("annotations", {})


def test_a_digest_wins_over_the_tag(chart: Chart) -> None:
    digest = f"sha256:{'a' * 64}"
    objects = chart.render({"image": {"tag": "dev", "digest": digest}, "worker": {"image": {"digest": digest}}})
    assert container(objects, OPERATOR)["image"] == f"kvbudget/operator@{digest}"
    assert environment(objects, OPERATOR)[settings.ENV_WORKER_IMAGE] == f"kvbudget/worker@{digest}"


def test_an_upgrade_of_the_chart_alone_replaces_no_pod(rendered: list[Object]) -> None:
    for each in rendered:
        if each["kind"] in ("Deployment", "Job"):
            labels = each["spec"]["template"]["metadata"]["labels"]
            assert set(labels) == {f"app.kubernetes.io/{key}" for key in ("name", "instance", "component", "part-of")}


def test_labels_of_a_users_own_are_added_to_pods_and_never_change_what_selects_them(chart: Chart) -> None:
    mine = {"team": "inference", "app.kubernetes.io/component": "mine"}
    for name, each in chart.objects("Deployment", {"operator": {"podLabels": mine}}).items():
        labels = each["spec"]["template"]["metadata"]["labels"]
        assert each["spec"]["selector"]["matchLabels"].items() <= labels.items()
        assert labels.get("team") == ("inference" if name == OPERATOR else None)


def test_the_webhook_is_spread_over_nodes_also_beside_an_affinity_and_as_one_says(chart: Chart) -> None:
    def spread(**admission: object) -> list[Object]:
        found: Object = chart.objects("Deployment", {"admission": admission})[ADMISSION]["spec"]
        constraints: list[Object] = found["template"]["spec"].get("topologySpreadConstraints", [])
        assert all("labelSelector" in each for each in constraints)
        return constraints

    (by_node,) = spread(affinity={"nodeAffinity": {}})
    assert (by_node["topologyKey"], by_node["whenUnsatisfiable"]) == ("kubernetes.io/hostname", "ScheduleAnyway")
    assert by_node["labelSelector"]["matchLabels"]["app.kubernetes.io/component"] == "admission"
    zones = {"maxSkew": 2, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
    named = {**zones, "labelSelector": {"matchLabels": {"a": "b"}}}
    assert spread(topologySpreadConstraints=[named]) == [named]
    assert spread(topologySpreadConstraints=[]) == []


def test_a_replica_that_is_not_ready_lets_its_node_be_drained_and_slow_probes_are_waited_for(chart: Chart) -> None:
    (budget,) = chart.objects("PodDisruptionBudget").values()
    assert budget["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
    for each in chart.objects("Deployment").values():
        (runs,) = each["spec"]["template"]["spec"]["containers"]
        probes = [runs[f"{kind}Probe"] for kind in ("startup", "liveness", "readiness")]
        assert [probe["timeoutSeconds"] for probe in probes] == [5, 5, 5]


def test_a_platform_that_chooses_users_itself_can_be_given_none(chart: Chart) -> None:
    nobody = {"runAsUser": None, "runAsGroup": None, "fsGroup": None}
    for pod in pod_specs(chart.render({"podSecurityContext": nobody})).values():
        assert pod["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}


def test_a_hook_waits_for_the_webhook_after_install_upgrade_and_rollback(rendered: list[Object]) -> None:
    (job,) = (o for o in rendered if o["kind"] == "Job")
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "post-install,post-upgrade,post-rollback"
    (runs,) = job["spec"]["template"]["spec"]["containers"]
    assert runs["args"] == ["verify-webhook"]
    (test,) = (o for o in rendered if o["kind"] == "Pod")
    assert test["metadata"]["annotations"]["helm.sh/hook"] == "test"


def test_every_object_is_in_the_release_namespace_and_bears_the_common_labels(chart: Chart) -> None:
    for each in chart.render({"commonLabels": {"team": "inference"}, "networkPolicy": {"enabled": True}}):
        assert each["metadata"]["labels"]["team"] == "inference"
        assert each["metadata"]["labels"]["app.kubernetes.io/part-of"] == "kvbudget"
        wanted = None if each["kind"] in CLUSTER_KINDS else NAMESPACE
        assert each["metadata"].get("namespace") == wanted, each["metadata"]["name"]


def test_names_and_labels_stay_within_63_characters(chart: Chart) -> None:
    for each in chart.render(release="a-release-with-a-name-of-fifty-three-characters-here"):
        if each["kind"] != "CustomResourceDefinition":
            assert len(each["metadata"]["name"]) <= 63
        assert all(len(value) <= 63 for value in each["metadata"]["labels"].values())


def test_extra_objects_may_be_maps_or_text_and_use_templates(chart: Chart) -> None:
    text = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: '{{ .Release.Name }}-text'}"
    named = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "{{ .Release.Name }}-map"}}
    assert set(chart.objects("ConfigMap", {"extraObjects": [text, named]})) == {f"{RELEASE}-text", f"{RELEASE}-map"}


def test_network_policies_let_the_api_server_in_and_metrics_only_where_asked(chart: Chart) -> None:
    peers = [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}]
    closed = chart.objects("NetworkPolicy", {"networkPolicy": {"enabled": True}})
    opened = chart.objects("NetworkPolicy", {"networkPolicy": {"enabled": True, "metricsFrom": peers}})
    assert closed[OPERATOR]["spec"]["ingress"] == []
    assert [rule["ports"][0]["port"] for rule in closed[ADMISSION]["spec"]["ingress"]] == ["webhook"]
    assert opened[OPERATOR]["spec"]["ingress"][0]["from"] == peers
    assert [rule["ports"][0]["port"] for rule in opened[ADMISSION]["spec"]["ingress"]] == ["webhook", "health"]
