"""``spec.podTemplate``: what a user adds to the worker pod."""

import re
from typing import Annotated, ClassVar, Literal

from pydantic import ConfigDict, Field, StringConstraints

from kvbudget.api.base import (
    AnyObject,
    Labels,
    LeaveOutNull,
    ListMap,
    LongText,
    ObjectName,
    ResourceQuantity,
    Rule,
    ShortText,
    SpecModel,
)
from kvbudget.contract import (
    ENV_HOST,
    ENV_PLAN,
    ENV_PORT,
    ENV_TERMINATION_LOG,
    GROUP,
    LABEL_ENGINE,
    MODEL_DIR,
    PLAN_DIR,
)

OWN_ENV = (ENV_HOST, ENV_PLAN, ENV_PORT, ENV_TERMINATION_LOG)
"""Environment variables that a user must not set: the operator, its probes and its Service rely on them."""
OWN_LABELS = (
    *(f"app.kubernetes.io/{name}" for name in ("name", "instance", "component", "part-of", "managed-by")),
    LABEL_ENGINE,
)
"""Labels of the pods that a user must not set, beside all under the group: selectors and dashboards rely on them."""
OWN_VOLUMES = "kvbudget-"
"""Beginning of the names of the operator's own volumes."""
OWN_MOUNTS = (PLAN_DIR, MODEL_DIR, "/tmp", "/dev/shm")
"""Where the operator mounts them."""
_OWN_MOUNT = f"^({'|'.join(OWN_MOUNTS)})/*$"
"""The same folders, however many slashes follow. None of them has a character that a pattern reads otherwise."""


def _cel_list(values: tuple[str, ...]) -> str:
    return f"[{', '.join(repr(value) for value in values)}]"


class Toleration(SpecModel):
    """A taint that the pods tolerate, as in a pod."""

    key: ShortText | None = None
    """Key of the taint; left out: any."""
    operator: Literal["Equal", "Exists"] | None = None
    """Equal (the default) or Exists."""
    value: Annotated[str, StringConstraints(max_length=63)] | None = None
    """Value of the taint, with Equal."""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """Effect of the taint; left out: all."""
    toleration_seconds: Annotated[int, Field(ge=-(2**53) + 1, le=2**53 - 1)] | None = None
    """How long a NoExecute taint is tolerated; left out: for ever."""


class Resources(SpecModel):
    """Requests and limits of the worker's container. The class's own resource is the operator's: GPUs of a device
    class, memory of a cpu class."""

    requests: Annotated[dict[str, ResourceQuantity], Field(max_length=16), LeaveOutNull] | None = None
    """What the scheduler sets aside. Left out, memory of a device class: 1 GiB and the bytes of the weights."""
    limits: Annotated[dict[str, ResourceQuantity], Field(max_length=16), LeaveOutNull] | None = None
    """What the container may use at most."""


class EnvVar(SpecModel):
    """An environment variable of the worker, as in a pod."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "EnvIsOurs",
            "name",
            f"!(self.name in {_cel_list(OWN_ENV)})",
            f"{', '.join(OWN_ENV)} are the operator's own; remove this entry",
            lambda env: env.name not in OWN_ENV,
        ),
    )

    name: Annotated[str, StringConstraints(min_length=1, max_length=253, pattern=r"^[-._a-zA-Z][-._a-zA-Z0-9]*$")]
    """Name of the variable."""
    value: LongText | None = None
    """Its value."""
    value_from: AnyObject | None = None
    """Where its value comes from (secretKeyRef, configMapKeyRef, fieldRef, resourceFieldRef)."""


class Volume(SpecModel):
    """A volume of the pod; everything but the name is passed through."""

    model_config = ConfigDict(extra="allow")
    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "VolumeIsOurs",
            "name",
            f"!self.name.startsWith('{OWN_VOLUMES}')",
            f"names that begin with {OWN_VOLUMES} are the operator's own; choose another",
            lambda volume: not volume.name.startswith(OWN_VOLUMES),
        ),
    )

    name: Annotated[str, StringConstraints(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
    """Name of the volume."""


class VolumeMount(SpecModel):
    """A mount of the worker's container; what is not listed here is passed through."""

    model_config = ConfigDict(extra="allow")
    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "MountIsOurs",
            "mountPath",
            f"!self.mountPath.matches('{_OWN_MOUNT}')",
            f"{', '.join(OWN_MOUNTS)} are mounted by the operator; choose another path",
            lambda mount: re.fullmatch(_OWN_MOUNT, mount.mount_path) is None,
        ),
    )

    name: Annotated[str, StringConstraints(min_length=1, max_length=63)]
    """Name of the volume."""
    mount_path: Annotated[str, StringConstraints(min_length=1, max_length=1024)]
    """Where it is mounted."""


class LocalReference(SpecModel):
    """A Secret of the service's namespace."""

    name: ObjectName
    """Name of the Secret."""


class PodTemplate(SpecModel):
    """Merged into the worker pod. Lists are joined; what the operator needs as it is (labels, variables, mounts) is
    refused here, and a value that the class gives wins over one given here, with a warning."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "LabelIsOurs",
            "labels",
            f"!has(self.labels) || self.labels.all(key, !key.startsWith('{GROUP}/') && "
            f"!(key in {_cel_list(OWN_LABELS)}))",
            f"labels under {GROUP}/ and {', '.join(OWN_LABELS)} are the operator's own; choose another name",
            lambda pod: not any(key.startswith(f"{GROUP}/") or key in OWN_LABELS for key in pod.labels or {}),
        ),
    )

    labels: Labels | None = None
    """Labels of the pods."""
    annotations: Annotated[dict[str, LongText], Field(max_length=32), LeaveOutNull] | None = None
    """Annotations of the pods."""
    node_selector: Labels | None = None
    """Labels that a node must have, beside those of the class; of one key the class's value wins."""
    tolerations: Annotated[list[Toleration], Field(max_length=32)] | None = None
    """Taints that the pods tolerate, beside those of the class."""
    affinity: AnyObject | None = None
    """Affinity, as in a pod."""
    topology_spread_constraints: Annotated[list[AnyObject], Field(max_length=8)] | None = None
    """Spread over nodes and zones, as in a pod."""
    priority_class_name: ObjectName | None = None
    """PriorityClass of the pods."""
    runtime_class_name: ObjectName | None = None
    """RuntimeClass of the pods."""
    image_pull_secrets: Annotated[list[LocalReference], ListMap("name"), Field(max_length=16)] | None = None
    """Secrets for pulling the worker's image."""
    resources: Resources | None = None
    """Requests and limits of the worker's container."""
    env: Annotated[list[EnvVar], ListMap("name"), Field(max_length=64)] | None = None
    """Environment variables of the worker's container."""
    volumes: Annotated[list[Volume], ListMap("name"), Field(max_length=32)] | None = None
    """Volumes of the pod."""
    volume_mounts: Annotated[list[VolumeMount], ListMap("mount_path"), Field(max_length=32)] | None = None
    """Mounts of the worker's container."""
