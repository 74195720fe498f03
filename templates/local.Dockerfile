# The image of compose.yaml: tidetable with all extras, for emulators. The job's image at Google is Dockerfile.

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
ENTRYPOINT ["tidetable"]
