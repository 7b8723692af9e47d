"""`make demo`: the product's main job, step by step, on a real cluster, with real weights and real output.

It shows, in this order: the cluster, the chart, a manifest that is refused with its arithmetic, a model that is
accepted, a streamed answer, sixty requests against a budget of about 20,000 tokens, and replicas that follow the KV
demand from one to two and back. It ends with a table, how to go on, and how to remove it all.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from harness.cluster import CACHE, REPOSITORY, Cluster, CommandError, NoClusterError
from harness.dump import SYSTEM, dump
from harness.install import RELEASE, install, upgrade_arguments
from harness.serving import stream_chat, wait_answers
from harness.tokens import Pool, check_never_over, pools
from harness.traffic import questions
from harness.waiting import eventually
from kvbudget.contract import LABEL_SERVICE
from loadgen import Report, load

NAMESPACE = "kvbudget-demo"
SERVICE = "smollm2"
MODEL = "SmolLM2-135M-Instruct"
QUESTION = "What is the capital of France?"
REQUESTS = 60
LOAD_S = 600
DRAIN_S = 640
"""A worker finishes what it has: its pod may take terminationGracePeriodSeconds (610 here) to end."""
CRDS = ("llmservices.kvbudget.dev", "gpuclasses.kvbudget.dev")


class DemoError(Exception):
    """A step that did not show what it had to; the text says what, and what to try next."""


@dataclass
class Facts:
    """What the summary tells."""

    started: float = field(default_factory=time.monotonic)
    rows: list[tuple[str, str]] = field(default_factory=list)

    def add(self, what: str, value: str) -> None:
        self.rows.append((what, value))


def say(text: str = "", indent: int = 2) -> None:
    print("\n".join(f"{' ' * indent}{line}".rstrip() for line in text.splitlines()) if text else "", flush=True)


@contextmanager
def step(number: int, title: str, facts: Facts) -> Iterator[None]:
    """One section of the output, with the time it took."""
    say(f"\n== {number}. {title} ".ljust(100, "="), indent=0)
    started = time.monotonic()
    yield
    say(f"[{time.monotonic() - started:.1f} s; {time.monotonic() - facts.started:.0f} s in all]")


def shown(cluster: Cluster, *arguments: str) -> str:
    """Prints a kubectl command and its output, as a user would see both."""
    say(f"$ kubectl {' '.join(arguments)}")
    output = cluster.kubectl(*arguments)
    say(output)
    return output


def show_cluster(cluster: Cluster, facts: Facts) -> None:
    columns = r"NAME:.metadata.name,VERSION:.status.nodeInfo.kubeletVersion,GPUS:.status.allocatable.nvidia\.com/gpu"
    shown(cluster, "get", "nodes", "-o", f"custom-columns={columns}")
    facts.add("nodes", str(len(cluster.find("nodes"))))


def show_install(cluster: Cluster, facts: Facts) -> None:
    say(f"$ helm {' '.join(upgrade_arguments())}")
    say("(--wait is silent until two webhooks and the operator run: mostly less than a minute, 6 at most)")
    installed = install(cluster)
    say(f"helm returned after {installed.seconds:.1f} s; a dry-run create has passed the webhook.")
    shown(cluster, "get", "deployments", "-n", SYSTEM)
    facts.add("chart installed in", f"{installed.seconds:.1f} s")


def show_refusal(cluster: Cluster, facts: Facts) -> None:
    shown(cluster, "apply", "-f", "examples/gpuclass.yaml")
    say("$ kubectl apply -f examples/impossible.yaml")
    try:
        cluster.kubectl("apply", "-f", "examples/impossible.yaml")
    except CommandError as refused:
        say(refused.output.strip())
        if "spec.maxModelLen" not in refused.output:
            raise DemoError(f"refused, but not for its length:\n{refused.output}") from refused
    else:
        raise DemoError("examples/impossible.yaml was admitted: the webhook does not see it. Next: make e2e")
    facts.add("impossible.yaml", "refused at apply, with the arithmetic")


def show_service(cluster: Cluster, facts: Facts) -> None:
    shown(cluster, "apply", "-f", "examples/smollm2-volume.yaml")
    shown(cluster, "apply", "-f", "examples/smollm2.yaml")
    say("The next command is silent while the pod starts and loads the weights: mostly 20 to 40 s, 180 at most.")
    started = time.monotonic()
    shown(cluster, "wait", "--for=condition=Ready", f"llm/{SERVICE}", "-n", NAMESPACE, "--timeout=180s")
    shown(cluster, "get", "llm", "-n", NAMESPACE)
    status = (cluster.get("llmservices", SERVICE, NAMESPACE) or {})["status"]
    facts.add("weights loaded, service Ready in", f"{time.monotonic() - started:.1f} s")
    facts.add("KV tokens per replica (planned)", f"{status['budget']['tokens']:,}")


def show_answer(cluster: Cluster, facts: Facts) -> str:
    url = cluster.open_service(SERVICE, NAMESPACE)
    wait_answers(url)
    say(f"POST {url}/v1/chat/completions  (a NodePort in front of the workers)")
    say(f"user:      {QUESTION}")
    print("  assistant: ", end="", flush=True)
    started = time.monotonic()
    first = 0.0
    for text in stream_chat(url, MODEL, QUESTION):
        first = first or time.monotonic() - started
        print(text, end="", flush=True)
    print(flush=True)
    if not first:
        raise DemoError(f"no text came: kubectl logs -n {NAMESPACE} -l kvbudget.dev/llmservice={SERVICE}")
    facts.add("first token of the chat after", f"{first * 1000:.0f} ms")
    return url


def show_load(cluster: Cluster, url: str, facts: Facts) -> None:
    asked = questions(REQUESTS)
    allowed = [question.max_tokens for question in asked]
    say(
        f"{len(asked)} chats at once that may write up to {sum(allowed):,} tokens together, {min(allowed)} to "
        f"{max(allowed)} each.\n"
        "Each reserves all that it may use and gives back the rest when it ends; those refused come back when their\n"
        "Retry-After says so."
    )
    sampled: list[Pool] = []
    last = ""
    explained = False
    with load(url, MODEL, asked, concurrency=len(asked), deadline_s=LOAD_S) as running:
        ticker = Ticker(2.0)
        while running.running:
            now = pools(cluster, SERVICE, NAMESPACE)
            sampled += now
            line = load_line(len(running.done), now, replicas(cluster))
            if ticker.due() and line != last:
                say(line)
                last = line
            if len(now) > 1 and not explained:
                say(SECOND_REPLICA)
                explained = True
    report = running.report()
    check_never_over(sampled)
    say("\n".join(report.lines()))
    if report.complete < len(asked):
        raise DemoError(
            f"{report.complete} of {len(asked)} requests were completed in {LOAD_S} s; "
            f"{len(report.lost)} admitted ones were lost, {len(report.errors)} failed"
        )
    if not report.refusals:
        raise DemoError("no request was refused: the load did not fill the budget")
    add_load(report, max(sampled, key=lambda pool: pool.reserved / pool.total), facts)


SECOND_REPLICA = """\
(The second replica is here. The Service spreads connections, not tokens, and what was admitted stays where it is:
only refused requests that come back can reach it. So it may hold few tokens.)"""


def load_line(done: int, now: list[Pool], wanted: int) -> str:
    shares = "  ".join(
        f"{pool.pod[-5:]} {pool.reserved:>6,}/{pool.total:,} ({100 * pool.reserved // pool.total:>3} %)" for pool in now
    )
    return f"{done:>3} done   replicas wanted {wanted}   KV tokens reserved: {shares}"


def add_load(report: Report, highest: Pool, facts: Facts) -> None:
    facts.add("requests: complete / refused at first", f"{report.complete} / {report.refused}")
    if report.refusals:
        low, high = min(report.refusals) / 1000, max(report.refusals) / 1000
        facts.add("429 answers, Retry-After", f"{len(report.refusals)}, {low:.1f} to {high:.1f} s")
    facts.add("output tokens per second", f"{report.tokens / report.seconds:.0f}")
    percent = 100 * highest.reserved // highest.total
    facts.add("highest KV use of a replica", f"{highest.reserved:,} of {highest.total:,} tokens ({percent} %)")
    facts.add("admitted and lost", str(len(report.lost)))


def show_scaling(cluster: Cluster, facts: Facts) -> None:
    say("The load has ended. One replica is enough once it has been so for scaleDownDelaySeconds (20).")
    started = time.monotonic()
    eventually(lambda: replicas(cluster) == 1, 90, "one replica to be wanted")
    eventually(lambda: len(cluster.pods_of(SERVICE, NAMESPACE)) == 1, 150, "the drained pod to end")
    seconds = time.monotonic() - started
    decisions = (cluster.get("llmservices", SERVICE, NAMESPACE) or {})["status"].get("decisions", [])
    for decision in reversed(decisions):  # the status has the newest first
        say(f"{decision.get('time', '')}  {decision['current']} -> {decision['desired']}  {decision['message']}")
    shown(cluster, "get", "llm", "-n", NAMESPACE)
    if not any(decision["desired"] == 2 for decision in decisions):
        raise DemoError("the load did not raise the replicas to 2")
    facts.add("replicas", "1 -> 2 -> 1")
    facts.add("one replica again", f"{seconds:.0f} s after the load's end")


def replicas(cluster: Cluster) -> int:
    return int((cluster.get("llmservices", SERVICE, NAMESPACE) or {})["spec"].get("replicas", 0))


class Ticker:
    """True once per ``seconds``."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._next = 0.0

    def due(self) -> bool:
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + self._seconds
        return True


def summary(facts: Facts) -> None:
    say("\n== Summary ".ljust(100, "="), indent=0)
    width = max(len(what) for what, _ in facts.rows)
    for what, value in facts.rows:
        say(f"{what.ljust(width)}  {value}")
    say(f"{'the whole demo took'.ljust(width)}  {time.monotonic() - facts.started:.0f} s")


def closing(url: str) -> None:
    say(f"""
Open it yourself (a NodePort over all replicas; a port-forward would always reach the same one):
  export KUBECONFIG={CACHE / "kubeconfig"} PATH={CACHE / "bin"}:$PATH
  curl -s {url}/v1/chat/completions -H 'content-type: application/json' \\
    -d '{{"model": "{MODEL}", "messages": [{{"role": "user", "content": "{QUESTION}"}}]}}'
  kubectl describe llm {SERVICE} -n {NAMESPACE}
Remove it, in this order:
  kubectl delete llm {SERVICE} -n {NAMESPACE}
  kubectl wait --for=delete pod -l {LABEL_SERVICE}={SERVICE} -n {NAMESPACE} --timeout={DRAIN_S}s
      its workers first finish what they have; a namespace deleted before they have ended takes five minutes
  kubectl delete -f examples/smollm2-volume.yaml --ignore-not-found
      the weights' claim and volume, and the namespace; a volume that stays would never be bound again
  kubectl delete -f examples/gpuclass.yaml
  helm uninstall {RELEASE} -n {SYSTEM} --wait
  kubectl delete crd {" ".join(CRDS)}
  kubectl delete namespace {SYSTEM}
Or all of it at once: make cluster-down
""")


def clean(cluster: Cluster) -> None:
    """Whatever an earlier demo has left, in the order that ``closing`` tells: the namespace goes only when no worker is
    left in it, since its controller waits for half of their grace period before it looks again. Seconds where they are
    idle; workers that still answer somebody finish that first."""
    if cluster.get("namespaces", NAMESPACE) is not None:
        say(f"removing what an earlier demo has left in namespace {NAMESPACE} ...", indent=0)
        if cluster.get("customresourcedefinitions", CRDS[0]) is not None:
            cluster.kubectl("delete", "llmservices", "--all", "-n", NAMESPACE)
        eventually(lambda: not cluster.find("pods", NAMESPACE, LABEL_SERVICE), DRAIN_S, "the old workers to end")
    cluster.delete("namespace", NAMESPACE, timeout_s=DRAIN_S)
    cluster.delete("persistentvolume", "kvbudget-demo-smollm2")


def run(cluster: Cluster) -> None:
    facts = Facts()
    clean(cluster)
    sections: list[tuple[str, Callable[[Cluster, Facts], None]]] = [
        ("The cluster", show_cluster),
        ("The chart, installed with helm", show_install),
        ("A model that cannot fit is refused at apply", show_refusal),
        ("A model that fits", show_service),
    ]
    for number, (title, show) in enumerate(sections, 1):
        with step(number, title, facts):
            show(cluster, facts)
    with step(5, "A streamed answer", facts):
        url = show_answer(cluster, facts)
    with step(6, "More requests than the budget holds", facts):
        show_load(cluster, url, facts)
    with step(7, "Replicas follow the KV demand", facts):
        show_scaling(cluster, facts)
    summary(facts)
    closing(url)


def main() -> int:
    """Exit code 0: everything was shown; 1: a step failed; 2: no cluster."""
    try:
        with Cluster() as cluster:
            try:
                run(cluster)
            except Exception as error:  # noqa: BLE001 # whatever it was: the reader gets the dump and the next command
                what = str(error) if isinstance(error, DemoError | CommandError) else f"{type(error).__name__}: {error}"
                say(f"\nFAILED: {what}", indent=0)
                folder = dump(cluster, "demo", NAMESPACE)
                say(f"Events, logs and objects: {folder.relative_to(REPOSITORY)}/", indent=0)
                say("Next: look there, then make demo again; it starts from whatever is left.", indent=0)
                return 1
    except NoClusterError as error:
        say(f"FAILED: {error}", indent=0)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
