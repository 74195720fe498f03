# The image of compose.yaml, and of a job on one machine: tidetable with all extras. The image for Dataflow is Dockerfile.

FROM python:3.11-slim

ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore HOME=/tmp
WORKDIR /tidetable

# The dependencies come first: a change in the pipeline alone then reuses this layer.
COPY tests/requirements.txt ./
RUN pip install --no-deps --require-hashes -r requirements.txt

COPY pyproject.toml README.md LICENSE ./
COPY pipeline pipeline
RUN pip install --no-deps --no-build-isolation .

# nobody
USER 65534
WORKDIR /tmp

# A job writes this file while it makes progress. For containers of other commands, disable the check.
ENV TIDETABLE_STATUS_FILE=/tmp/tidetable-status.json
HEALTHCHECK --interval=1m --timeout=10s --start-period=2m --retries=1 \
    CMD ["sh", "-c", "test -n \"$(find \"$TIDETABLE_STATUS_FILE\" -mmin -5)\""]
ENTRYPOINT ["tidetable"]
