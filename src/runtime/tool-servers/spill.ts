/**
 * Results of tools that were too long for the model, kept whole in files: for people, and for sub-agents with a tool that
 * reads files. Bounded: the oldest go first.
 */
import { createHash } from "node:crypto";
import { mkdir, readdir, rm, stat, writeFile } from "node:fs/promises";
import path from "node:path";

const FOLDER_BYTES_MAX = 1024 * 1024 * 1024;
const FILE_BYTES_MAX = 64 * 1024 * 1024;

/**
 * @param folder made when it is needed.
 * @returns writes a text; gives its path, or undefined when the disk does not take it.
 */
export function createSpill(folder: string): (key: string, text: string) => Promise<string | undefined> {
  return async (key, text) => {
    // One call has one file, also when it is made again.
    const name = `${createHash("sha256").update(key, "utf8").digest("hex").slice(0, 32)}.txt`;
    const file = path.join(folder, name);
    try {
      await mkdir(folder, { recursive: true, mode: 0o700 });
      await makeRoom(folder);
      await writeFile(file, Buffer.from(text, "utf8").subarray(0, FILE_BYTES_MAX), { mode: 0o600 });
      return file;
    } catch {
      // The model has the beginning and the end: a full disk must not fail the call.
      return undefined;
    }
  };
}

async function makeRoom(folder: string): Promise<void> {
  const files = await Promise.all(
    (await readdir(folder)).map(async (name) => {
      const { size, mtimeMs } = await stat(path.join(folder, name));
      return { name, size, mtimeMs };
    }),
  );
  let bytes = files.reduce((sum, { size }) => sum + size, 0);
  for (const { name, size } of files.sort((one, other) => one.mtimeMs - other.mtimeMs)) {
    if (bytes + FILE_BYTES_MAX <= FOLDER_BYTES_MAX) return;
    await rm(path.join(folder, name), { force: true });
    bytes -= size;
  }
}
