import { readFileSync } from "node:fs";
import { CommandError, EXIT } from "./exit.ts";

/**
 * Reads a PEM file that the config names.
 * @throws CommandError (config) naming the key and the file.
 */
export function readPem(file: string, key: string): string {
  try {
    return readFileSync(file, "utf8");
  } catch (error) {
    const code = (error as NodeJS.ErrnoException).code ?? String(error);
    throw new CommandError(EXIT.config, `${key}: ${file} cannot be read (${code})`);
  }
}
