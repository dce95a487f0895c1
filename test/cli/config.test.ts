import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { loadConfig, withoutSecrets, type ConfigOutcome } from "../../src/cli/config/load.ts";
import { environmentName } from "../../src/cli/config/paths.ts";
import { endpointsOf, schedulingOf, toolServersOf } from "../../src/cli/config/resolve.ts";

import { ACTIVE_SET_DEFAULTS } from "../../src/scheduling/index.ts";

let folder: string;

beforeEach(() => {
  folder = mkdtempSync(path.join(tmpdir(), "luftpause-config-"));
});
afterEach(() => rmSync(folder, { recursive: true }));

function load(
  text: string,
  environment: { [name: string]: string } = {},
  overrides: [string, string][] = [],
): ConfigOutcome {
  const file = path.join(folder, "luftpause.yaml");
  writeFileSync(file, text);
  return loadConfig({ file, environment, overrides });
}

function problems(outcome: ConfigOutcome): string[] {
  expect(outcome.kind).toBe("invalid");
  return outcome.kind === "invalid" ? outcome.problems.map((line) => line.replace(`${folder}/`, "")) : [];
}

function valid(outcome: ConfigOutcome) {
  if (outcome.kind === "invalid") throw new Error(outcome.problems.join("\n"));
  return outcome.config;
}

const ENGINE = "endpoints:\n  - name: a\n    url: http://127.0.0.1:8000\n";

describe("precedence", () => {
  test("a flag beats the environment, which beats the file, which beats the default", () => {
    expect(valid(load("")).limits.drainSeconds).toBe(30);
    const file = "limits: { drainSeconds: 5 }";
    expect(valid(load(file)).limits.drainSeconds).toBe(5);
    const environment = { LUFTPAUSE_LIMITS__DRAIN_SECONDS: "6" };
    expect(valid(load(file, environment)).limits.drainSeconds).toBe(6);
    expect(valid(load(file, environment, [["limits.drainSeconds", "7"]])).limits.drainSeconds).toBe(7);
  });

  test("an environment value may be a list", () => {
    const config = valid(load("", { LUFTPAUSE_ENDPOINTS: "[{ name: a, url: 'http://127.0.0.1:1' }]" }));
    expect(config.endpoints.map((endpoint) => endpoint.name)).toEqual(["a"]);
  });

  test("a double underscore is nesting and camelCase becomes upper case with underscores", () => {
    expect(environmentName("limits.drainSeconds")).toBe("LUFTPAUSE_LIMITS__DRAIN_SECONDS");
    expect(environmentName("pausedRoomSeconds")).toBe("LUFTPAUSE_PAUSED_ROOM_SECONDS");
  });
});

describe("faults name their place and the way out", () => {
  test("an unknown key is refused with line, column and the nearest known one", () => {
    expect(problems(load(`${ENGINE}    maxInflight: 4\n`))).toEqual([
      "luftpause.yaml:4:5: endpoints[0].maxInflight: unknown key; did you mean maxInFlight?",
    ]);
  });

  test("an unknown environment variable is refused with the nearest known one", () => {
    expect(problems(load("", { LUFTPAUSE_LIMITS__DRAIN_SECOND: "1" }))).toEqual([
      "LUFTPAUSE_LIMITS__DRAIN_SECOND: unknown environment variable; did you mean LUFTPAUSE_LIMITS__DRAIN_SECONDS?",
    ]);
  });

  test("reserved variables are no config paths", () => {
    valid(
      load("", { LUFTPAUSE_INSECURE: "1", LUFTPAUSE_VERSION: "v1", LUFTPAUSE_REGISTRY: "r", LUFTPAUSE_BIND: "::" }),
    );
  });

  test("a value of the wrong type names its place", () => {
    expect(problems(load("limits:\n  drainSeconds: soon\n"))).toEqual([
      "luftpause.yaml:2:3: limits.drainSeconds: must be a number",
    ]);
  });

  test("a wrong value from a flag or variable names the flag or variable", () => {
    expect(problems(load("", {}, [["policy", "best"]]))[0]).toMatch(/^flag for policy: policy: must be one of classic/);
    expect(problems(load("", { LUFTPAUSE_LISTEN: "here" }))[0]).toMatch(/^LUFTPAUSE_LISTEN: listen: must be HOST:PORT/);
  });

  test("broken YAML names line and column", () => {
    expect(problems(load("endpoints: [\n"))[0]).toMatch(/^luftpause\.yaml:\d+:\d+: not valid YAML/);
  });

  test("a missing name, a bad address and a taken name are three problems", () => {
    const text = [
      "endpoints:",
      "  - url: http://127.0.0.1:1",
      "  - { name: a, url: 'ftp://x' }",
      "  - { name: a, url: 'http://127.0.0.1:2' }",
    ].join("\n");
    const found = problems(load(text));
    expect(found[0]).toMatch(/^luftpause\.yaml:2:5: endpoints\[0\]\.name: is missing/);
    expect(found[1]).toMatch(/endpoints\[1\]\.url: must be an http:/);
    const taken = problems(load(`${ENGINE}  - { name: a, url: "http://127.0.0.1:2" }\n`));
    expect(taken).toEqual(["luftpause.yaml:4:7: endpoints[1].name: 'a' is taken; names must differ"]);
  });

  test("a named file that is not there is an error, the default one is optional", () => {
    const named = loadConfig({ file: path.join(folder, "none.yaml"), environment: {}, overrides: [] });
    expect(problems(named)[0]).toContain("cannot be read (ENOENT)");
  });

  test("the root must be a map", () => {
    expect(problems(load("- a\n"))[0]).toContain("must be a map of keys");
  });
});

describe("secrets", () => {
  test("a secret in the clear is refused and not repeated", () => {
    const found = problems(load("token: hunter2hunter2\n"));
    expect(found[0]).toMatch(/^luftpause\.yaml:1:1: token: a secret stands here in the clear/);
    expect(found.join()).not.toContain("hunter2");
  });

  test("references to variables and files are resolved", () => {
    const file = path.join(folder, "key");
    writeFileSync(file, "from-file\n");
    const config = valid(
      load(`token: \${MY_TOKEN}\n${ENGINE}    apiKey: "\${file:${file}}"\n`, { MY_TOKEN: "from-env" }),
    );
    expect(config.token).toBe("from-env");
    expect(config.endpoints[0]?.apiKey).toBe("from-file");
  });

  test("a reference to a variable that is not set is an error: an empty token would open everything", () => {
    expect(problems(load("token: ${MY_TOKEN}\n"))).toEqual([
      "luftpause.yaml:1:1: token: the environment variable MY_TOKEN is not set; set it, or remove this line",
    ]);
  });

  test("LUFTPAUSE_TOKEN counts without a line in the file, and is not read as YAML", () => {
    expect(valid(load("", { LUFTPAUSE_TOKEN: "007" })).token).toBe("007");
  });

  test("one token and principals exclude each other", () => {
    const text = "token: ${T}\nprincipals: [{ name: ci, token: '${U}' }]\n";
    expect(problems(load(text, { T: "a", U: "b" }))[0]).toContain("either one token or principals");
  });

  test("a shown config has its secrets struck out", () => {
    const config = valid(load(`token: \${T}\n${ENGINE}    apiKey: \${K}\n`, { T: "secret-t", K: "secret-k" }));
    const shown = JSON.stringify(withoutSecrets(config));
    expect(shown).not.toMatch(/secret-/);
    expect(shown).toContain('"token":"(set)"');
  });
});

describe("tool servers", () => {
  const HTTP = "tools:\n  - name: wiki\n    url: http://127.0.0.1:9000/mcp\n";
  const STDIO = "tools:\n  - name: wiki\n    command: npx\n    args: [-y, some-wikipedia-mcp]\n";

  test("have their defaults", () => {
    expect(valid(load(HTTP)).tools[0]).toMatchObject({
      allow: ["*"],
      deny: [],
      trust: true,
      approve: "explicit",
      effects: {},
      onCrash: "ask",
      timeoutSeconds: 600,
      resultBytesMax: 65_536,
    });
    expect(toolServersOf(valid(load(STDIO)))[0]).toMatchObject({
      timeoutMs: 600_000,
      transport: { kind: "stdio", command: "npx", args: ["-y", "some-wikipedia-mcp"], env: {} },
    });
  });

  test.each([
    [
      "neither address nor command",
      "tools: [{ name: wiki }]",
      "tools[0].name: give its url (HTTP), or its command (stdio)",
    ],
    ["both", `${HTTP}    command: npx\n`, "tools[0].command: give either url or command, not both"],
    ["arguments for an address", `${HTTP}    args: [x]\n`, "tools[0].args: is for a command, not a url"],
    ["headers for a command", `${STDIO}    headers: { a: b }\n`, "tools[0].headers: is for a url, not a command"],
    ["a name twice", `${HTTP}  - name: wiki\n    command: x\n`, "tools[1].name: 'wiki' is taken; names must differ"],
  ])("are refused with %s", (_what, text, problem) => {
    expect(problems(load(text))).toEqual([expect.stringContaining(problem) as string]);
  });

  test("an effect that does not exist is refused with those that do", () => {
    expect(problems(load(`${HTTP}    effects: { look: harmless }\n`))[0]).toMatch(
      /effects.look.*read-only.*idempotent.*unsafe/,
    );
  });

  test("headers and environment may hold references inside, and are struck out where the config is shown", () => {
    const file = `${HTTP}    headers: { authorization: "Bearer \${WIKI_TOKEN}", x-mode: fast }\n`;
    const config = valid(load(file, { WIKI_TOKEN: "s3cret" }));
    expect(config.tools[0]?.headers).toEqual({ authorization: "Bearer s3cret", "x-mode": "fast" });
    expect(withoutSecrets(config)).toMatchObject({
      tools: [{ headers: { authorization: "(set)", "x-mode": "(set)" } }],
    });
    expect(problems(load(file))).toEqual([
      expect.stringMatching(
        /^luftpause\.yaml:4:\d+: tools\[0\]\.headers\.authorization: the environment variable WIKI_TOKEN is not set/,
      ) as string,
    ]);
  });

  test("a secret in a header that stands there in the clear is refused", () => {
    const file = `${HTTP}    headers: { authorization: Bearer abc }\n`;
    expect(problems(load(file))).toEqual([
      expect.stringMatching(/headers\.authorization: a secret stands here in the clear/) as string,
    ]);
  });
});

describe("the policy", () => {
  const scheduling = (text: string) => {
    const config = valid(load(text));
    return schedulingOf(config, endpointsOf(config));
  };

  test("keeps room for paused runs as long as the policy needs it, or as it is told", () => {
    expect(scheduling("").pausedRoomMs).toBe(1_800_000);
    expect(scheduling("policy: active-set").pausedRoomMs).toBe(120_000);
    expect(scheduling("policy: active-set\npausedRoomSeconds: 7").pausedRoomMs).toBe(7_000);
  });

  test("active-set has the numbers of the core, each by its key", () => {
    expect(scheduling("policy: active-set").activeSet).toEqual(ACTIVE_SET_DEFAULTS);
    const some = scheduling("policy: active-set\nactiveSet: { bound: both, ceiling: 0.7, preempt: false }");
    expect(some.activeSet).toEqual({ ...ACTIVE_SET_DEFAULTS, bound: "both", ceiling: 0.7, preempt: false });
    expect(problems(load("activeSet: { cieling: 0.7 }"))[0]).toContain("did you mean ceiling?");
    expect(problems(load("activeSet: { ceiling: 1.5 }"))[0]).toContain("activeSet.ceiling");
  });

  test("an endpoint's priority reaches the core", () => {
    const [replica] = scheduling(`${ENGINE}    priority: lower-first\n`).replicas;
    expect(replica?.priority).toBe("lower-first");
  });
});
