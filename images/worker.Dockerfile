# The worker. DEVICE=cpu leaves out what only a GPU can use; DEVICE=cuda keeps everything and brings compiled kernels for
# GPUS, so that no request compiles and no C compiler is needed. They are not compiled anew where only worker/ changes.
#   docker build -f images/worker.Dockerfile --build-arg DEVICE=cuda -t kvbudget/worker:dev .
# BASE: any image with Python 3.11 (and pip, where prepared/ does not come with the context). The default is python:3.11-slim-bookworm
# with Python 3.11.16 of 2026-09-19, by the digest that Docker's official images publish (docker-library/repo-info).
# TORCH_INDEX: an index with CPU-only wheels of torch, where one can be reached.
ARG BASE=python:3.11-slim-bookworm@sha256:a36c24f9cbdf4fd0f52d67f0823eeac19c2028c637cecc392d97f980d4fec56b

FROM ${BASE} AS build
ARG DEVICE=cpu
ARG TORCH_INDEX=
ARG GPUS=sm_80,sm_90,sm_100,sm_120
COPY requirements/worker.txt images/*.py prepared* /build/
RUN [ -d /build/dependencies ] || python3 /build/dependencies.py worker /build/worker.txt /build/dependencies --device "$DEVICE" --torch-index "$TORCH_INDEX"
COPY core/ kernels/ /source/
RUN mkdir -p /build/kernels && [ "$DEVICE" = cpu ] || [ -n "$(ls /build/kernels)" ] || { \
      command -v cc >/dev/null || { apt-get update -q && apt-get install -qy --no-install-recommends gcc libc6-dev; } && \
      PYTHONPATH=/source:/build/dependencies python3 -m kvbudget_kernels.aot --ship /build/kernels --targets "$GPUS"; }
COPY pyproject.toml worker/ /source/
RUN python3 /build/application.py /source/pyproject.toml /build/application /source/kvbudget /source/kvbudget_worker /source/kvbudget_kernels
RUN PYTHONPATH=/build/application:/build/dependencies PYTHONDONTWRITEBYTECODE=1 python3 -c 'import torch, kvbudget_worker; x = torch.ones(2, 3); assert (x @ x.T).sum() == 12'
RUN [ "$DEVICE" = cpu ] || PYTHONPATH=/build/application:/build/dependencies PYTHONDONTWRITEBYTECODE=1 python3 -m kvbudget_kernels.aot --verify /build/kernels --targets "$GPUS"

FROM ${BASE}
RUN echo 'kvbudget:x:65532:65532::/tmp:/usr/sbin/nologin' >>/etc/passwd && echo 'kvbudget:x:65532:' >>/etc/group
ENV PYTHONPATH=/opt/kvbudget/application:/opt/kvbudget/dependencies PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HOME=/tmp
ENV KVBUDGET_SHIPPED_KERNELS=/opt/kvbudget/kernels TRITON_CACHE_MANAGER=kvbudget_kernels.shipped:ShippedCache
USER 65532:65532
WORKDIR /tmp
COPY --from=build /build/dependencies /opt/kvbudget/dependencies
COPY --from=build /build/kernels /opt/kvbudget/kernels
# the last layer, and alone in it: e2e/kind/last_layer.py brings nothing else into a cluster after a change of code
COPY --from=build /build/application /opt/kvbudget/application
ENTRYPOINT ["python3", "-m", "kvbudget_worker"]
