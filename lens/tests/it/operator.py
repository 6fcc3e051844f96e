"""The operator of operator.rs in Python, without a library: a Page gets a ConfigMap with its text. The variable BUG names its bug."""

import base64
import json
import os
import queue
import re
import ssl
import threading
import time
from urllib.error import HTTPError
from urllib.request import Request, urlopen

PAGES = "/apis/example.com/v1/namespaces/default/pages"
MAPS = "/api/v1/namespaces/default/configmaps"

with open(os.environ["KUBECONFIG"]) as file:
    config = file.read()


def value(key):
    return re.search(rf'{key}: "?([^"\s}}]+)', config)[1]


server = ssl.create_default_context(cadata=base64.b64decode(value("certificate-authority-data")).decode())
bug = os.environ.get("BUG")
events = queue.Queue()
done = set()


def ask(method, path, body=None, agent="pages"):
    request = Request(value("server") + path, json.dumps(body).encode() if body else None, method=method)
    request.add_header("Authorization", f"Bearer {value('token')}")
    request.add_header("Content-Type", f"application/{'merge-patch+' if method == 'PATCH' else ''}json")
    request.add_header("User-Agent", agent)
    try:
        return urlopen(request, context=server)
    except HTTPError as error:
        return error


def send(*request):
    with ask(*request) as answer:
        return json.load(answer)


def once(what):
    """Whether it is the first time."""
    is_first = what not in done
    done.add(what)
    return is_first


def follow(path):
    while True:
        objects = send("GET", path)
        if "items" in objects:
            events.put((path, objects["items"], []))
            secs = 1 if bug == "opens-a-watch-once" else 300
            watch = f"watch=1&resourceVersion={objects['metadata']['resourceVersion']}&timeoutSeconds={secs}"
            for line in ask("GET", f"{path}?{watch}&allowWatchBookmarks=true"):
                event = json.loads(line)
                if event["type"] == "ERROR":
                    break
                if event["type"] == "DELETED":
                    events.put((path, [], [event["object"]]))
                elif event["type"] != "BOOKMARK":
                    events.put((path, [event["object"]], []))
            if path == MAPS and bug == "opens-a-watch-once":
                return
        time.sleep(0.02)


def poll():
    while True:
        send("GET", MAPS)
        time.sleep(0.02)


def reconcile(name, page, found):
    path, metadata = f"{MAPS}/{name}", page["metadata"]
    if "deletionTimestamp" in metadata:
        return
    owner = {"apiVersion": "example.com/v1", "kind": "Page", "name": name, "uid": metadata["uid"]}
    wanted = {"metadata": {"name": name, "ownerReferences": [owner]}, "data": {"text": page["spec"]["text"]}}
    if bug == "fights-for-a-field":
        wanted["data"]["replicas"] = "1"
    if found is None:
        send("POST", MAPS, wanted)
    elif found["data"] != wanted["data"]:
        send("PATCH", path, wanted)
    elif bug == "fights-for-a-field":
        send("PATCH", path, {"data": {"replicas": "3"}}, "scaler")
    elif bug == "stamps-its-child":
        times = found["metadata"].get("annotations", {}).get("times", "0")
        send("PATCH", path, {"metadata": {"annotations": {"times": str(int(times) + 1)}}})
    elif bug == "drops-a-label" and once("label"):
        send("PATCH", path, {"metadata": {"labels": {"team": "web"}}}, "scaler")
    elif bug == "drops-a-label" and "labels" in found["metadata"]:
        send("PUT", path, wanted)
    status = {"phase": "Ready"}
    if bug == "stamps-its-status":
        status["checks"] = page.get("status", {}).get("checks", 0) + 1
    if page.get("status") != status:
        send("PATCH", f"{PAGES}/{name}/status", {"status": status})
    elif bug == "never-takes-the-answer" and once("status"):
        for times in range(6):
            send("PUT", f"{PAGES}/{name}/status", page | {"status": {"phase": "Ready", "checks": times}})
    elif bug == "has-no-index":
        for number in range(11):
            send("GET", f"{MAPS}?labelSelector=page={name}-{number}")
    elif bug == "keeps-its-finalizer" and once("finalizer"):
        send("PATCH", f"{PAGES}/{name}", {"metadata": {"finalizers": ["example.com/page"]}})
        send("DELETE", f"{PAGES}/{name}", None, "scaler")


for act in [lambda: follow(PAGES), lambda: follow(MAPS)] + [poll] * (bug == "polls"):
    threading.Thread(target=act, daemon=True).start()
caches = {}
while True:
    path, objects, deleted = events.get()
    cache = caches.setdefault(path, {})
    cache.update({one["metadata"]["name"]: one for one in objects})
    for one in deleted:
        cache.pop(one["metadata"]["name"], None)
    if len(caches) == 2:
        for name, page in caches[PAGES].items():
            reconcile(name, page, caches[MAPS].get(name))
