"""Put pip into the environment that runs this, from PyPI: for a Python without ensurepip.

pip's wheel runs from the zip that it is. Its index and certificate settings are respected.
"""

from __future__ import annotations

import hashlib
import os
import re
import ssl
import subprocess
import sys
import tempfile
import urllib.parse
import urllib.request
from pathlib import Path

INDEX = os.environ.get("PIP_INDEX_URL", "https://pypi.org/simple")
WHEEL = re.compile(r'href="([^"#]+/(pip-[0-9.]+-py3-none-any\.whl))#sha256=([0-9a-f]{64})"')


def main() -> None:
    """Download the newest release's wheel, check its digest, and install it with itself."""
    page_url = f"{INDEX.rstrip('/')}/pip/"
    wheels = WHEEL.findall(_get(page_url).decode())
    if not wheels:
        sys.exit(f"no pip on {page_url}; try: apt-get install python3-venv")
    url, name, digest = max(wheels, key=lambda wheel: _version(wheel[1]))
    wheel = _get(urllib.parse.urljoin(page_url, url))
    if hashlib.sha256(wheel).hexdigest() != digest:
        sys.exit(f"{name} does not have the digest that {page_url} gives for it")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, name)
        path.write_bytes(wheel)
        command = [sys.executable, f"{path}/pip", "install", "--quiet", str(path)]
        subprocess.run(command, check=True)


def _get(url: str) -> bytes:
    context = ssl.create_default_context(cafile=os.environ.get("PIP_CERT"))
    request = urllib.request.Request(url, headers={"Accept": "text/html"})
    with urllib.request.urlopen(request, timeout=60, context=context) as answer:
        body: bytes = answer.read()
    return body


def _version(name: str) -> tuple[int, ...]:
    return tuple(int(part) for part in name.split("-")[1].split("."))


if __name__ == "__main__":
    main()
