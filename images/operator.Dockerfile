# The operator and the admission webhook. Carries no torch.
#   docker build -f images/operator.Dockerfile -t kvbudget/operator:dev .
# BASE: any image with Python 3.11 (and pip, where prepared/ does not come with the context); pin it by digest.
ARG BASE=python:3.11-slim-bookworm

FROM ${BASE} AS build
COPY requirements/operator.txt images/*.py prepared* /build/
RUN [ -d /build/dependencies ] || python3 /build/dependencies.py operator /build/operator.txt /build/dependencies
COPY pyproject.toml core/ operator/ /source/
RUN python3 /build/application.py /source/pyproject.toml /build/application /source/kvbudget /source/kvbudget_operator

FROM ${BASE}
RUN echo 'kvbudget:x:65532:65532::/tmp:/usr/sbin/nologin' >>/etc/passwd && echo 'kvbudget:x:65532:' >>/etc/group
ENV PYTHONPATH=/opt/kvbudget/application:/opt/kvbudget/dependencies PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HOME=/tmp
COPY --from=build /build/dependencies /opt/kvbudget/dependencies
COPY --from=build /build/application /opt/kvbudget/application
USER 65532:65532
WORKDIR /tmp
RUN python3 -c 'import importlib.util, kvbudget_operator, kvbudget; assert importlib.util.find_spec("torch") is None'
ENTRYPOINT ["python3", "-m", "kvbudget_operator"]
CMD ["operator"]
