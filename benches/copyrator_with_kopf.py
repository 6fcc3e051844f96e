# An operator of CopyratorRules with kopf and Python's client, for benches/copies, in the plainest way: one copy after the
# other, and without a look at the present copies.
#
#   benches/copies 1000 10 --peer kopf run --all-namespaces benches/copyrator_with_kopf.py
import fnmatch

import kopf
import kubernetes

kubernetes.config.load_kube_config()
core = kubernetes.client.CoreV1Api()
rules = {}


def copy(rule, targets):
    labels = ",".join(f"{key}={value}" for key, value in rule["selector"].items())
    sources = core.list_namespaced_config_map(rule["metadata"]["namespace"], label_selector=labels).items
    globs = rule["targetNamespaces"]["include"]
    for target in [target for target in targets if any(fnmatch.fnmatch(target, glob) for glob in globs)]:
        for source in sources:
            copied = {"metadata": {"name": source.metadata.name}, "data": source.data}
            try:
                core.create_namespaced_config_map(target, copied)
            except kubernetes.client.ApiException as error:
                if error.status != 409:
                    raise
                core.patch_namespaced_config_map(source.metadata.name, target, copied)


def namespaces():
    return [namespace.metadata.name for namespace in core.list_namespace().items]


@kopf.on.startup()
def configure(settings, **_):
    settings.posting.enabled = False


@kopf.on.event("flant.com", "v1", "copyrators")
def rule_changed(event, body, **_):
    if event["type"] == "DELETED":
        rules.pop(body["metadata"]["uid"], None)
        return
    rules[body["metadata"]["uid"]] = rule = dict(body)
    copy(rule, namespaces())


@kopf.on.event("configmaps", labels={"copyrator": "true"})
def source_changed(event, **_):
    if event["type"] in ("ADDED", "MODIFIED"):
        for rule in list(rules.values()):
            copy(rule, namespaces())


@kopf.on.event("namespaces")
def namespace_changed(event, name, **_):
    if event["type"] == "ADDED":
        for rule in list(rules.values()):
            copy(rule, [name])
