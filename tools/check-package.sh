#!/usr/bin/env bash
# Packs luftpause, installs the package into an empty folder, and starts it on each version of Node that it promises:
# a turn has to go through a simulated engine. Everything is made below a temporary folder and removed.
set -euo pipefail
cd "$(dirname "$0")/.."
folder="$(mktemp -d)"
pid=""
trap '[ -z "$pid" ] || kill "$pid" 2>/dev/null; rm -rf "$folder"' EXIT

npm run --silent build
npm pack --silent --pack-destination "$folder" >/dev/null
cd "$folder"
npm init -y >/dev/null
npm install --silent --no-save ./luftpause-*.tgz
for version in 22 24 26; do
  npm install --silent --no-save --prefix "node-$version" "node@$version" >/dev/null
  node="$folder/node-$version/node_modules/node/bin/node"
  # The shell makes the file when the process starts, which on a busy machine is later than the first look at it.
  : >"up-$version.txt"
  "$node" node_modules/luftpause/dist/cli/main.js up --listen 127.0.0.1:0 >"up-$version.txt" 2>"up-$version.err" &
  pid=$!
  base=""
  for _ in $(seq 300); do
    base="$(sed -n 's/^ *base_url *//p' "up-$version.txt")"
    [ -n "$base" ] && break
    sleep 0.1
  done
  answer="$(curl -sN --max-time 20 "$base/chat/completions" -H 'content-type: application/json' \
    -d '{"model":"sim-8b","stream":true,"messages":[{"role":"user","content":"hello"}]}' || true)"
  kill "$pid"
  wait "$pid"
  pid=""
  if ! grep -q '^data: \[DONE\]' <<<"$answer"; then
    echo "check-package: no whole stream on Node $version:" >&2
    cat "up-$version.err" >&2
    exit 1
  fi
  if grep -qi warning "up-$version.err"; then
    echo "check-package: a warning on Node $version:" >&2
    cat "up-$version.err" >&2
    exit 1
  fi
  echo "check-package: $("$node" --version) ok"
done
