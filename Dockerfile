# The service on a CPU, with the built-in pack inside: nothing is fetched once the image is built.
#   docker build -t recap .
#   docker run --rm -p 127.0.0.1:8000:8000 -e RECAP_API_KEYS=$(openssl rand -hex 24) recap
# Another pack: docker run ... -v ./my-pack:/pack:ro recap --pack /pack
FROM python:3.12-slim AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /source
COPY pyproject.toml constraints.txt README.md LICENSE NOTICE ./
COPY src ./src
COPY examples/pictures ./examples/pictures
RUN python -m venv /opt/recap && /opt/recap/bin/pip install --constraint constraints.txt '.[serve]'
ENV RECAP_CACHE=/opt/cache
# downloads are kept apart from what is made of them, and are not needed any more
RUN /opt/recap/bin/recap setup && rm -rf /opt/cache/downloads

FROM python:3.12-slim
RUN apt-get update && apt-get install --no-install-recommends -y libgomp1 \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --system --uid 10001 --no-create-home recap
COPY --from=build /opt/recap /opt/recap
COPY --from=build /opt/cache /opt/cache
ENV PATH=/opt/recap/bin:$PATH RECAP_CACHE=/opt/cache HF_HUB_OFFLINE=1 PYTHONUNBUFFERED=1
USER recap
EXPOSE 8000
HEALTHCHECK --start-period=60s --interval=30s \
    CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/readyz', timeout=5)"]
# keys come from RECAP_API_KEYS; without any the service does not start
ENTRYPOINT ["recap", "serve", "--host", "0.0.0.0"]
