/** SIGTERM and SIGINT: the first drains, the second ends at once (spec 7, Draining). */

/**
 * @param drain called once; its promise ends the process with 0.
 * @param say writes one line for the person at the terminal.
 */
export function drainOnSignals(drain: () => Promise<void>, say: (line: string) => void): Promise<number> {
  return new Promise((resolve) => {
    let draining = false;
    const onSignal = (signal: NodeJS.Signals): void => {
      if (draining) {
        say(`${signal} again: ending at once`);
        process.exit(1);
      }
      draining = true;
      say(`${signal}: draining; once more ends at once`);
      drain().then(
        () => resolve(0),
        (error: unknown) => {
          say(`draining failed: ${String(error)}`);
          resolve(1);
        },
      );
    };
    process.on("SIGTERM", onSignal);
    process.on("SIGINT", onSignal);
  });
}
