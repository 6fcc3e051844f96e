# docker build -t listwatch:0.1.0 .         (with buildx: --platform linux/amd64,linux/arm64)

FROM rust:1.95.0-slim-bookworm AS builder
WORKDIR /src
COPY . .
RUN --mount=type=cache,target=/usr/local/cargo/registry --mount=type=cache,target=/src/target,id=target-$TARGETPLATFORM \
    cp "$(.ci/build)" /listwatch

# One file and its licence: nothing to patch, no shell to find. Certificates come from the cluster, names from its DNS.
FROM scratch
ARG VERSION=0.1.0 REVISION=unknown
LABEL org.opencontainers.image.title="listwatch" \
      org.opencontainers.image.description="Kubernetes operators for MyWebserver, CopyratorRule, Memcached and Database" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="$VERSION" \
      org.opencontainers.image.revision="$REVISION"
COPY LICENSE /LICENSE
COPY --from=builder /listwatch /listwatch
# A number, so that the kubelet can see that it is not root.
USER 65532:65532
ENTRYPOINT ["/listwatch"]
