"""One table of good and bad objects, for pydantic and for the API server: both must take and refuse the same."""

from dataclasses import dataclass
from typing import Any

from support.objects import REMOVE, Object, changed, gpu_class, service


@dataclass(frozen=True)
class Case:
    """``path`` is where a bad object's problem is told; empty for a good object."""

    name: str
    object: Object
    path: str = ""


def _named(title: str, path: str, name: str) -> Case:
    return Case(title, service(name), path)


def _spec(name: str, path: str, changes: dict[str, Any]) -> Case:
    return Case(name, changed(service(), {f"spec.{key}": value for key, value in changes.items()}), path)


def _class(name: str, path: str, changes: dict[str, Any]) -> Case:
    return Case(name, changed(gpu_class(), {f"spec.{key}": value for key, value in changes.items()}), path)


FULL_POD: Object = {
    "labels": {"team": "search"},
    "annotations": {"note": "any text: at all"},
    "nodeSelector": {"zone": "a"},
    "tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}],
    "affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
    "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}],
    "priorityClassName": "high",
    "runtimeClassName": "nvidia",
    "imagePullSecrets": [{"name": "registry"}],
    "resources": {"requests": {"cpu": "500m", "memory": "2Gi"}, "limits": {"cpu": 2, "memory": "1.5Gi"}},
    "env": [{"name": "A", "value": "1"}, {"name": "B", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}],
    "volumes": [{"name": "scratch", "emptyDir": {"sizeLimit": "1Gi"}}],
    "volumeMounts": [{"name": "scratch", "mountPath": "/scratch", "readOnly": False}],
}
SHAPE: Object = {
    "layers": 32,
    "hiddenSize": 4096,
    "intermediateSize": 14336,
    "attentionHeads": 32,
    "kvHeads": 8,
    "headDim": 128,
    "vocabSize": 128256,
    "maxPositionEmbeddings": 131072,
    "tiedEmbeddings": False,
    "weightBytes": 16060522496,
}

GOOD = (
    Case("the smallest service", service()),
    _named("a name of 63 characters", "", "a" * 63),
    Case("labels", service(metadata__labels={"a": "b"}, metadata__annotations={"note": "x"})),
    _spec("a host path", "", {"model.source": {"hostPath": {"path": "/var/lib/weights"}}}),
    _spec("a file in a claim", "", {"model.source.pvc.path": "/models/..hidden/llama.v1.gguf"}),
    _spec("a model name with a slash", "", {"model.name": "meta-llama/Llama-3.1-8B-Instruct"}),
    _spec("a full shape", "", {"model.shape": SHAPE}),
    _spec("an empty shape", "", {"model.shape": {}}),
    _spec("every kvCache field", "", {"kvCache": {"precision": "FP8E4M3", "pageTokens": 16, "memoryPercent": 100}}),
    _spec("a precision for the planner", "", {"kvCache.precision": "NVFP4"}),
    _spec("null where there is a default", "", {"kvCache": None, "drain": {"timeoutSeconds": None}}),
    _spec("null where there is none", "", {"maxModelLen": None, "traffic": None, "podTemplate": {"env": None}}),
    _spec("null in a map", "", {"podTemplate": {"labels": {"a": None}, "resources": {"limits": {"cpu": None}}}}),
    _spec("traffic by sequences", "", {"traffic": {"concurrentRequests": 4, "inputTokens": 10, "outputTokens": 1}}),
    _spec(
        "traffic by rate",
        "",
        {
            "traffic": {
                "requestsPerMinute": 60,
                "outputTokensPerSecond": 30,
                "inputTokens": 6000,
                "outputTokens": 800,
            }
        },
    ),
    _spec("no replicas", "", {"replicas": 0}),
    _spec("replicas and scaling", "", {"replicas": 9, "scaling": {"maxReplicas": 8}}),
    _spec("min equal to max", "", {"scaling": {"minReplicas": 8, "maxReplicas": 8}}),
    _spec("default equal to maximum", "", {"admission": {"defaultOutputTokens": 64, "maxOutputTokens": 64}}),
    _spec("a small maximum alone", "", {"admission": {"maxOutputTokens": 16}}),
    _spec("overload as 503", "", {"admission": {"overloadStatus": 503, "queue": {"maxTokens": 1000}}}),
    _spec("no drain", "", {"drain.timeoutSeconds": 0}),
    _spec(
        "labels and mounts beside ours",
        "",
        {
            "podTemplate.labels": {"app.kubernetes.io/version": "1", "kvbudget.device/a": "b"},
            "podTemplate.volumeMounts": [{"name": "a", "mountPath": "/tmp/a"}, {"name": "a", "mountPath": "/models2"}],
        },
    ),
    _spec("a full pod template", "", {"podTemplate": FULL_POD}),
    _spec("fields of later releases", "", {"router": {}, "admission": {"mode": "Shadow"}, "engine": {"type": "VLLM"}}),
    _class("the smallest class", "", {}),
    _class("memory as a number", "", {"memory": 85028077568}),
    _class("memory with a fraction", "", {"memory": "22.5Gi"}),
    _class("memory in powers of ten", "", {"memory": "80e9"}),
    _class("memory in thousandths", "", {"memory": "2000m"}),
    _class("no device", "", {"resourceName": "cpu", "memory": "2Gi"}),
    _class("a MIG slice", "", {"resourceName": "nvidia.com/mig-1g.10gb"}),
    _class(
        "every fact", "", {"computeCapability": "9.0", "memoryBandwidth": "3350G", "kvPrecisions": ["BF16", "INT4"]}
    ),
    _class("nodes", "", {"nodeSelector": {"nvidia.com/gpu.product": "X"}, "tolerations": [{"operator": "Exists"}]}),
)

BAD = (
    Case("no spec", changed(service(), {"spec": REMOVE}), "spec"),
    _spec("no model", "spec.model", {"model": REMOVE}),
    _spec("no class", "spec.gpu.class", {"gpu": {}}),
    _named("a name with a dot", "metadata.name", "chat.v1"),
    _named("a name of 64 characters", "metadata.name", "a" * 64),
    _named("a name with a digit first", "metadata.name", "3chat"),
    _spec("a typing mistake", "spec.maxModelLength", {"maxModelLength": 10}),
    _spec("a field in snake case", "spec.gpu.tensor_parallel", {"gpu.tensor_parallel": 2}),
    _spec("no source", "spec.model.source", {"model.source": {}}),
    _spec("two sources", "spec.model.source", {"model.source.hostPath": {"path": "/x"}}),
    _spec("a relative path", "spec.model.source.pvc.path", {"model.source.pvc.path": "models"}),
    _spec("a path upwards", "spec.model.source.pvc.path", {"model.source.pvc.path": "/a/../../etc"}),
    _spec("a host path upwards", "spec.model.source.hostPath.path", {"model.source": {"hostPath": {"path": "/.."}}}),
    _spec("a claim's name in capitals", "spec.model.source.pvc.claimName", {"model.source.pvc.claimName": "Weights"}),
    _spec("a model name with a blank", "spec.model.name", {"model.name": "my model"}),
    _spec("a negative layer count", "spec.model.shape.layers", {"model.shape.layers": -1}),
    _spec("more KV heads than heads", "spec.model.shape.kvHeads", {"model.shape": {**SHAPE, "kvHeads": 64}}),
    _spec("an unknown precision", "spec.kvCache.precision", {"kvCache.precision": "FP4"}),
    _spec("an enum in the wrong case", "spec.kvCache.precision", {"kvCache.precision": "auto"}),
    _spec("an odd page", "spec.kvCache.pageTokens", {"kvCache.pageTokens": 48}),
    _spec("more than all memory", "spec.kvCache.memoryPercent", {"kvCache.memoryPercent": 101}),
    _spec("a number as text", "spec.maxModelLen", {"maxModelLen": "32768"}),
    _spec("a number with a fraction", "spec.maxModelLen", {"maxModelLen": 32768.5}),
    _spec("a truth value as a number", "spec.maxModelLen", {"maxModelLen": True}),
    _spec("a length of zero", "spec.maxModelLen", {"maxModelLen": 0}),
    _spec("null where a field is required", "spec.gpu.class", {"gpu": {"class": None}}),
    _spec("null for a field that is none", "spec.model_len", {"model_len": None}),
    _spec("null in a list", "spec.podTemplate.env[0]", {"podTemplate.env": [None]}),
    _spec("a list where an object belongs", "spec.kvCache", {"kvCache": []}),
    _spec("negative replicas", "spec.replicas", {"replicas": -1}),
    _spec(
        "traffic in both forms",
        "spec.traffic",
        {
            "traffic": {
                "concurrentRequests": 4,
                "requestsPerMinute": 60,
                "outputTokensPerSecond": 1,
                "inputTokens": 10,
                "outputTokens": 1,
            }
        },
    ),
    _spec("traffic in no form", "spec.traffic", {"traffic": {"inputTokens": 10, "outputTokens": 1}}),
    _spec(
        "a rate without a speed",
        "spec.traffic.outputTokensPerSecond",
        {"traffic": {"requestsPerMinute": 6, "inputTokens": 10, "outputTokens": 1}},
    ),
    _spec("min above max", "spec.scaling.minReplicas", {"scaling": {"minReplicas": 3, "maxReplicas": 2}}),
    _spec("scaling without a maximum", "spec.scaling.maxReplicas", {"scaling": {}}),
    _spec(
        "default above maximum",
        "spec.admission.defaultOutputTokens",
        {"admission": {"defaultOutputTokens": 65, "maxOutputTokens": 64}},
    ),
    _spec("an overload status of 500", "spec.admission.overloadStatus", {"admission.overloadStatus": 500}),
    _spec("a queue without a size", "spec.admission.queue.maxTokens", {"admission.queue": {}}),
    _spec("a drain of two days", "spec.drain.timeoutSeconds", {"drain.timeoutSeconds": 172800}),
    _spec("our own label", "spec.podTemplate.labels", {"podTemplate.labels": {"kvbudget.dev/plan": "x"}}),
    _spec(
        "a label of our selector", "spec.podTemplate.labels", {"podTemplate.labels": {"app.kubernetes.io/name": "x"}}
    ),
    _spec("the engine's label", "spec.podTemplate.labels", {"podTemplate.labels": {"llm-d.ai/engine-type": "x"}}),
    _spec("a label's value with a blank", "spec.podTemplate.labels.a", {"podTemplate.labels": {"a": "b c"}}),
    _spec("33 labels", "spec.podTemplate.labels", {"podTemplate.labels": {f"k{i}": "v" for i in range(33)}}),
    _spec("our own variable", "spec.podTemplate.env[0].name", {"podTemplate.env": [{"name": "KVBUDGET_PLAN"}]}),
    _spec(
        "where the last words go",
        "spec.podTemplate.env[0].name",
        {"podTemplate.env": [{"name": "KVBUDGET_TERMINATION_LOG", "value": "/tmp/log"}]},
    ),
    _spec("a variable twice", "spec.podTemplate.env", {"podTemplate.env": [{"name": "A"}, {"name": "A"}]}),
    _spec(
        "a field that no variable has", "spec.podTemplate.env[0].val", {"podTemplate.env": [{"name": "A", "val": ""}]}
    ),
    _spec("our own volume", "spec.podTemplate.volumes[0].name", {"podTemplate.volumes": [{"name": "kvbudget-tmp"}]}),
    _spec(
        "our own mount",
        "spec.podTemplate.volumeMounts[0].mountPath",
        {"podTemplate.volumeMounts": [{"name": "a", "mountPath": "/tmp"}]},
    ),
    *(
        _spec(
            f"our own mount as {path}",
            "spec.podTemplate.volumeMounts[0].mountPath",
            {"podTemplate.volumeMounts": [{"name": "a", "mountPath": path}]},
        )
        for path in ("/tmp/", "/dev/shm//", "/models/")
    ),
    _spec("a volume without a name", "spec.podTemplate.volumes[0].name", {"podTemplate.volumes": [{"emptyDir": {}}]}),
    _spec(
        "an unknown effect", "spec.podTemplate.tolerations[0].effect", {"podTemplate.tolerations": [{"effect": "No"}]}
    ),
    _spec(
        "a resource that is no quantity",
        "spec.podTemplate.resources.limits.memory",
        {"podTemplate.resources": {"limits": {"memory": "2Gib"}}},
    ),
    _spec(
        "a negative resource",
        "spec.podTemplate.resources.limits.cpu",
        {"podTemplate.resources": {"limits": {"cpu": -1}}},
    ),
    Case("a class without memory", changed(gpu_class(), {"spec": {}}), "spec.memory"),
    _class("no memory at all", "spec.memory", {"memory": 0}),
    _class("negative memory", "spec.memory", {"memory": "-1Gi"}),
    _class("memory that is no quantity", "spec.memory", {"memory": "80 GB"}),
    _class("half a byte", "spec.memory", {"memory": "0.3Ki"}),
    _class("memory beyond every GPU", "spec.memory", {"memory": "8Ei"}),
    _class("memory as a fraction", "spec.memory", {"memory": 79.5}),
    _class("a bare resource name", "spec.resourceName", {"resourceName": "gpu"}),
    _class("a capability without a dot", "spec.computeCapability", {"computeCapability": "90"}),
    _class("a precision twice", "spec.kvPrecisions", {"kvPrecisions": ["BF16", "BF16"]}),
    _class("no precision", "spec.kvPrecisions", {"kvPrecisions": []}),
    _class("an unknown weight precision", "spec.weightPrecisions[0]", {"weightPrecisions": ["FP4"]}),
)
