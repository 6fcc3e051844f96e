"""The official client of Python: a list, writes, and an informer whose watches are cut. See ../install."""

import queue
import sys

from kubernetes import client, config
from kubernetes.informer import SharedInformer

NAMESPACE, SELECTOR = "default", "for=python"

config.load_kube_config()
api = client.CoreV1Api()
events = queue.Queue()


def expect(event):
    """The next event is this one."""
    # The informer has reconnected after at most 5 s.
    seen = events.get(timeout=60)
    if seen != event:
        sys.exit(f"python: {seen} instead of {event}")


api.create_namespaced_config_map(
    NAMESPACE, {"metadata": {"name": "python", "labels": {"for": "python"}}, "data": {"change": "0"}}
)
names = [item.metadata.name for item in api.list_namespaced_config_map(NAMESPACE, label_selector=SELECTOR).items]
if names != ["python"]:
    sys.exit(f"python: listed {names}")

informer = SharedInformer(api.list_namespaced_config_map, NAMESPACE, label_selector=SELECTOR)
for kind in ("ADDED", "MODIFIED", "DELETED"):
    informer.add_event_handler(kind, lambda item, kind=kind: events.put((kind, item.data["change"])))
informer.start()
expect(("ADDED", "0"))
for change in "12345":
    api.patch_namespaced_config_map("python", NAMESPACE, {"data": {"change": change}})
    expect(("MODIFIED", change))
api.delete_namespaced_config_map("python", NAMESPACE)
expect(("DELETED", "5"))
informer.stop()
