# The operator and the admission webhook. Carries no torch.
#   docker build -f images/operator.Dockerfile -t kvbudget/operator:dev .
# BASE: any image with Python 3.11 (and pip, where prepared/ does not come with the context). The default is python:3.11-slim-bookworm
# with Python 3.11.16 of 2026-09-19, by the digest that Docker's official images publish (docker-library/repo-info).
ARG BASE=python:3.11-slim-bookworm@sha256:a36c24f9cbdf4fd0f52d67f0823eeac19c2028c637cecc392d97f980d4fec56b

FROM ${BASE} AS build
COPY requirements/operator.txt images/*.py prepared* /build/
RUN [ -d /build/dependencies ] || python3 /build/dependencies.py operator /build/operator.txt /build/dependencies
COPY pyproject.toml core/ operator/ /source/
RUN python3 /build/application.py /source/pyproject.toml /build/application /source/kvbudget /source/kvbudget_operator
RUN PYTHONPATH=/build/application:/build/dependencies PYTHONDONTWRITEBYTECODE=1 python3 -c 'import importlib.util, kvbudget_operator, kvbudget; assert importlib.util.find_spec("torch") is None'

FROM ${BASE}
RUN echo 'kvbudget:x:65532:65532::/tmp:/usr/sbin/nologin' >>/etc/passwd && echo 'kvbudget:x:65532:' >>/etc/group
ENV PYTHONPATH=/opt/kvbudget/application:/opt/kvbudget/dependencies PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HOME=/tmp
USER 65532:65532
WORKDIR /tmp
COPY --from=build /build/dependencies /opt/kvbudget/dependencies
# the last layer, and alone in it: e2e/kind/last_layer.py brings nothing else into a cluster after a change of code
COPY --from=build /build/application /opt/kvbudget/application
ENTRYPOINT ["python3", "-m", "kvbudget_operator"]
CMD ["operator"]
