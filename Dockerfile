# For a CPU:     docker build -t glassformer .
# For an NVIDIA GPU, with torch from PyPI (CUDA included):  docker build -t glassformer --build-arg TORCH_INDEX=https://pypi.org/simple .
FROM python:3.11-slim
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
# Triton, which compiles the steps on a GPU, needs a C compiler.
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
WORKDIR /app
COPY pyproject.toml hatch_build.py constraints.txt README.md LICENSE ./
COPY src src
COPY docs/course docs/course
RUN pip install --no-cache-dir --extra-index-url "$TORCH_INDEX" -c constraints.txt '.[serve]'
ENV HOME=/tmp
USER 1000
ENTRYPOINT ["glassformer"]
