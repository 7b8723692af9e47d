"""Admission reviews, as values."""

from collections.abc import Mapping
from typing import Any

import pytest

from kvbudget_operator.review import NotAReview, classes_needed, parse_request, review
from support.accepted import live_service, small_class
from support.objects import REMOVE, Object, changed

CLASSES: dict[str, Object] = {"small": small_class()}


def request(operation: str, obj: object, old: object = None, kind: str = "LLMService") -> Object:
    return {"uid": "u1", "operation": operation, "kind": {"kind": kind}, "object": obj, "oldObject": old}


def respond(asked: Object, classes: Mapping[str, Object] | None = None) -> Object:
    answer = review(asked, (CLASSES if classes is None else classes).get)
    assert (answer["kind"], answer["response"]["uid"]) == ("AdmissionReview", "u1")
    found: Object = answer["response"]
    return found


BAD = live_service(spec__maxModelLen=99_999_999)
MALFORMED = live_service(spec__maxModelLen="100")
"""Stored by a release whose schema took it; the API server lets unchanged values pass."""
OURS = {"kvbudget.dev/x": "y"}
LABELLED = live_service(spec__podTemplate={"labels": OURS})
BAD_CLASS = small_class(spec__memory="1.5m")


@pytest.mark.parametrize(
    ("asked", "allowed"),
    [
        (request("CREATE", live_service()), True),
        (request("CREATE", BAD), False),
        (request("DELETE", None, BAD), True),
        (request("CONNECT", None), True),
        (request("UPDATE", BAD, live_service()), False),
        (request("UPDATE", changed(BAD, {"metadata.labels": {"a": "b"}}), BAD), True),
        (request("UPDATE", changed(BAD, {"spec.replicas": 3}), BAD), True),
        (request("UPDATE", changed(BAD, {"metadata.deletionTimestamp": "now"}), live_service()), True),
        (request("UPDATE", changed(BAD, {"metadata.deletionTimestamp": "now", "spec.gpu": 7}), live_service()), True),
        (request("UPDATE", live_service(spec__router={"replicas": 1}), BAD), False),
        (request("UPDATE", changed(MALFORMED, {"spec.replicas": 3}), MALFORMED), True),
        (request("UPDATE", changed(MALFORMED, {"spec.maxModelLen": "200"}), MALFORMED), False),
        (request("UPDATE", changed(MALFORMED, {"spec.drain": {"timeoutSeconds": -1}}), MALFORMED), False),
        (request("UPDATE", changed(LABELLED, {"spec.podTemplate.labels": OURS | {"b": "c"}}), LABELLED), False),
        (request("UPDATE", live_service(), MALFORMED), True),
        (request("CREATE", small_class(), kind="GPUClass"), True),
        (request("CREATE", small_class(spec__memory="1.5m"), kind="GPUClass"), False),
        (request("UPDATE", changed(BAD_CLASS, {"spec.nodeSelector": {"a": "b"}}), BAD_CLASS, "GPUClass"), True),
        (request("UPDATE", changed(BAD_CLASS, {"spec.memory": "1.6m"}), BAD_CLASS, "GPUClass"), False),
        (request("UPDATE", small_class(spec__memory="0"), small_class(), kind="GPUClass"), False),
        (request("CREATE", {}, kind="TokenQuota"), False),
        (request("CREATE", None), False),
    ],
    ids=[
        "fits",
        "does not fit",
        "delete",
        "other operation",
        "update to what does not fit",
        "unchanged spec",
        "unchanged invalid field",
        "under deletion",
        "under deletion and malformed",
        "another invalid field",
        "unchanged malformed field",
        "malformed field changed to another",
        "unchanged malformed field and another",
        "broken rule of a changed value",
        "malformed field put right",
        "class",
        "class with a bad quantity",
        "unchanged bad quantity",
        "bad quantity changed to another",
        "class updated to a bad quantity",
        "unexpected kind",
        "no object",
    ],
)
def test_what_is_allowed(asked: Object, allowed: bool) -> None:
    response = respond(asked)
    assert response["allowed"] is allowed
    assert ("status" in response) is not allowed


def test_all_problems_come_in_one_answer_with_their_paths() -> None:
    bad = live_service(spec__router={"replicas": 1}, spec__kvCache={"prefixCache": {"mode": "PerTenant"}})
    status = respond(request("CREATE", bad))["status"]
    assert (status["code"], status["reason"]) == (422, "Invalid")
    fields = [cause["field"] for cause in status["details"]["causes"]]
    assert {"spec.router", "spec.kvCache.prefixCache.mode"} <= set(fields)
    assert len(status["message"].splitlines()) == len(fields)


def test_an_unknown_class_is_an_error_that_names_it_and_a_bad_one_says_so() -> None:
    status = respond(request("CREATE", live_service()), {})["status"]
    assert "spec.gpu.class: GPUClass small does not exist" in status["message"]
    status = respond(request("CREATE", live_service()), {"small": small_class(spec__memory="many")})["status"]
    assert "GPUClass small is itself invalid" in status["message"]


def test_a_smaller_budget_is_a_warning_with_before_and_after() -> None:
    old, new = live_service(spec__kvCache={"memoryPercent": 90}), live_service(spec__kvCache={"memoryPercent": 80})
    response = respond(request("UPDATE", new, old))
    assert response["allowed"]
    assert any("14400" in warning for warning in response["warnings"])


def test_what_was_malformed_before_is_told_as_a_warning() -> None:
    (warning,) = respond(request("UPDATE", changed(MALFORMED, {"spec.replicas": 3}), MALFORMED))["warnings"]
    assert warning == "spec.maxModelLen: must be a whole number; is '100'"


@pytest.mark.parametrize(
    ("edit", "warning"),
    [
        ({"spec.memory": "860Mi"}, "spec.memory: shrinks from 1.68 GiB to 860.00 MiB"),
        ({"spec.kvPrecisions": ["FP16"]}, "spec.kvPrecisions: no longer offers BF16"),
        ({"spec.memory": "2Gi"}, None),
    ],
)
def test_a_class_may_shrink_under_its_services_and_says_what_then(edit: Object, warning: str | None) -> None:
    response = respond(request("UPDATE", changed(small_class(), edit), small_class(), "GPUClass"))
    assert response["allowed"]
    assert [each.partition(":")[0] for each in response.get("warnings", [])] == (
        [warning.split(":")[0]] if warning else []
    )
    assert warning is None or response["warnings"][0].startswith(warning)


@pytest.mark.parametrize(
    "obj",
    [
        {},
        {"spec": None},
        {"spec": []},
        {"spec": {"gpu": 1}},
        {"spec": {"gpu": {"class": {}}}},
        {"metadata": 3},
        changed(live_service(), {"spec.model": REMOVE}),
        changed(live_service(), {"spec.gpu.class": "../../secrets"}),
        changed(live_service(), {"spec.maxModelLen": 10**400}),
        changed(live_service(), {"spec.maxModelLen": float("nan")}),
        changed(live_service(), {"metadata.name": "x" * 10_000}),
    ],
)
def test_a_malformed_object_gets_clear_text(obj: Any) -> None:
    asked = request("CREATE", obj)
    assert all("/" not in name for name in classes_needed(asked))
    status = respond(asked)["status"]
    assert status["code"] == 422
    assert status["message"]
    assert "Traceback" not in status["message"]


def test_warnings_are_cut_to_what_the_api_server_takes() -> None:
    old = live_service()
    old["spec"]["kvCache"] = {"memoryPercent": 95}
    for warning in respond(request("UPDATE", live_service(), old)).get("warnings", []):
        assert len(warning) <= 256


def test_classes_are_looked_up_only_where_they_are_needed() -> None:
    other = changed(live_service(), {"spec.gpu.class": "large"})
    assert classes_needed(request("UPDATE", live_service(), other)) == {"small", "large"}
    assert classes_needed(request("UPDATE", live_service(), live_service())) == frozenset()
    assert classes_needed(request("CREATE", small_class(), kind="GPUClass")) == frozenset()


@pytest.mark.parametrize("body", [None, [], {}, {"request": 1}, {"request": {}}, {"request": {"uid": 1}}])
def test_what_is_no_review_is_told(body: object) -> None:
    with pytest.raises(NotAReview, match="AdmissionReview"):
        parse_request(body)
