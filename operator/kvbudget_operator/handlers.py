"""Everything that kopf calls: what is watched, how it is indexed, and which key an event wakes up. No decisions here.

Children, ReplicaSets and pods are watched by our label only (see :func:`kvbudget_operator.__main__.kopf_settings`).
"""

from collections.abc import Mapping
from typing import Any

import kopf

from kvbudget.contract import GROUP, VERSION
from kvbudget_operator.gather import Indexes, Key, child_key, class_name, service_key, slim, slim_pod
from kvbudget_operator.objects import Object

LLMSERVICES = (GROUP, VERSION, "llmservices")
GPUCLASSES = (GROUP, VERSION, "gpuclasses")
DEPLOYMENTS = ("apps", "v1", "deployments")
REPLICASETS = ("apps", "v1", "replicasets")
CONFIGMAPS = ("", "v1", "configmaps")
SERVICES = ("", "v1", "services")
SERVICEACCOUNTS = ("", "v1", "serviceaccounts")
DISRUPTIONBUDGETS = ("policy", "v1", "poddisruptionbudgets")
PODS = ("", "v1", "pods")
LABELLED = (DEPLOYMENTS, REPLICASETS, CONFIGMAPS, SERVICES, SERVICEACCOUNTS, DISRUPTIONBUDGETS, PODS)

_Index = dict[Any, Object]


@kopf.on.startup()
async def start(memo: kopf.Memo, **kwargs: Any) -> None:
    names = ("services", "gpu_classes", "users", "deployments", "replica_sets", "config_maps", "others", "pods")
    await memo.controller.start(Indexes(**{name: kwargs[name] for name in names}))


@kopf.on.cleanup()
async def stop(memo: kopf.Memo, **_: Any) -> None:
    await memo.controller.stop()


@kopf.index(*LLMSERVICES)
async def services(body: Mapping[str, Any], **_: Any) -> _Index:
    return {service_key(body["metadata"]): slim(body)}


@kopf.index(*LLMSERVICES)
async def users(body: Mapping[str, Any], **_: Any) -> dict[str | None, Key]:
    return {class_name(body): service_key(body["metadata"])}


@kopf.index(*GPUCLASSES)
async def gpu_classes(body: Mapping[str, Any], **_: Any) -> _Index:
    return {body["metadata"]["name"]: slim(body)}


@kopf.index(*DEPLOYMENTS)
async def deployments(body: Mapping[str, Any], **_: Any) -> _Index:
    return {child_key(body["metadata"]): slim(body)}


@kopf.index(*REPLICASETS)
async def replica_sets(body: Mapping[str, Any], **_: Any) -> _Index:
    return {child_key(body["metadata"]): slim(body)}


@kopf.index(*CONFIGMAPS)
async def config_maps(body: Mapping[str, Any], **_: Any) -> _Index:
    return {child_key(body["metadata"]): slim(body)}


@kopf.index(*SERVICES)
@kopf.index(*SERVICEACCOUNTS)
@kopf.index(*DISRUPTIONBUDGETS)
async def others(body: Mapping[str, Any], **_: Any) -> _Index:
    return {child_key(body["metadata"]): slim(body)}


@kopf.index(*PODS)
async def pods(body: Mapping[str, Any], **_: Any) -> _Index:
    return {child_key(body["metadata"]): slim_pod(body)}


@kopf.on.event(*LLMSERVICES)
async def service_changed(body: Mapping[str, Any], memo: kopf.Memo, **_: Any) -> None:
    memo.controller.add(service_key(body["metadata"]))


@kopf.on.event(*GPUCLASSES)
async def class_changed(body: Mapping[str, Any], memo: kopf.Memo, **_: Any) -> None:
    memo.controller.add_users(body["metadata"]["name"])


@kopf.on.event(*DEPLOYMENTS)
@kopf.on.event(*REPLICASETS)
@kopf.on.event(*CONFIGMAPS)
@kopf.on.event(*SERVICES)
@kopf.on.event(*SERVICEACCOUNTS)
@kopf.on.event(*DISRUPTIONBUDGETS)
async def child_changed(body: Mapping[str, Any], memo: kopf.Memo, **_: Any) -> None:
    memo.controller.add(child_key(body["metadata"]))


@kopf.on.event(*PODS)
async def pod_changed(body: Mapping[str, Any], memo: kopf.Memo, **_: Any) -> None:
    await memo.controller.pod_changed(slim_pod(body))
