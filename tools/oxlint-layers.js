// The import table of the architecture as a lint rule: a layer may import what its row names, nothing else.
// `npm` lists the packages a layer may use ("*" = any); `node` says whether node: modules are allowed.
import path from "node:path";

const LAYERS = {
  base: { layers: [], npm: [], node: false },
  wire: { layers: ["base"], npm: [], node: false },
  scheduling: { layers: ["base", "wire"], npm: [], node: false },
  engine: { layers: ["base"], npm: [], node: false },
  runs: { layers: ["base", "wire"], npm: ["@cfworker/json-schema"], node: false },
  workload: { layers: ["base", "wire"], npm: [], node: false },
  simulation: { layers: ["base", "wire", "scheduling", "runs", "engine", "workload"], npm: [], node: false },
  telemetry: { layers: ["base", "wire"], npm: ["prom-client"], node: true },
  http: { layers: ["base", "wire"], npm: ["undici"], node: true },
  scheduler: { layers: ["base", "wire", "scheduling", "telemetry", "http"], npm: ["undici"], node: true },
  dataplane: { layers: ["base", "wire", "telemetry", "http"], npm: ["undici"], node: true },
  runtime: {
    layers: ["base", "wire", "runs", "telemetry", "http"],
    npm: ["@modelcontextprotocol/server", "@modelcontextprotocol/client", "@cfworker/json-schema", "zod"],
    node: true,
  },
  testbed: {
    layers: ["base", "wire", "engine", "workload", "http"],
    npm: ["@modelcontextprotocol/server", "@modelcontextprotocol/node", "zod"],
    node: true,
  },
  cli: {
    layers: [
      "base",
      "wire",
      "scheduling",
      "engine",
      "runs",
      "workload",
      "simulation",
      "telemetry",
      "http",
      "scheduler",
      "dataplane",
      "runtime",
      "testbed",
    ],
    npm: ["*"],
    node: true,
  },
};

/** The layer that a path below src/ belongs to, or undefined. */
function layerOf(file) {
  const match = /(?:^|\/)src\/([^/]+)\//.exec(file.split(path.sep).join("/"));
  return match?.[1];
}

function packageOf(specifier) {
  const parts = specifier.split("/");
  return specifier.startsWith("@") ? parts.slice(0, 2).join("/") : parts[0];
}

function problem(layer, from, specifier) {
  const row = LAYERS[layer];
  if (row === undefined) return `src/${layer} is not in the import table (tools/oxlint-layers.js)`;
  if (specifier.startsWith("node:")) return row.node ? undefined : `pure layer ${layer} must not import ${specifier}`;
  if (!specifier.startsWith(".")) {
    const name = packageOf(specifier);
    return row.npm.includes("*") || row.npm.includes(name)
      ? undefined
      : `layer ${layer} must not import package ${name}`;
  }
  const target = path.resolve(path.dirname(from), specifier);
  const other = layerOf(target);
  if (other === undefined) return `${specifier} leaves src/`;
  if (other === layer) return undefined;
  if (!row.layers.includes(other)) return `layer ${layer} must not import layer ${other}`;
  const inside = target.split(path.sep).join("/").split(`/src/${other}/`)[1];
  // wire and base are flat vocabularies: their files are imported one by one; every other layer has one door.
  if (other !== "base" && other !== "wire" && inside !== "index.ts") {
    return `import layer ${other} by its door src/${other}/index.ts, not ${inside}`;
  }
  return undefined;
}

const rule = {
  create(context) {
    const from = context.filename;
    const layer = layerOf(from);
    if (layer === undefined) return {};
    const check = (node) => {
      if (typeof node.source?.value !== "string") return;
      const message = problem(layer, from, node.source.value);
      if (message !== undefined) context.report({ node: node.source, message });
    };
    return {
      ImportDeclaration: check,
      ExportNamedDeclaration: check,
      ExportAllDeclaration: check,
      ImportExpression: check,
    };
  },
};

export default { meta: { name: "layers" }, rules: { "import-table": rule } };
