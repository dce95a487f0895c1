#!/usr/bin/env bash
# Shows luftpause's MCP face to the official Inspector in both protocol eras, strictly: any finding about our tools fails.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PWD/node_modules/.bin:$PATH"
inspector="@modelcontextprotocol/inspector@2.12.0"
folder="$(mktemp -d)"
pid=""
trap '[ -z "$pid" ] || kill "$pid" 2>/dev/null; rm -rf "$folder"' EXIT

: >"$folder/up.txt"
LUFTPAUSE_STATE_DIR="$folder/state" node src/cli/main.ts up --listen 127.0.0.1:0 >"$folder/up.txt" 2>&1 &
pid=$!
url=""
for _ in $(seq 300); do
  url="$(sed -n 's/^ *MCP  *\([^ ]*\).*/\1/p' "$folder/up.txt")"
  [ -n "$url" ] && break
  sleep 0.1
done
if [ -z "$url" ]; then
  echo "inspect-mcp: luftpause did not start:" >&2
  cat "$folder/up.txt" >&2
  exit 1
fi

for era in legacy modern; do
  status=0
  npx --yes --package "$inspector" -- mcp-inspector --cli --server-url "$url" --transport http --protocol-era "$era" \
    --method tools/list --strict --format json >"$folder/$era.json" 2>"$folder/$era.err" || status=$?
  count="$(node -e 'console.log(JSON.parse(require("fs").readFileSync(process.argv[1], "utf8")).result.tools.length)' "$folder/$era.json" || echo 0)"
  # The strict check writes what it finds to stderr, also where it lets it pass.
  if [ "$status" != 0 ] || [ -s "$folder/$era.err" ] || [ "$count" != 8 ]; then
    echo "inspect-mcp: $era era: exit code $status, $count tools:" >&2
    cat "$folder/$era.err" "$folder/$era.json" >&2
    exit 1
  fi
  echo "inspect-mcp: $era era: $count tools, nothing found"
done
