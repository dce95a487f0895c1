import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";
import { vi } from "vitest";
import { openSqliteStore } from "../../src/runtime/store/sqlite.ts";
import { storeConformance } from "./store-conformance.ts";

// Syncs of the disk take long on a busy machine.
vi.setConfig({ testTimeout: 60_000 });

const folders: string[] = [];
const files = new WeakMap<object, string>();

async function openIn(file: string) {
  const store = await openSqliteStore({ file });
  files.set(store, file);
  return store;
}

storeConformance("sqlite", {
  async open() {
    const folder = await mkdtemp(path.join(tmpdir(), "luftpause-journal-"));
    folders.push(folder);
    return openIn(path.join(folder, "runs.db"));
  },
  async reopen(store) {
    await store.close();
    return openIn(files.get(store) ?? "");
  },
  async clean() {
    for (const folder of folders.splice(0)) await rm(folder, { recursive: true });
  },
});
