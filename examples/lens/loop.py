"""An operator with a bug, to be found by the lens: it counts in the status of a Page how often it has looked at it.

    cargo run -- lens --crd examples/lens/crd.yaml --sample examples/lens/page.yaml -- python3 examples/lens/loop.py
"""

import base64
import json
import os
import re
import ssl
from urllib.request import Request, urlopen

PAGES = "/apis/example.com/v1/namespaces/default/pages"

with open(os.environ["KUBECONFIG"]) as file:
    config = file.read()


def value(key):
    return re.search(rf'{key}: "?([^"\s}}]+)', config)[1]


server = ssl.create_default_context(cadata=base64.b64decode(value("certificate-authority-data")).decode())


def ask(method, path, body=None):
    request = Request(value("server") + path, json.dumps(body).encode() if body else None, method=method)
    request.add_header("Authorization", f"Bearer {value('token')}")
    request.add_header("Content-Type", "application/merge-patch+json")
    request.add_header("User-Agent", "loop.py")
    return urlopen(request, context=server)


version = json.load(ask("GET", PAGES))["metadata"]["resourceVersion"]
watch = f"watch=1&resourceVersion={version}&allowWatchBookmarks=true&timeoutSeconds=600"
for line in ask("GET", f"{PAGES}?{watch}"):
    event = json.loads(line)
    page = event["object"]
    if event["type"] in ("ADDED", "MODIFIED"):
        visits = page.get("status", {}).get("visits", 0) + 1
        ask("PATCH", f"{PAGES}/{page['metadata']['name']}/status", {"status": {"visits": visits}})
