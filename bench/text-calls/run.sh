#!/usr/bin/env bash
# Scores luftpause's recovery of written tool calls with CanIToolCall's own runner, from the repository's root.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=${1:-$(mktemp -d)}
venv=$(mktemp -d)
trap 'rm -rf "$venv"' EXIT
python3 -m venv "$venv"
"$venv/bin/pip" install --quiet canitoolcall==0.1.1
"$venv/bin/canitoolcall" run --engine luftpause_adapter:LuftpauseAdapter --env "PYTHONPATH=$here" --env "PATH=$PATH" \
  --out "$out" --jobs 2 --observed failures
echo "report: $out"
