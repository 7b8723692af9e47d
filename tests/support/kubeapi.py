"""The few requests that tests make to an API server, without a client's help or opinion."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlencode

import urllib3

_T = TypeVar("_T")
Object = dict[str, Any]


class ApiError(Exception):
    """The API server refused: ``status`` of HTTP, the server's ``message``, and the field paths in ``causes``."""

    def __init__(self, status: int, body: Mapping[str, Any]) -> None:
        super().__init__(f"{status}: {body.get('message', '')}")
        self.status = status
        self.message: str = body.get("message", "")
        self.causes = [cause.get("field", "") for cause in body.get("details", {}).get("causes", [])]


@dataclass
class KubeAPI:
    """Requests as one user. ``url`` is the server's, ``folder`` holds ca.crt, admin.crt and admin.key."""

    url: str
    folder: Path
    user: str = ""
    groups: Sequence[str] = ()
    warnings: list[str] = field(default_factory=list)
    """Warnings of the last answer."""

    def __post_init__(self) -> None:
        self._pool = urllib3.PoolManager(
            ca_certs=str(self.folder / "ca.crt"),
            cert_file=str(self.folder / "admin.crt"),
            key_file=str(self.folder / "admin.key"),
            retries=False,
            timeout=30,
        )

    def impersonate(self, user: str, groups: Sequence[str] = ()) -> "KubeAPI":
        """The same server as ``user`` in ``groups``."""
        return KubeAPI(self.url, self.folder, user, groups)

    def request(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
        accept: str = "application/json",
    ) -> Any:
        """The answer's JSON. Raises :class:`ApiError` for any status from 400 on."""
        headers = urllib3.HTTPHeaderDict({"Accept": accept, "Content-Type": content_type})
        if self.user:
            headers.add("Impersonate-User", self.user)
        for group in self.groups:
            headers.add("Impersonate-Group", group)
        answer = self._pool.request(
            method,
            self.url + path + (f"?{urlencode(query)}" if query else ""),
            body=None if body is None else json.dumps(body).encode(),
            headers=headers,
        )
        self.warnings = answer.headers.getlist("Warning")
        if answer.status >= 400:
            raise ApiError(answer.status, _json(answer.data))
        return _json(answer.data)

    def get(self, path: str, **more: Any) -> Any:
        return self.request("GET", path, **more)

    def create(self, path: str, body: Object, **query: str) -> Object:
        """POST under strict field validation."""
        return self._object("POST", path, body, query)

    def replace(self, path: str, body: Object, **query: str) -> Object:
        """PUT under strict field validation."""
        return self._object("PUT", path, body, query)

    def apply(self, path: str, body: Object, *, manager: str = "test", force: bool = True, **query: str) -> Object:
        """Server-side apply under strict field validation."""
        query |= {"fieldManager": manager, "force": str(force).lower()}
        return self._object("PATCH", path, body, query, "application/apply-patch+yaml")

    def merge(self, path: str, body: Object) -> Object:
        """Merge patch."""
        return self._object("PATCH", path, body, {}, "application/merge-patch+json")

    def delete(self, path: str) -> None:
        self.request("DELETE", path)

    def _object(self, method: str, path: str, body: Object, query: dict[str, str], content_type: str = "") -> Object:
        query = {"fieldValidation": "Strict", **query}
        found: Object = self.request(method, path, body, query=query, content_type=content_type or "application/json")
        return found

    def close(self) -> None:
        self._pool.clear()


def _json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        return {"message": data.decode(errors="replace")}


def eventually(check: Callable[[], _T], seconds: float, describe: Callable[[], str] = lambda: "") -> _T:
    """The first true value of ``check``, asked every 50 ms. Raises TimeoutError, saying what ``describe`` says."""
    deadline = time.monotonic() + seconds
    while not (found := check()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {seconds} s: {describe()}")
        time.sleep(0.05)
    return found


CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


def apply_crds(api: KubeAPI, crds: Sequence[Object]) -> None:
    """Applies CRDs server-side and waits until the API server serves them."""
    for crd in crds:
        path = f"{CRDS}/{crd['metadata']['name']}"
        api.apply(path, crd)

        def established(path: str = path) -> bool:
            conditions = api.get(path).get("status", {}).get("conditions") or []
            return any(c["type"] == "Established" and c["status"] == "True" for c in conditions)

        eventually(established, 30)
