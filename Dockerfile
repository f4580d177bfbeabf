# Images from one file. A build that names no target makes `app`, and so does a Space, which can name none.
#
#   docker build -t switchboard .                     the page: hosted models, a server of yours, or llama.cpp
#   docker build -t switchboard-gpu --target gpu .    the page and vLLM in one container
#
# The target `stores` is the page with the drivers of PostgreSQL and Redis, for compose.yaml.

FROM python:3.11-slim-bookworm AS base
# llama.cpp needs OpenMP, and that is all that the locked packages want of the system. 1000 is the user id of Spaces.
# A version pinned here would be gone from Debian's mirrors at the next security update.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends libgomp1 \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 1000 --home-dir /data/home switchboard \
    && install -d -o 1000 -g 1000 /data
WORKDIR /app

# Made where it will run, because the programs in a virtual environment name its place.
FROM base AS packages
ARG PIP_INDEX_URL
ENV UV_LINK_MODE=copy
COPY --chmod=755 .ci/uv .ci/uv.txt .ci/
COPY requirements-app.txt requirements-extras.txt requirements-models.txt requirements-ocr.txt ./
RUN --mount=type=cache,target=/root/.cache/uv \
    .ci/uv venv -q --python python .venv \
    && .ci/uv pip sync -q --require-hashes --compile-bytecode --python .venv \
        requirements-app.txt requirements-extras.txt requirements-models.txt requirements-ocr.txt

FROM packages AS packages-stores
COPY requirements-stores.txt ./
RUN --mount=type=cache,target=/root/.cache/uv \
    .ci/uv pip install -q --require-hashes --compile-bytecode --python .venv -r requirements-stores.txt

FROM packages AS packages-gpu
COPY requirements-gpu.txt ./
RUN --mount=type=cache,target=/root/.cache/uv \
    .ci/uv venv -q --python python .venv-gpu \
    && .ci/uv pip sync -q --require-hashes --compile-bytecode --python .venv-gpu requirements-gpu.txt

FROM base AS page
COPY --from=packages /app/.venv .venv
COPY app.py ./
COPY agent agent
COPY configs configs
ENV PATH=/app/.venv/bin:$PATH
# The tree may be read-only, so what Python would write beside the sources at the first start is written now.
RUN python -m compileall -q --invalidation-mode unchecked-hash agent
# Whatever is kept lies under /data; what may be lost, under /tmp.
ENV HOME=/data/home \
    SWITCHBOARD_DATA=/data \
    SWITCHBOARD_CACHE=/data/cache \
    GRADIO_TEMP_DIR=/tmp/gradio \
    GRADIO_SERVER_NAME=0.0.0.0 \
    GRADIO_SERVER_PORT=7860
USER 1000
VOLUME ["/data"]
EXPOSE 7860
# Without urllib, which would ask a proxy that the container is told of.
HEALTHCHECK --start-period=60s --interval=30s --timeout=5s CMD ["python", "-c", "\
import http.client, os, sys; \
c = http.client.HTTPConnection('127.0.0.1', int(os.environ['GRADIO_SERVER_PORT']), timeout=4); \
c.request('GET', '/healthz'); \
sys.exit(c.getresponse().status != 200)"]
CMD ["python", "app.py"]

FROM page AS gpu
USER 0
# Triton compiles a few lines of C for the GPU that it finds.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
USER 1000
COPY --from=packages-gpu /app/.venv-gpu .venv-gpu
# The last two are what NVIDIA's container runtime reads: all GPUs, and nvidia-smi with them.
ENV MODEL=Qwen/Qwen3-8B \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility

FROM page AS stores
COPY --from=packages-stores /app/.venv .venv

FROM page AS app
