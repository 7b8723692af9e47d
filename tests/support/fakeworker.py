"""A worker's metrics endpoint on loopback, and the pod that the kubelet would have made of it."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from kvbudget import contract
from kvbudget.plan import Plan
from support.kubeapi import Object
from support.services import Cluster, controller


class FakeWorker:
    """Serves the metrics of ``plan`` with the loads that the test sets. Close it."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.reserved = 0
        self.queued = 0
        self.refused = 0
        self.pages = plan.kv.pages
        worker = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = worker.exposition().encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def exposition(self) -> str:
        values = {
            contract.KV_TOKENS: self.pages * self.plan.kv.page_tokens,
            contract.KV_TOKENS_RESERVED: self.reserved,
            contract.QUEUED_TOKENS: self.queued,
            contract.REFUSED_DEMAND: self.refused,
            contract.MEASURED_PAGES: self.pages,
            contract.MEASURED_PAGE_BYTES: self.plan.kv.page_bytes,
            contract.MEASURED_WEIGHT_BYTES: self.plan.budget.weight_bytes,
            contract.MEASURED_FREE_BYTES: 1,
        }
        lines = [f'{metric.name}{{model_name="m"}} {value}' for metric, value in values.items()]
        lines.append(f'{contract.PLAN_INFO.name}{{model_name="m",plan="{self.plan.hash()}"}} 1')
        return "\n".join(lines) + "\n"

    def pod(self, cluster: Cluster, name: str) -> Object:
        """A ready pod of service ``chat``, which must be deployed."""
        labels = {"kvbudget.dev/llmservice": "chat", "kvbudget.dev/plan": self.plan.hash()}
        owner = cluster.replica_set(f"chat-{self.plan.hash()}", labels)
        ports = [{"name": "http", "containerPort": self.port}]
        spec = {"containers": [{"name": "worker", "image": "x", "ports": ports}]}
        metadata = {"name": name, "labels": labels, "ownerReferences": [controller(owner, "ReplicaSet")]}
        cluster.api.create(cluster.path("pods"), {"metadata": metadata, "spec": spec})
        ready = {"type": "Ready", "status": "True"}
        status = {
            "phase": "Running",
            "podIP": "127.0.0.1",
            "podIPs": [{"ip": "127.0.0.1"}],
            "conditions": [ready],
        }
        return cluster.api.merge(f"{cluster.path('pods', name)}/status", {"status": status})

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
