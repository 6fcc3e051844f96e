"""A correct operator with kopf: a Page gets a ConfigMap with its text."""

import kopf
from kubernetes import client, config

config.load_kube_config()
api = client.CoreV1Api()


# Without it, the lens has a note: a broken connection is noticed late.
@kopf.on.startup()
def configure(settings, **_):
    settings.watching.server_timeout = 300


@kopf.on.create("example.com", "v1", "pages")
def create(name, namespace, spec, patch, **_):
    wanted = {"metadata": {"name": name}, "data": {"text": spec["text"]}}
    kopf.adopt(wanted)
    api.create_namespaced_config_map(namespace, wanted)
    patch.status["phase"] = "Ready"


@kopf.on.update("example.com", "v1", "pages")
def update(name, namespace, spec, **_):
    api.patch_namespaced_config_map(name, namespace, {"data": {"text": spec["text"]}})
