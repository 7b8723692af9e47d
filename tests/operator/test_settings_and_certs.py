"""Settings from the environment, and certificates as values."""

import contextlib
import json
import ssl
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from kvbudget.errors import InputError
from kvbudget_operator import certs
from kvbudget_operator.__main__ import kopf_settings
from kvbudget_operator.settings import AdmissionSettings, OperatorSettings

NOW = datetime(2026, 1, 1, tzinfo=UTC)
NAMES = certs.service_names("svc", "ns")
GOOD = certs.issue(NAMES, NOW)


@pytest.mark.parametrize(
    ("env", "named"),
    [
        ({}, "KVBUDGET_WORKER_IMAGE"),
        ({"KVBUDGET_WORKER_IMAGE": "w", "KVBUDGET_HEALTH_PORT": "http"}, "KVBUDGET_HEALTH_PORT"),
        ({"KVBUDGET_WORKER_IMAGE": "w", "KVBUDGET_HEALTH_PORT": "70000"}, "KVBUDGET_HEALTH_PORT"),
        ({"KVBUDGET_WORKER_IMAGE": "w", "KVBUDGET_SCRAPE_SECONDS": "soon"}, "KVBUDGET_SCRAPE_SECONDS"),
        ({"KVBUDGET_WORKER_IMAGE": "w", "KVBUDGET_SCRAPE_SECONDS": "nan"}, "KVBUDGET_SCRAPE_SECONDS"),
        ({"KVBUDGET_WORKER_IMAGE": "w", "KVBUDGET_WORKER_PULL_POLICY": "Maybe"}, "KVBUDGET_WORKER_PULL_POLICY"),
    ],
)
def test_a_bad_setting_is_named(env: dict[str, str], named: str) -> None:
    with pytest.raises(InputError) as error:
        OperatorSettings.from_env(env)
    assert error.value.path == named


def test_settings_are_read() -> None:
    env = {"KVBUDGET_WORKER_IMAGE": "w", "KVBUDGET_NAMESPACES": " a, b,", "KVBUDGET_SCRAPE_SECONDS": "0.5"}
    settings = OperatorSettings.from_env(env)
    assert (settings.namespaces, settings.scrape_seconds, settings.worker.image) == (("a", "b"), 0.5, "w")


@pytest.mark.parametrize(
    "missing", ["POD_NAMESPACE", *(f"KVBUDGET_WEBHOOK_{x}" for x in ("SERVICE", "CONFIG", "SECRET"))]
)
def test_names_that_only_the_installer_knows_have_no_default(missing: str) -> None:
    names = {f"KVBUDGET_WEBHOOK_{x}": x.lower() for x in ("SERVICE", "CONFIG", "SECRET")}
    env = {"POD_NAMESPACE": "ns", **names}
    assert AdmissionSettings.from_env(env) == AdmissionSettings("ns", "service", "config", "secret")
    del env[missing]
    with pytest.raises(InputError) as error:
        AdmissionSettings.from_env(env)
    assert error.value.path == missing


def test_a_folder_with_the_certificate_needs_no_secret() -> None:
    env = {"POD_NAMESPACE": "ns", "KVBUDGET_WEBHOOK_SERVICE": "s", "KVBUDGET_WEBHOOK_CONFIG": "c"}
    assert AdmissionSettings.from_env({**env, "KVBUDGET_WEBHOOK_CERT_DIR": "/c"}).certificate == Path("/c")


def test_kopf_keeps_no_state_on_objects_and_scans_only_a_whole_cluster() -> None:
    env = {"KVBUDGET_WORKER_IMAGE": "w"}
    whole = kopf_settings(OperatorSettings.from_env(env))
    assert (whole.posting.enabled, whole.peering.standalone, whole.scanning.disabled) == (False, True, False)
    part = kopf_settings(OperatorSettings.from_env({**env, "KVBUDGET_NAMESPACES": "a"}))
    assert part.scanning.disabled


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "env", "text"),
    [
        (["operator"], {}, "kvbudget-operator: KVBUDGET_WORKER_IMAGE: not set"),
        (["admission"], {}, "kvbudget-operator: POD_NAMESPACE: not set"),
        (
            ["verify-webhook"],
            {"KVBUDGET_LOG_FORMAT": "xml"},
            "kvbudget-operator: KVBUDGET_LOG_FORMAT: 'xml' is none of",
        ),
        (["verify-webhook"], {}, "kvbudget-operator: KUBECONFIG: no service account"),
        (["operator"], {"KVBUDGET_WORKER_IMAGE": "w"}, "kvbudget-operator: KUBECONFIG: no service account"),
    ],
)
def test_a_bad_start_is_one_line_and_exit_code_2(arguments: list[str], env: dict[str, str], text: str) -> None:
    command = [sys.executable, "-m", "kvbudget_operator", *arguments]
    env = {"KUBECONFIG": "/does/not/exist", "HOME": "/nonexistent", **env}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2, done.stderr
    assert text in done.stderr
    assert "Traceback" not in done.stderr


def test_the_operator_needs_no_torch() -> None:
    code = "import sys, json, kvbudget_operator.__main__; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    loaded = json.loads(done.stdout)
    assert not {"torch", "kubernetes_asyncio", "pykube"} & set(loaded)


@pytest.mark.parametrize(
    ("pair", "now", "names", "reason"),
    [
        (GOOD, NOW, NAMES, None),
        (GOOD, NOW + certs.VALID - certs.RENEW_BEFORE - timedelta(hours=1), NAMES, None),
        (GOOD, NOW + certs.VALID - certs.RENEW_BEFORE + timedelta(hours=1), NAMES, "it ends at"),
        (GOOD, NOW + certs.VALID + timedelta(days=9), NAMES, "no valid CA"),
        (GOOD, NOW, (*NAMES, "other"), "it does not cover other"),
        (certs.Pair(b"", b"", b""), NOW, NAMES, "it cannot be read"),
        (certs.Pair(GOOD.certificate, certs.issue(NAMES, NOW).key, GOOD.bundle), NOW, NAMES, "its key belongs"),
        (certs.Pair(GOOD.certificate, GOOD.key, certs.issue(NAMES, NOW).bundle), NOW, NAMES, "no valid CA"),
        (certs.Pair(GOOD.certificate, GOOD.key, b"nonsense"), NOW, NAMES, "no valid CA"),
    ],
)
def test_when_a_certificate_is_renewed(
    pair: certs.Pair, now: datetime, names: tuple[str, ...], reason: str | None
) -> None:
    found = certs.must_renew(pair, names, now)
    assert found is None if reason is None else found is not None and found.startswith(reason)


def test_a_renewal_trusts_the_one_before_and_no_older_one() -> None:
    second = certs.issue(NAMES, NOW + timedelta(days=300), GOOD)
    third = certs.issue(NAMES, NOW + timedelta(days=350), second)
    assert GOOD.bundle in second.bundle
    assert GOOD.bundle not in third.bundle
    assert third.bundle.count(b"BEGIN CERTIFICATE") == 2


def test_a_secret_round_trip_keeps_the_pair_and_nonsense_is_none() -> None:
    assert certs.Pair.from_secret({"data": GOOD.secret_data()}) == GOOD
    for data in ({}, None, {"tls.crt": "%%%", "tls.key": "", "ca.crt": ""}):
        assert certs.Pair.from_secret({"data": data}) is None


def test_a_pair_that_does_not_belong_together_leaves_the_one_before_in_service() -> None:
    now = datetime.now(UTC)
    good, other = certs.issue(NAMES, now), certs.issue(NAMES, now)
    context = certs.server_context()
    certs.load(context, good)
    with pytest.raises(ssl.SSLError):
        certs.load(context, certs.Pair(other.certificate, good.key, other.bundle))
    _shake_hands(context, good)


def _shake_hands(context: ssl.SSLContext, pair: certs.Pair) -> None:
    """A handshake in memory, with a client that trusts the pair. Raises ssl.SSLError where it fails."""
    trusting = ssl.create_default_context(cadata=pair.bundle.decode())
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = trusting.wrap_bio(to_client, to_server, server_hostname=NAMES[0])
    server = context.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(3):
        for side in (client, server):
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()
    assert client.version() is not None
