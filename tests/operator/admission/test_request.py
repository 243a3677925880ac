"""What counts as a review, and which updates leave the workers as they are."""

from collections.abc import Callable
from typing import Any

import pytest

from kvtide_operator.admission.request import Answer, NotAReview, Request

Json = dict[str, Any]
Review = Callable[..., Json]


@pytest.mark.parametrize(
    "body",
    [
        None,
        [],
        "review",
        {},
        {"apiVersion": "admission.k8s.io/v1"},
        {"apiVersion": "admission.k8s.io/v1", "request": None},
        {"apiVersion": "admission.k8s.io/v1beta1", "request": {"uid": "r", "object": {"metadata": {}, "spec": {}}}},
        {"apiVersion": "admission.k8s.io/v1", "request": {"object": {"metadata": {}, "spec": {}}}},
        {"apiVersion": "admission.k8s.io/v1", "request": {"uid": "r", "object": None}},
        {"apiVersion": "admission.k8s.io/v1", "request": {"uid": "r", "object": {"metadata": {}, "spec": []}}},
        {
            "apiVersion": "admission.k8s.io/v1",
            "request": {"uid": "r", "object": {"metadata": {}, "spec": {}}, "oldObject": {}},
        },
    ],
)
def test_what_is_no_review(body: Any) -> None:
    with pytest.raises(NotAReview):
        Request.parse(body)


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("name", ".."),
        ("name", "a/../../secrets/b"),
        ("name", "a?watch=1"),
        ("name", "chat\n"),
        ("name", "Chat"),
        ("name", "-chat"),
        ("name", "a..b"),
        ("name", ".".join(["a" * 63] * 4)),  # 255 characters; the API server takes 253
        ("name", 7),
        ("namespace", "kube-system/secrets"),
        ("namespace", "a.b"),  # a namespace is one label
        ("namespace", "a" * 64),
        ("namespace", None),
    ],
)
@pytest.mark.parametrize("place", ["request", "object", "oldObject"])
def test_what_is_no_dns_name_is_no_review(make_review: Review, place: str, field: str, text: Any) -> None:
    review = make_review(old={})
    asked = review["request"]
    (asked if place == "request" else asked[place]["metadata"])[field] = text
    with pytest.raises(NotAReview, match=field):
        Request.parse(review)


@pytest.mark.parametrize("name", ["", "chat", "a.b-c.d", "0", "a" * 63])
def test_dns_names_and_names_that_are_yet_to_be_generated_are_read(make_review: Review, name: str) -> None:
    review = make_review(metadata={"name": name})
    review["request"]["name"] = name
    assert Request.parse(review).name == name


def test_who_it_is_about_comes_from_the_request_where_the_object_does_not_say(make_review: Review) -> None:
    review = make_review()
    review["request"]["object"]["metadata"] = {}
    resource = Request.parse(review).resource()
    assert (resource.namespace, resource.name, resource.uid) == ("team", "chat", "")


@pytest.mark.parametrize(
    ("old", "new", "kept"),
    [
        ({}, {}, True),
        ({}, {"replicas": 3}, True),
        ({}, {"autoscaling": {"mode": "Off"}}, True),
        # the API server writes defaults where an older version of the schema had none
        ({}, {"kvCache": {"precision": "Auto"}, "drain": {"timeoutSeconds": 120}}, True),
        ({}, {"workload": {"maxContextTokens": 2048}}, False),
        ({"kvCache": {"blockSizeTokens": 32}}, {"kvCache": {"blockSizeTokens": 64}}, False),
        ({}, {"device": {"kind": "GPU", "memory": "40Gi"}}, False),
        # what this version cannot read may still be scaled
        ({"workload": {"maxContextTokens": 1}}, {"workload": {"maxContextTokens": 1}, "replicas": 0}, True),
        ({"workload": {"maxContextTokens": 1}}, {"workload": {"maxContextTokens": 4096}}, False),
        ({"workload": {"maxContextTokens": 4096}}, {"workload": {"maxContextTokens": 1}}, False),
    ],
)
def test_which_updates_keep_the_workers(make_review: Review, old: Json, new: Json, kept: bool) -> None:
    assert Request.parse(make_review(old, **new)).keeps_intent is kept


def test_what_is_new_keeps_nothing_and_what_is_going_everything(make_review: Review) -> None:
    assert not Request.parse(make_review()).keeps_intent
    going = make_review({}, {"deletionTimestamp": "2026-01-01T00:00:00Z"}, replicas=0, drain={"timeoutSeconds": 1})
    assert Request.parse(going).keeps_intent


def test_answers_in_the_api_servers_form() -> None:
    """https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/#response"""
    assert Answer(True, warnings=("one",)).to_review("r-1") == {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "response": {"uid": "r-1", "allowed": True, "warnings": ["one"]},
    }
    assert Answer(False, "DoesNotFit", "too large").to_review("r-2")["response"] == {
        "uid": "r-2",
        "allowed": False,
        "status": {"code": 422, "reason": "DoesNotFit", "message": "too large"},
    }
