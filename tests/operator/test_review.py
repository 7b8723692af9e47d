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
        (request("CREATE", small_class(), kind="GPUClass"), True),
        (request("CREATE", small_class(spec__memory="1.5m"), kind="GPUClass"), False),
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
        "class",
        "class with a bad quantity",
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
