#!/usr/bin/env bash
# Makes the virtual environment that the Python end-to-end tests use. Does nothing when it is there already.
set -euo pipefail
cd "$(dirname "$0")/.."
wanted=(openai==3.57.0 mcp==2.3.0)
stamp=".cache/python/.luftpause-${wanted[*]}"
[ -e "$stamp" ] && exit 0
command -v python3 >/dev/null || { echo "setup-python: python3 is missing; install Python 3.9 or later" >&2; exit 1; }
rm -rf .cache/python
python3 -m venv .cache/python
.cache/python/bin/pip install --quiet --disable-pip-version-check "${wanted[@]}"
touch "$stamp"
